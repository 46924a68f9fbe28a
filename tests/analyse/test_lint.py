"""Lint finds changing spans; its predictions equal the reuse of an engine."""

import json
import random
import re
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kvproxy.analyse.changed_spans import find_changed_span, move_edit, strip_edits
from kvproxy.apis import APIS
from kvproxy.apis.api_request import ApiRequest
from kvproxy.apis.codecs.codec import Conversation
from kvproxy.flow.prepare.prompt_edits import apply_edits
from kvproxy.settings import load_settings
from kvproxy.settings.rules import EditSettings
from tests.analyse import logs
from tests.commands.run import kvproxy

TAIL = logs.words("the rest of the system prompt", 60)


def edited(body: dict[str, Any], edits: Sequence[EditSettings]) -> Any:
    return apply_edits(ApiRequest(APIS["chat"], body, b"", {}, "public", "1"), edits).body


def after(edit: EditSettings, form: Conversation) -> Any:
    return edited({"model": "m", "messages": list(form.messages), "tools": list(form.tools)}, [edit])["messages"]


def conversation(system: str, *said: str) -> Conversation:
    return Conversation(({"role": "system", "content": system}, *({"role": "user", "content": text} for text in said)))


CHANGING: dict[str, Callable[[int], str]] = {
    "date": lambda n: f"2026-11-{n % 28 + 1:02d}",
    "time": lambda n: f"{n % 24:02d}:{n % 60:02d}",
    "id": lambda n: f"7c2e{n:04x}-53ab-4cde-9f00-{n:012x}",
    "number": lambda n: f"{1000 + n}",
    "text": lambda n: f"{'abcdefg'[n % 7] * 4} of Bern",
    "billing header": lambda n: f"x-anthropic-billing-header: cc_version=2.1; cch={n:05x};\nHere",
}


def test_a_moved_date_keeps_the_words_before_it() -> None:
    old, new = (conversation(f"Now: 2026-11-{day}. {TAIL}", "A question.") for day in (28, 29))
    span = find_changed_span(old, new)
    assert span is not None
    (edit, *_) = strip_edits(span, with_lead=True)
    assert after(move_edit(edit), new)[-1]["content"].endswith("Now: 2026-11-29")


@pytest.mark.parametrize("kind", CHANGING)
@given(one=st.integers(0, 400), other=st.integers(0, 400), lead=st.sampled_from(["", "Be kind. ", "Line one.\nNow: "]))
@settings(max_examples=12, deadline=None)
def test_the_edit_of_a_changing_span_makes_prompts_equal(kind: str, one: int, other: int, lead: str) -> None:
    def prompt(n: int) -> Conversation:
        return conversation(f"{lead}{CHANGING[kind](n)} is it. {TAIL}", "A question.")

    span = find_changed_span(prompt(one), prompt(other))
    if CHANGING[kind](one) == CHANGING[kind](other):
        assert span is None
        return
    assert span is not None
    assert (span.region, span.kind) == ("system prompt", kind)
    assert span.recomputed_words >= 50
    edit = strip_edits(span)[0]
    stripped = [after(edit, prompt(n)) for n in (one, other, one + other)]
    assert stripped[0] == stripped[1] == stripped[2]
    moved = after(move_edit(edit), prompt(one))
    assert moved[-1]["content"].startswith("A question.")
    assert span.old in moved[-1]["content"]
    assert moved[0] == stripped[0][0]


@pytest.mark.parametrize(
    ("old", "new"),
    [
        (conversation(TAIL, "One question."), conversation(TAIL, "Another one, and longer.")),
        (conversation(TAIL, "One."), conversation(TAIL, "One.", "Two.")),
        (conversation("Another prompt altogether."), conversation(TAIL)),
        (conversation(TAIL), conversation(TAIL)),
        ("A text.", conversation(TAIL)),
    ],
)
def test_other_questions_and_prompts_have_no_span(old: Any, new: Any) -> None:
    assert find_changed_span(old, new) is None


