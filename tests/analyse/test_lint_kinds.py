"""Each kind of changing text is found, and applying the written edit computes as many tokens as lint reported."""

import base64
import json
import random
import re
from collections.abc import Callable
from email.utils import formatdate
from pathlib import Path
from typing import Any

import pytest

from kvproxy.apis import APIS
from kvproxy.apis.api_request import ApiRequest
from kvproxy.errors import SettingsError
from kvproxy.flow.prepare.prompt_edits import apply_edits
from kvproxy.settings import load_settings
from tests.analyse import logs
from tests.commands.run import kvproxy, result

Line = dict[str, Any]
SYSTEM = "You are the agent of a code base. " + logs.words("system", 120)
START = 1_790_000_000


def tools(count: int = 4) -> list[Line]:
    def tool(name: str) -> Line:
        properties = {each: {"type": "string", "description": logs.words((name, each), 8)} for each in ("path", "text")}
        function = {
            "name": name,
            "description": logs.words(name, 20),
            "parameters": {"type": "object", "properties": properties},
        }
        return {"type": "function", "function": function}

    return [tool(f"tool{number}") for number in range(count)]


def turns(number: int, session: int = 0) -> list[Line]:
    """Return the messages of turn `number`, from 0, after the system prompt."""
    found = []
    for turn in range(number + 1):
        found.append({"role": "user", "content": logs.words(("user", session, turn), 25)})
        if turn < number:
            found.append({"role": "assistant", "content": logs.words(("answer", session, turn), 40)})
    return found


def with_system(system: Callable[[int], str]) -> list[Line]:
    """Return requests of unrelated users, whose system prompts are given."""
    return [
        logs.line([{"role": "system", "content": system(number)}, {"role": "user", "content": logs.words(number, 12)}])
        for number in range(12)
    ]


def moving_reminder(text: Callable[[int], str], *, first: bool = False) -> list[Line]:
    """Return the turns of a conversation whose last message has a reminder, at its beginning or its end."""
    found = []
    for number in range(8):
        messages = turns(number)
        parts = (text(number), messages[-1]["content"]) if first else (messages[-1]["content"], text(number))
        messages[-1] = {"role": "user", "content": "\n".join(parts)}
        answer = logs.words(("answer", 0, number), 40)
        found.append(logs.line([{"role": "system", "content": SYSTEM}, *messages], answer))
    return found


def compaction(system: str = SYSTEM) -> list[Line]:
    """Return sessions whose requests have tools, except for the summary at the end."""
    found = []
    head = {"role": "system", "content": system}
    summary = {"role": "user", "content": "Summarise the conversation."}
    for session in range(3):
        found += [logs.line([head, *turns(number, session)], tools=tools()) for number in range(4)]
        found.append(logs.line([head, *turns(3, session), summary]))
    return found


def shuffled_tools(*, properties: bool = False) -> list[Line]:
    chance = random.Random(5)
    found = []
    for number in range(12):
        own = tools()
        if properties:
            for each in own:
                names = each["function"]["parameters"]["properties"]
                items = list(names.items())
                chance.shuffle(items)
                each["function"]["parameters"]["properties"] = dict(items)
        else:
            chance.shuffle(own)
        messages = [{"role": "system", "content": SYSTEM}, {"role": "user", "content": logs.words(number, 12)}]
        found.append(logs.line(messages, tools=own))
    return found


def secret(number: int, alphabet: str) -> str:
    chance = random.Random(number)
    return "".join(chance.choice(alphabet) for _ in range(24))


def reminder(number: int) -> str:
    return f"<system-reminder>Use the list of tasks. {logs.words('reminder', 20)}</system-reminder>"


