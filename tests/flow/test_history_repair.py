"""Restored answers: each change of a client, the changes that stay, and the real client of Anthropic."""

import json
import random
import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from kvproxy.apis import APIS
from kvproxy.apis.api import ApiName
from kvproxy.apis.api_request import ApiRequest
from kvproxy.apis.json import dumps
from kvproxy.flow.prepare.history_repair import HistoryRepair
from kvproxy.settings import load_settings
from tests.anthropic_upstream import AnthropicUpstream
from tests.servers import run_proxy, run_upstream

ARGUMENTS = '{"path":  "a.py", "lines": [1, 2]}'
CALL = {"id": "call_1", "type": "function", "function": {"name": "read", "arguments": ARGUMENTS}}
ANSWER = {"role": "assistant", "content": "Let me  see.\n", "reasoning_content": "Think.", "tool_calls": [CALL]}
BLOCKS = [
    {"type": "thinking", "thinking": "Think.", "signature": "s"},
    {"type": "text", "text": "Let me  see.\n"},
    {"type": "tool_use", "id": "toolu_1", "name": "read", "input": {"path": "a.py", "lines": [1, 2]}},
]
TOOLS = [{"name": "read", "input_schema": {}}, {"name": "write", "input_schema": {}}]


def request(api: ApiName, *messages: Any, tenant: str = "public", **more: Any) -> ApiRequest:
    body = {"model": "m", "thinking": {"type": "enabled"}, "messages": [*messages]} | more
    return ApiRequest(APIS[api], body, dumps(body), {}, tenant, "1")


def user(content: Any) -> Any:
    return {"role": "user", "content": content}


def kinds(request: ApiRequest) -> list[str]:
    return [tag.removeprefix("repaired:") for tag in request.control.tags]


def chat_repair() -> HistoryRepair:
    history = HistoryRepair()
    history.remember(
        request("chat", {"role": "system", "content": "1"}, user("one")), {"choices": [{"message": ANSWER}]}
    )
    return history


def block_repair() -> HistoryRepair:
    history = HistoryRepair()
    history.remember(request("messages", user("one")), {"type": "message", "content": BLOCKS})
    return history


@pytest.mark.parametrize(
    "messages",
    [
        [user("one"), ANSWER],
        [user("one"), {**ANSWER, "reasoning_content": "Other thoughts."}],
        [user("other"), {"role": "assistant", "content": "Let me see.", "tool_calls": [CALL]}],
        [user("one"), {"role": "assistant", "content": "Let me look.", "tool_calls": [CALL]}],
        [user("one"), {"role": "assistant", "content": "Let me see."}],
        [user("one"), user("two"), {"role": "assistant", "content": "Let me see.", "tool_calls": [CALL]}],
    ],
)
def test_other_conversations_and_other_answers_stay(messages: Any) -> None:
    sent = request("chat", *messages, user("next"))
    assert chat_repair().repair(sent) is sent


def test_tenants_and_models_share_no_answers() -> None:
    sent = {"role": "assistant", "content": "Let me see.", "tool_calls": [CALL]}
    assert kinds(chat_repair().repair(request("chat", user("one"), sent))) == ["reasoning", "text"]
    for other in (request("chat", user("one"), sent, tenant="x"), request("chat", user("one"), sent, model="n")):
        assert chat_repair().repair(other) is other


def test_blocks_are_restored_with_the_ids_and_breakpoints_of_the_client() -> None:
    mark = {"cache_control": {"type": "ephemeral"}}
    call = {**BLOCKS[2], "id": "other", "input": {"lines": [1, 2], "path": "a.py"}, **mark}
    sent = [{"type": "text", "text": "Let me see."}, call]
    repaired = block_repair().repair(request("messages", user("one"), {"role": "assistant", "content": sent}))
    content = repaired.body["messages"][1]["content"]  # type: ignore[index,call-overload]
    assert content == [*BLOCKS[:2], {**BLOCKS[2], "id": "other", **mark}]
    assert list(content[2]["input"]) == ["path", "lines"]
    assert kinds(repaired) == ["reasoning", "text", "arguments"]