def test_tools_in_another_order_are_sorted() -> None:
    tools: list[Any] = [{"function": {"name": name, "description": TAIL}} for name in "abc"]
    one = Conversation(({"role": "user", "content": "Go."},), tuple(tools))
    other = Conversation(one.messages, tuple(reversed(tools)))
    span = find_changed_span(one, other)
    assert span is not None
    assert span.kind == "order of tools"
    body = {"model": "m", "messages": list(other.messages), "tools": list(other.tools)}
    assert edited(body, strip_edits(span))["tools"] == list(one.tools)


def test_properties_in_another_order_are_sorted() -> None:
    def tool(*names: str) -> Any:
        properties = {name: {"type": "string", "description": TAIL} for name in names}
        return {"type": "function", "function": {"name": "f", "parameters": {"properties": properties}}}

    message = {"role": "user", "content": "Go."}
    one, other = (Conversation((message,), (tool(*names),)) for names in ("ab", "ba"))
    span = find_changed_span(one, other)
    assert span is not None
    assert span.kind == "order of properties"
    bodies = [{"model": "m", "messages": [message], "tools": list(form.tools)} for form in (one, other)]
    sorted_tools = [json.dumps(edited(body, strip_edits(span))["tools"]) for body in bodies]
    assert sorted_tools[0] == sorted_tools[1]


def found(file: Path, *more: object) -> dict[str, Any]:
    result = kvproxy("lint", file, "--data", file.parent, "--json", *more)
    document: dict[str, Any] = json.loads(result.stdout)
    return document | {"code": result.returncode}


def test_the_predicted_reuse_equals_the_reuse_of_the_engine(tmp_path: Path) -> None:
    lines = [each | {"response": None} for each in logs.agents(2, 2, head="Request {n} of today. ")]
    report = found(logs.write(tmp_path / "log.jsonl", lines))
    (family,) = report["families"]
    (span,) = family["spans"]
    assert (span["kind"], span["role"]) == ("number", "system")
    stripped = json.loads(json.dumps(lines))
    for each in stripped:
        system = each["body"]["messages"][0]
        system["content"] = re.sub(r"^Request \d+", "Request ", system["content"])
    before, after = (reused / total for reused, total in logs.live_prefix([lines, stripped], tmp_path / "data", 512))
    assert family["share"] == pytest.approx(before, abs=0.02)
    tokens = span["stripped"] + span["stripped_computed"]
    assert tokens < family["prompt_tokens"]
    assert span["stripped"] / tokens == pytest.approx(after, abs=0.02)
    assert span["stripped"] > 4 * family["reused"]


def test_the_written_edits_compute_as_many_tokens_as_lint_reports(tmp_path: Path) -> None:
    lines = logs.agents(3, 3, head="Request {n} of 2026-01-{n:02d}. ")
    log = logs.write(tmp_path / "log.jsonl", lines)
    spans = found(log, "--edits", tmp_path / "kvproxy.toml")["families"][0]["spans"]
    told = json.loads(kvproxy("estimate", log, "--data", tmp_path, "--json").stdout)["prefix_alone"]
    assert told["prompt_tokens"] - told["unlimited"] == spans[-1]["moved_computed"]
    assert spans[-1]["stripped_computed"] < spans[-1]["moved_computed"]


def test_an_edit_has_the_money_that_it_saves(tmp_path: Path) -> None:
    log = logs.write(tmp_path / "log.jsonl", logs.agents(3, 3, head="Request {n} of 2026-01-{n:02d}. "))
    assert found(log)["families"][0]["spans"][0]["saved_money"] is None
    (tmp_path / "kvproxy.toml").write_text("[journal.prices.demo]\ninput = 2\ncached = 0.2\noutput = 8\n")
    (family, *_) = found(log)["families"]
    span = family["spans"][0]
    computed = family["prompt_tokens"] - family["reused"]
    saved = (computed - span["moved_computed"]) * 2 + (family["reused"] - span["moved"]) * 0.2
    assert (span["suggested"], span["saved_money"]) == ("move", pytest.approx(saved / 1e6))
    shown = kvproxy("lint", log, "--data", tmp_path).stdout
    assert "USD of the input, if the provider caches it\n" in shown


