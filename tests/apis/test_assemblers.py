"""Single rules of the assemblers."""

from typing import Any

import orjson
import pytest

from kvproxy.apis import APIS
from kvproxy.apis.api import ApiName
from kvproxy.apis.json import JsonObject
from kvproxy.apis.sse import DONE, Event


def together(api: ApiName, *parts: Any) -> JsonObject | None:
    """Assemble events given as JSON, as bytes, or with a name."""
    assembler = APIS[api].assembler()
    for part in parts:
        name, data = part if isinstance(part, tuple) else (b"", part)
        assembler.push(Event(data if isinstance(data, bytes) else orjson.dumps(data), name))
    return assembler.result()


def chunk(delta: JsonObject | None = None, **fields: Any) -> JsonObject:
    choice = {"index": 0, "delta": delta or {}, **fields}
    return {"id": "i", "object": "chat.completion.chunk", "choices": [choice]}


def test_a_null_never_replaces_a_value() -> None:
    whole: Any = together(
        "chat",
        chunk({"role": "assistant", "content": None, "refusal": None}),
        chunk({"role": "assistant", "content": "a"}),
        chunk({"content": None}),
        chunk({"content": "b"}, finish_reason="stop"),
        DONE,
    )
    assert whole["object"] == "chat.completion"
    assert whole["choices"] == [
        {"index": 0, "finish_reason": "stop", "message": {"role": "assistant", "content": "ab", "refusal": None}}
    ]


def test_tool_calls_are_merged_by_index() -> None:
    def call(index: int, **fields: Any) -> JsonObject:
        return chunk({"tool_calls": [{"index": index, **fields}]})

    whole: Any = together(
        "chat",
        call(0, id="a", type="function", function={"name": "f", "arguments": ""}),
        call(0, function={"arguments": '{"x"'}),
        call(1, id="b", function={"name": "g"}),
        call(0, id="a", function={"arguments": ": 1}"}),
        call(1, function={"arguments": None}),
        DONE,
    )
    assert whole["choices"][0]["message"]["tool_calls"] == [
        {"id": "a", "type": "function", "function": {"name": "f", "arguments": '{"x": 1}'}},
        {"id": "b", "function": {"name": "g", "arguments": ""}},
    ]
    with pytest.raises(ValueError, match="out of order"):
        together("chat", call(1, id="b"))
    with pytest.raises(ValueError, match="the same index"):
        together("chat", call(0, id="a"), call(0, id="b"))


def test_log_probabilities_usage_and_several_choices_are_merged() -> None:
    whole: Any = together(
        "chat",
        {"id": "i", "object": "chat.completion.chunk", "usage": {"prompt_tokens": 1}},
        chunk({"content": "a"}, index=1, logprobs={"content": [1], "model": "x"}),
        chunk({"content": "b"}, index=0),
        chunk({}, index=1, logprobs={"content": [2, 3], "refusal": None}),
        {"usage": None, "choices": []},
        DONE,
    )
    assert [choice["index"] for choice in whole["choices"]] == [0, 1]
    assert whole["choices"][1]["logprobs"] == {"content": [1, 2, 3], "model": "x", "refusal": None}
    assert whole["usage"] == {"prompt_tokens": 1}


def block(index: int, kind: str, **fields: Any) -> JsonObject:
    return {"type": "content_block_start", "index": index, "content_block": {"type": kind, **fields}}


def delta(index: int, kind: str, **fields: Any) -> JsonObject:
    return {"type": "content_block_delta", "index": index, "delta": {"type": kind, **fields}}


@pytest.mark.parametrize(
    ("events", "expected"),
    [
        ([block(1, "text")], "out of order"),
        ([delta(0, "text_delta", text="x")], "without a content block"),
        ([block(0, "text"), delta(1, "text_delta", text="x")], "without a content block"),
        ([block(0, "text"), delta(0, "new_delta")], "unknown delta type new_delta"),
    ],
)
def test_invalid_message_streams_raise(events: list[JsonObject], expected: str) -> None:
    with pytest.raises(ValueError, match=expected):
        together("messages", *events)