LOGS: dict[str, tuple[str, Callable[[], list[Line]]]] = {
    "ISO time": ("date", lambda: with_system(lambda n: f"It is 2026-11-{n + 10}T10:{n + 10}:05Z. {SYSTEM}")),
    "Unix time": ("number", lambda: with_system(lambda n: f"Now: {START + 977 * n}. {SYSTEM}")),
    "mail date": ("date", lambda: with_system(lambda n: f"Date: {formatdate(START + 86_400 * n)[5:16]}. {SYSTEM}")),
    "hex nonce": ("id", lambda: with_system(lambda n: f"Request {secret(n, '0123456789abcdef')}. {SYSTEM}")),
    "nonce of letters": ("text", lambda: with_system(lambda n: f"Nonce: {secret(n, 'abcdefgh')}. {SYSTEM}")),
    "base64 nonce": (
        "text",
        lambda: with_system(lambda n: f"Key {base64.b64encode(bytes([n, 7, 99] * 6)).decode()} {SYSTEM}"),
    ),
    "reminder at the end": ("moving text", lambda: moving_reminder(reminder)),
    "reminder at the beginning": ("moving text", lambda: moving_reminder(reminder, first=True)),
    "reminder with a counter": (
        "moving text",
        lambda: moving_reminder(lambda n: f"<budget>{90_000 - 977 * n} tokens of the context are left</budget>"),
    ),
    "reminder without a tag": (
        "moving text",
        lambda: moving_reminder(lambda n: "Remember: answer in one sentence, and name each file that you changed."),
    ),
    "compaction without tools": ("dropped tools", compaction),
    "order of tools": ("order of tools", shuffled_tools),
    "order of properties": ("order of properties", lambda: shuffled_tools(properties=True)),
}


@pytest.mark.parametrize("name", LOGS)
def test_the_written_edit_computes_as_many_tokens_as_reported(tmp_path: Path, name: str) -> None:
    kind, lines = LOGS[name]
    log = logs.write(tmp_path / "log.jsonl", lines())
    options = ("--data", tmp_path, "--block-size", 8)
    (family,) = result("lint", log, "--edits", tmp_path / "kvproxy.toml", *options)["families"]
    span = family["spans"][0]
    assert span["kind"] == kind
    (edit, *others) = load_settings(data=tmp_path).edits
    action = {"strip": "stripped", "move": "moved"}.get(edit.action, "stripped")
    after = span[f"{action}_computed"] if not others else family["spans"][-1][f"{action}_computed"]
    computed = family["prompt_tokens"] - family["reused"]
    assert after < computed
    (again,) = result("lint", log, *options)["families"]
    assert again["prompt_tokens"] - again["reused"] == after
    assert not [each for each in again["spans"] if each["kind"] == kind]


def test_a_threshold_fails_before_the_edit_and_passes_after_it(tmp_path: Path) -> None:
    log = logs.write(tmp_path / "log.jsonl", LOGS["hex nonce"][1]())
    options = ("--data", tmp_path, "--block-size", 8, "--min-reuse", "0.6")
    assert kvproxy("lint", log, *options, "--edits", tmp_path / "kvproxy.toml").returncode == 1
    assert kvproxy("lint", log, *options).returncode == 0


def test_a_log_without_changing_text_gives_no_edit(tmp_path: Path) -> None:
    edits = tmp_path / "edits.toml"
    log = logs.write(tmp_path / "log.jsonl", with_system(lambda number: SYSTEM))
    done = kvproxy("lint", log, "--edits", edits)
    assert f"wrote no edit to {edits}" in done.stdout.replace("\n", " ")
    assert edits.read_text() == "# kvproxy lint found no edit that saves tokens.\n"


def test_only_the_request_that_reorders_the_tools_is_counted(tmp_path: Path) -> None:
    """All its prompts have the same words, so the latest one is the most similar one."""
    own = tools()
    chat = [{"role": "user", "content": "Go on."}, {"role": "assistant", "content": "Go on."}] * 6
    lines = [
        logs.line(
            [{"role": "system", "content": SYSTEM}, *chat[: 2 * number + 5]], tools=own[::-1] if number > 1 else own
        )
        for number in range(4)
    ]
    (family,) = result("lint", logs.write(tmp_path / "log.jsonl", lines), "--data", tmp_path)["families"]
    assert [(span["kind"], span["changed"]) for span in family["spans"]] == [("order of tools", 1)]


def test_prompts_without_tools_that_begin_otherwise_are_another_family(tmp_path: Path) -> None:
    lines = [
        logs.line([{"role": "system", "content": system}, *turns(number)], **more)
        for system, more in ((SYSTEM, {"tools": tools()}), (f"Codex notes follow. {SYSTEM}", {}))
        for number in range(3)
    ]
    families = result("lint", logs.write(tmp_path / "log.jsonl", lines), "--data", tmp_path)["families"]
    assert [(family["head"][:11], family["requests"]) for family in families] == [
        ('{"type":"fu', 3),
        ("Codex notes", 3),
    ]