def test_the_money_of_an_edit_has_the_price_of_the_service_tier(tmp_path: Path) -> None:
    (tmp_path / "kvproxy.toml").write_text('[journal.prices."gpt-5"]\ninput = 2\ncached = 0.2\noutput = 8\n')
    money = []
    for tier in ({}, {"service_tier": "flex"}):
        rows = logs.agents(2, 2, head="Request {n} of 2026-01-{n:02d}. ")
        answer = {
            "choices": [{"message": {"content": "ok"}}],
            "usage": {"prompt_tokens": 9_000, "completion_tokens": 1},
        }
        rows = [{**row, "body": {**row["body"], "model": "gpt-5", **tier}, "response": answer} for row in rows]
        money.append(found(logs.write(tmp_path / "log.jsonl", rows))["families"][0]["spans"][0]["saved_money"])
    assert money[1] == pytest.approx(money[0] / 2)
    assert money[0] > 0


def test_the_money_of_an_edit_has_the_tokens_that_the_provider_counts(tmp_path: Path) -> None:
    """OpenAI caches steps of 128 tokens; the demonstration model's tokenizer counts more tokens."""
    system = logs.words("system", 1_100)
    lines = [
        logs.line(
            [
                {"role": "system", "content": f"Request {number} of 2026-01-{number:02d}. {system}"},
                {"role": "user", "content": f"Question {number}?"},
            ],
            model="gpt-4.1",
        )
        for number in range(11, 16)
    ]
    usage = {"prompt_tokens": 1_284, "completion_tokens": 1, "prompt_tokens_details": {"cached_tokens": 0}}
    answer = {
        "object": "chat.completion",
        "choices": [{"message": {"role": "assistant", "content": "ok"}}],
        "usage": usage,
    }
    (without,) = found(logs.write(tmp_path / "log.jsonl", lines))["families"]
    assert (without["spans"][0]["saved_money"], without["billed_tokens"]) == (None, None)
    assert "give --tokenizer" in without["without_money"]
    (family,) = found(logs.write(tmp_path / "usage.jsonl", [{**line, "response": answer} for line in lines]))[
        "families"
    ]
    assert family["billed_tokens"] == 5 * 1_284 != family["prompt_tokens"]
    # Four of the prompts save 75% of 2 USD for a million tokens.
    # The moved text has more tokens at its new place.
    assert 0.98 * 4 * 1_152 * 1.5e-6 < sum(span["saved_money"] for span in family["spans"]) <= 4 * 1_152 * 1.5e-6
    assert family["without_money"] is None


def test_the_money_of_an_edit_has_the_price_of_the_writes_that_it_prevents(tmp_path: Path) -> None:
    (tmp_path / "kvproxy.toml").write_text(
        '[journal.prices."claude-*"]\ninput = 3\ncached = 0.3\nwrite_5m = 3.75\nwrite_1h = 6\noutput = 15\n'
    )

    def saved_money(read: int, short: int, hour: int) -> float:
        usage = {
            "input_tokens": 4_000 - read - short - hour,
            "cache_read_input_tokens": read,
            "cache_creation_input_tokens": short + hour,
            "cache_creation": {"ephemeral_5m_input_tokens": short, "ephemeral_1h_input_tokens": hour},
            "output_tokens": 1,
        }
        answer = {"type": "message", "role": "assistant", "content": [{"type": "text", "text": "ok"}], "usage": usage}
        system = logs.words("system", 2_100)
        lines = [
            logs.line(
                [{"role": "user", "content": f"Question {number}?"}],
                model="claude-sonnet-4-5",
                system=f"Request {number} of 2026-01-{number:02d}. {system}",
                max_tokens=9,
            )
            for number in range(11, 16)
        ]
        rows = [{**line, "path": "/v1/messages", "response": answer} for line in lines]
        (family,) = found(logs.write(tmp_path / "log.jsonl", rows))["families"]
        return sum(span["saved_money"] for span in family["spans"])

    plain = saved_money(0, 0, 0)
    assert saved_money(0, 4_000, 0) == pytest.approx(plain * 3.45 / 2.7, rel=0.01)
    assert saved_money(0, 0, 4_000) == pytest.approx(plain * 5.7 / 2.7, rel=0.01)
    # What the provider reused already, an edit does not save.
    assert saved_money(1_000, 0, 0) < plain - 4 * 900 * 2.7e-6