def test_reasoning_returns_only_to_requests_that_think() -> None:
    sent = {"role": "assistant", "content": BLOCKS[1:]}
    unchanged = request("messages", user("one"), sent, thinking={"type": "disabled"})
    assert block_repair().repair(unchanged) is unchanged
    kept = request("messages", user("one"), {"role": "assistant", "content": BLOCKS}, thinking={"type": "disabled"})
    assert block_repair().repair(kept) is kept


ITEMS: list[Any] = [
    {"type": "reasoning", "id": "rs_1", "summary": [], "encrypted_content": "e"},
    {
        "type": "message",
        "id": "msg_1",
        "role": "assistant",
        "content": [{"type": "output_text", "text": "Let me  see."}],
    },
    {"type": "function_call", "id": "fc_1", "call_id": "call_1", "name": "read", "arguments": ARGUMENTS},
]
OUTPUT = {"type": "function_call_output", "call_id": "call_1", "output": "text"}


def response_repair(output: list[Any]) -> HistoryRepair:
    history = HistoryRepair()
    history.remember(request("responses", input="one"), {"object": "response", "output": output})
    return history


def test_items_of_a_response_are_restored_with_the_ids_of_calls_of_the_client() -> None:
    text = {"role": "assistant", "content": "Let me see."}
    call = {"type": "function_call", "call_id": "other", "name": "read", "arguments": '{"lines":[1,2],"path":"a.py"}'}
    output = {**OUTPUT, "call_id": "other"}
    sent = request("responses", input=[{"role": "user", "content": "one"}, text, call, output])
    repaired = response_repair(ITEMS).repair(sent)
    assert repaired.body["input"] == [
        {"role": "user", "content": "one"}, *ITEMS[:2], {**ITEMS[2], "call_id": "other"}, output
    ]  # fmt: skip
    assert kinds(repaired) == ["reasoning", "text", "arguments"]


@pytest.mark.parametrize(
    ("output", "sent", "more"),
    [
        (ITEMS, ITEMS, {}),
        (ITEMS, ITEMS[2:], {}),
        # The provider may have deleted reasoning that has only an id.
        ([{**ITEMS[0], "encrypted_content": None}, *ITEMS[1:]], ITEMS[1:], {}),
        (ITEMS, ITEMS[1:], {"previous_response_id": "resp_1"}),
    ],
)
def test_items_stay_if_nothing_can_be_restored(output: Any, sent: Any, more: Any) -> None:
    user = {"type": "message", "role": "user", "content": [{"type": "input_text", "text": "one"}]}
    unchanged = request("responses", input=[user, *sent, OUTPUT], **more)
    assert response_repair(output).repair(unchanged) is unchanged


@pytest.mark.parametrize("text", ["<think>\nWhy?\n</think>\n\nYes.", "Why?</think>Yes."])
def test_reasoning_in_the_text_is_restored(text: str) -> None:
    history = HistoryRepair()
    history.remember(request("chat", user("one")), {"choices": [{"message": {"role": "assistant", "content": text}}]})
    repaired = history.repair(request("chat", user("one"), {"role": "assistant", "content": "Yes."}, user("two")))
    assert repaired.body["messages"][1]["content"] == text  # type: ignore[index,call-overload]
    assert kinds(repaired) == ["reasoning"]
    other = request("chat", user("one"), {"role": "assistant", "content": "<think>Other.</think>Yes."}, user("two"))
    assert history.repair(other) is other


def test_tools_return_to_their_first_order() -> None:
    history = HistoryRepair()
    history.repair(request("messages", user("one"), tools=TOOLS))
    repaired = history.repair(request("messages", user("one"), tools=TOOLS[::-1]))
    assert repaired.body["tools"] == TOOLS
    assert kinds(repaired) == ["tools"]
    other = request("messages", user("one"), tools=[TOOLS[1], {**TOOLS[0], "description": "x"}])
    assert history.repair(other) is other