def test_a_date_that_the_prompts_of_another_agent_have_in_common_is_found(tmp_path: Path) -> None:
    """Two clients run the same task at the same time, each with one request of a sub-agent."""

    def prompt(text: str, minute: int, *messages: Line) -> Line:
        return logs.line(
            [
                {
                    "role": "system",
                    "content": f"{text}\nThe environment of the agent is this folder.\nCurrent time: 2026-11-30 10:{minute:02}",
                },
                *messages,
            ]
        )

    lines = [prompt(SYSTEM, minute, *turns(minute)) for minute in range(6) for client in range(2)]
    lines += [prompt(logs.words("search", 90), 1, *turns(0)) for client in range(2)]
    first, second = result("lint", logs.write(tmp_path / "log.jsonl", lines), "--data", tmp_path)["families"]
    assert [span["kind"] for span in first["spans"]] == ["date"]
    assert second["spans"] == []


def test_no_edit_removes_the_prompt_of_another_agent(tmp_path: Path) -> None:
    """Two agents share their tools, and their users ask the same questions."""
    systems = [f"You are agent A. {SYSTEM}", f"The chat C answers short questions. {logs.words('C', 90)}"]
    lines = [
        logs.line([{"role": "system", "content": system}, *turns(number)], tools=tools())
        for system in systems
        for number in range(4)
    ]
    last = logs.line([{"role": "system", "content": systems[0].replace(" A.", " B.")}, *turns(0)], tools=tools())
    for requests in (lines, [*lines, last]):
        (family,) = result("lint", logs.write(tmp_path / "log.jsonl", requests), "--data", tmp_path)["families"]
        assert family["spans"] == []


@pytest.mark.parametrize("name", ["reminder at the end", "reminder with a counter"])
def test_a_moving_reminder_is_stripped_from_every_message_and_nothing_else(tmp_path: Path, name: str) -> None:
    lines = LOGS[name][1]()
    log = logs.write(tmp_path / "log.jsonl", lines)
    kvproxy("lint", log, "--edits", tmp_path / "kvproxy.toml", "--data", tmp_path, "--block-size", 8)
    edits = load_settings(data=tmp_path).edits
    assert [edit.action for edit in edits] == ["strip"]
    what, why, tokens = (tmp_path / "kvproxy.toml").read_text().splitlines()[2:5]
    assert "moves to later messages: the user message" in what
    assert re.match(
        r"# strip: 'move' keeps \d+% of the saving of 'strip', because each request has the text at its own end;", why
    )
    assert re.match(r"# tokens to compute: [\d,]+ without this edit, [\d,]+ with 'move', [\d,]+ with 'strip'", tokens)
    for number, each in enumerate(lines):
        request = ApiRequest(APIS["chat"], each["body"], b"", {}, "public", "1")
        messages = apply_edits(request, edits).body["messages"]
        assert messages[1:] == turns(number)  # type: ignore[index]


def test_added_tools_cannot_be_called_and_only_join_requests_of_the_agent(tmp_path: Path) -> None:
    lines = compaction()
    log = logs.write(tmp_path / "log.jsonl", lines)
    kvproxy("lint", log, "--edits", tmp_path / "kvproxy.toml", "--data", tmp_path, "--block-size", 8)
    edits = load_settings(data=tmp_path).edits

    def edited(body: Line) -> Line:
        return dict(apply_edits(ApiRequest(APIS["chat"], body, b"", {}, "public", "1"), edits).body)

    summary = lines[4]["body"]
    assert edited(summary) == {**summary, "tools": tools(), "tool_choice": "none"}
    assert edited(lines[0]["body"]) == lines[0]["body"]
    title = logs.line([{"role": "system", "content": "Write a title."}, {"role": "user", "content": "Hello"}])["body"]
    assert edited(title) == title
    claude = {"name": "read", "input_schema": {"type": "object"}}
    edits = (edits[0].model_copy(update={"tools": json.dumps([claude])}),)
    messages = {"model": "demo", "system": SYSTEM, "messages": [{"role": "user", "content": "Hello"}]}
    assert edited(messages) == {**messages, "tools": [claude], "tool_choice": {"type": "none"}}


@pytest.mark.parametrize("fields", ["", 'pattern = "(a)"', 'pattern = "(a)"\ntools = "{}"', 'tools = "[]"'])
def test_an_edit_that_adds_tools_names_them_and_its_requests(tmp_path: Path, fields: str) -> None:
    (tmp_path / "kvproxy.toml").write_text(f'[[edits]]\nname = "a"\naction = "add-tools"\n{fields}\n')
    with pytest.raises(SettingsError, match="add-tools requires a pattern, and tools"):
        load_settings(data=tmp_path)