def test_suggested_edits_are_valid_settings(tmp_path: Path) -> None:
    log = logs.write(tmp_path / "log.jsonl", logs.agents(3, 3, head='Request {n} of "today". '))
    kvproxy("lint", log, "--data", tmp_path, "--edits", tmp_path / "kvproxy.toml")
    (edit,) = load_settings(data=tmp_path).edits
    assert (edit.action, edit.role, edit.model) == ("move", "system", "demo")
    system = {"role": "system", "content": 'Request 17 of "today". Go on.'}
    body = {"model": "demo", "messages": [system, {"role": "user", "content": "Hello"}]}
    contents = [message["content"] for message in edited(body, [edit])["messages"]]
    assert contents == ['Request  of "today". Go on.', "Hello\n\nRequest 17"]


def test_families_are_separated_despite_changing_spans(tmp_path: Path) -> None:
    chance = random.Random(3)
    lines = []
    for number in range(30):
        name, date = chance.choice(["cook", "clerk", "guard"]), f"2026-01-{number % 28 + 1:02d}"
        system = f"Today is {date}. You are a {name}. {logs.words(name, 60)}"
        asked = {"role": "user", "content": f"Question {number}"}
        lines.append(logs.line([{"role": "system", "content": system}, asked]))
    families = found(logs.write(tmp_path / "log.jsonl", lines))["families"]
    sizes = [family["requests"] for family in families]
    assert (len(sizes), sizes) == (3, sorted(sizes, reverse=True))
    assert all(family["spans"][0]["kind"] == "date" for family in families)


def mixed_log(path: Path, spans: list[str], head: str = "") -> tuple[Path, list[Any]]:
    system = "You are the help desk. " + logs.words("help", 60)
    prompts = [(f"{head}{span}{system}", logs.words(number, 20)) for number, span in enumerate(spans)]
    lines = [
        logs.line([{"role": "system", "content": first}, {"role": "user", "content": question}])
        for first, question in prompts
    ]
    return logs.write(path / "log.jsonl", lines), lines


DATES = ["" if n % 4 else f"Today is 2026-11-{n % 7 + 20}. " for n in range(40)]


@pytest.mark.parametrize(
    ("head", "absent"), [("", ""), ("Be kind. ", ""), ("Be kind.\n", "\n"), ("Be kind. ", "Answer in one sentence. ")]
)
def test_edits_keep_prompts_without_the_changing_span(tmp_path: Path, head: str, absent: str) -> None:
    log, lines = mixed_log(tmp_path, [date or absent for date in DATES], head)
    found(log, "--edits", tmp_path / "kvproxy.toml")
    edits = load_settings(data=tmp_path).edits
    assert edits
    for date, each in zip(DATES, lines, strict=True):
        changed = edited(each["body"], edits)
        if not date:
            assert changed == each["body"]
        else:
            system, question = (message["content"] for message in changed["messages"])
            assert "2026" not in system
            assert "You are the help desk. " in system
            assert date.split()[-1][:-1] in question
            assert absent or "Today" not in system


def test_an_edit_takes_the_first_word_and_its_pattern_contains_whole_words(tmp_path: Path) -> None:
    names = ("blue", "green", "violet", "red", "orange", "yellow")
    log, lines = mixed_log(tmp_path, [f"Session {name} You are the support agent. " for name in names])
    found(log, "--edits", tmp_path / "kvproxy.toml")
    (edit,) = load_settings(data=tmp_path).edits
    assert (edit.pattern, edit.lead) == (r"(Session .*?) You are the support ", "")
    system, question = (message["content"] for message in edited(lines[2]["body"], [edit])["messages"])
    assert system.strip().startswith("You are the support agent.")
    assert question.endswith("Session violet")
    span = find_changed_span(*(conversation(f"The kind agent answers about {name}. {TAIL}") for name in names[:2]))
    assert span is not None
    assert span.before == " agent answers about "


def test_installed_edits_are_applied_before_the_analysis(tmp_path: Path) -> None:
    log = logs.write(tmp_path / "log.jsonl", logs.agents(3, 3, head="Request {n} of today. "))
    assert found(log, "--edits", tmp_path / "kvproxy.toml")["families"][0]["spans"]
    assert not found(log)["families"][0]["spans"]