def test_old_answers_are_dropped_at_the_limit() -> None:
    history = HistoryRepair(max_bytes=1_000)
    asked = [request("chat", user(str(number))) for number in range(20)]
    for each in asked:
        history.remember(each, {"choices": [{"message": ANSWER}]})
    sent = {**ANSWER, "content": "Let me see."}
    found = [kinds(history.repair(request("chat", user(str(number)), sent))) for number in range(20)]
    assert found[0] == []
    assert found[-1] == ["text"]


def test_random_conversations_return_to_what_the_backend_sent() -> None:
    draw, history = random.Random(0), HistoryRepair()
    for number in range(100):
        sent: list[Any] = [user(f"{number}")]
        for turn in range(draw.randrange(1, 5)):
            answer: Any = {
                "role": "assistant",
                "content": draw.choice(("Yes. ", " Yes.\n\n- a\n", "", None)),
                "reasoning": f"{turn}",
            }
            if draw.random() < 0.5:
                answer["tool_calls"] = [CALL]
            original = request("chat", *sent)
            history.remember(original, {"choices": [{"message": answer}]})
            sent += [answer, user(f"{turn}")]
        changed = [dict(message) for message in sent]
        for message in changed[1::2]:
            del message["reasoning"]
            message["content"] = (message["content"] or "").strip()
            if "tool_calls" in message:
                function = {"name": "read", "arguments": json.dumps(json.loads(ARGUMENTS))}
                message["tool_calls"] = [{**CALL, "function": function}]
        # Providers reject null as a content without calls.
        expected = [message | {"content": message["content"] or ""} for message in sent]
        assert history.repair(request("chat", *changed)).body["messages"] == expected


RULE = {"name": "agents", "repair_history": True}


def test_the_anthropic_client_that_drops_reasoning_reads_its_whole_history(tmp_path: Path) -> None:
    anthropic = pytest.importorskip("anthropic")
    answers = [
        [{"type": "thinking", "thinking": "Think. " * 200, "signature": f"s{n}"}, {"type": "text", "text": f"Yes {n}."}]
        for n in range(5)
    ]
    upstream = AnthropicUpstream([*answers])
    with run_upstream(upstream.answer) as url:
        settings = load_settings(
            data=tmp_path, upstream=url, rules=({**RULE, "breakpoints": "5m"},), cache={"semantic": False}
        )
        with run_proxy(settings) as (proxy, _), anthropic.Anthropic(api_key="k", base_url=proxy) as client:
            messages: list[Any] = [{"role": "user", "content": "question " * 900}]
            for number in range(5):
                given = {"model": "claude-test", "max_tokens": 9_999, "messages": messages}
                given["thinking"] = {"type": "enabled", "budget_tokens": 2_000}
                if number % 2:
                    with client.messages.stream(**given) as events:
                        answer = events.get_final_message()
                else:
                    answer = client.messages.create(**given)
                text = answer.content[-1].text
                messages += [{"role": "assistant", "content": text}, {"role": "user", "content": f"And {number}?"}]
    for number, body in enumerate(upstream.bodies[1:]):
        content = body["messages"][2 * number + 1]["content"]
        assert [{**block, "cache_control": None} for block in content] == [
            {**b, "cache_control": None} for b in answers[number]
        ]
    for before, usage in zip(upstream.usages, upstream.usages[1:], strict=False):
        assert (
            usage["cache_read_input_tokens"]
            == before["cache_read_input_tokens"] + before["cache_creation_input_tokens"]
        )
    with closing(sqlite3.connect(tmp_path / "journal.db")) as journal, journal:
        tags = [row[0] for row in journal.execute("select tags from requests order by number")]
    assert "repaired:reasoning" in tags[1]


def test_a_message_of_a_thread_is_not_repaired() -> None:
    history = block_repair()
    stripped = {"role": "assistant", "content": [{**BLOCKS[1], "text": "Let me see."}, BLOCKS[2]]}
    sent = request("messages", user("one"), stripped)
    assert kinds(history.repair(sent)) == ["reasoning", "text"]
    sent = request("messages", user("one"), stripped, thread={"type": "continue", "previous_message_id": "msg_1"})
    assert kinds(history.repair(sent)) == []
