"""Replay and assembly of each API are inverse, and incomplete responses are not stored."""

import asyncio
from functools import cache
from itertools import cycle
from typing import Any

import orjson
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import TypeAdapter

from kvproxy.apis import APIS
from kvproxy.apis.api import ApiName, response_for_client
from kvproxy.apis.json import JsonObject, as_object, loads
from kvproxy.apis.not_stored import UnstorableResponse
from kvproxy.apis.sse import DONE, Event, EventReader, encode_event
from kvproxy.flow.backend_response import UpstreamReader

TEXTS = st.text(max_size=30)
LIMITED: JsonObject = {"max_tokens": 5, "max_output_tokens": 5}
ARGUMENTS = st.dictionaries(st.sampled_from("abc"), st.one_of(st.integers(-(2**63), 2**63), TEXTS), max_size=2)


@st.composite
def chats(draw: st.DrawFn) -> dict[str, Any]:
    whole: dict[str, Any] = {"id": "i", "object": "chat.completion", "model": "m", "choices": []}
    for index in range(draw(st.integers(1, 3))):
        message: dict[str, Any] = {"role": "assistant", "content": draw(TEXTS)}
        if draw(st.booleans()):
            function = {"name": "f", "arguments": '{"a": 1}'}
            message["tool_calls"] = [{"id": str(n), "type": "function", "function": function} for n in range(2)]
        reason = draw(st.sampled_from(["stop", "length"]))
        whole["choices"].append({"index": index, "message": message, "finish_reason": reason})
    return whole | {"usage": {"prompt_tokens": 3}}


completions = st.builds(
    lambda text: {"object": "text_completion", "choices": [{"index": 0, "text": text, "finish_reason": "stop"}]}, TEXTS
)

BLOCKS = st.one_of(
    st.builds(lambda text: {"type": "text", "text": text}, TEXTS),
    st.builds(
        lambda text: {"type": "text", "text": text, "citations": [{"cited_text": text}, {"cited_text": "b"}]}, TEXTS
    ),
    st.builds(lambda text: {"type": "thinking", "thinking": text, "signature": "s"}, TEXTS),
    st.builds(lambda given: {"type": "tool_use", "id": "t", "name": "f", "input": given}, ARGUMENTS),
    st.just({"type": "redacted_thinking", "data": "x"}),
)
messages = st.builds(
    lambda content, reason: {
        "id": "msg",
        "type": "message",
        "role": "assistant",
        "model": "m",
        "content": content,
        "stop_reason": reason,
        "stop_sequence": None,
        "usage": {"input_tokens": 3, "output_tokens": 5},
    },
    st.lists(BLOCKS, max_size=4),
    st.sampled_from(["end_turn", "max_tokens", "tool_use"]),
)

PARTS = st.one_of(
    st.builds(lambda text: {"type": "output_text", "text": text, "annotations": [], "logprobs": []}, TEXTS),
    st.builds(lambda text: {"type": "refusal", "refusal": text}, TEXTS),
)
ITEMS = st.one_of(
    st.builds(
        lambda parts: {"type": "message", "id": "m", "role": "assistant", "status": "completed", "content": parts},
        st.lists(PARTS, max_size=2),
    ),
    st.just({"type": "function_call", "id": "f", "call_id": "c", "name": "n", "arguments": "{}"}),
    st.just({"type": "reasoning", "id": "r", "summary": []}),
)
responses = st.builds(
    lambda output: {"id": "resp", "object": "response", "status": "completed", "model": "m", "output": output},
    st.lists(ITEMS, max_size=3),
)
WHOLES = st.one_of(
    st.tuples(st.just("chat"), chats()),
    st.tuples(st.just("completions"), completions),
    st.tuples(st.just("messages"), messages),
    st.tuples(st.just("responses"), responses),
)


def assembled(name: ApiName, parts: list[bytes]) -> JsonObject | None:
    """Return the storable response of a stream."""
    reader = UpstreamReader(APIS[name], stream=True, limit=1_000_000)
    for part in parts:
        reader.push(part)
    try:
        whole = asyncio.run(reader.result())
    except UnstorableResponse:
        return None
    return whole if APIS[name].is_storable(whole, LIMITED) else None


@cache
def stream_event() -> TypeAdapter[Any]:
    """Return the type of all events; importing it takes most of a second, and every process collects this file."""
    from openai.types.responses import ResponseStreamEvent

    return TypeAdapter(ResponseStreamEvent)


@pytest.mark.parametrize(
    ("kind", "fields", "states"),
    [
        ("web_search_call", {"status": "completed"}, "in_progress searching completed"),
        ("file_search_call", {"queries": ["q"], "status": "completed"}, "in_progress searching completed"),
        ("image_generation_call", {"result": "", "status": "completed"}, "in_progress generating completed"),
        ("code_interpreter_call", {"code": "1", "status": "completed"}, "in_progress interpreting completed"),
        ("mcp_call", {"name": "f", "server_label": "s", "arguments": "{}", "error": None}, "in_progress completed"),
        ("mcp_call", {"name": "f", "server_label": "s", "arguments": "{}", "error": "no"}, "in_progress failed"),
        ("mcp_list_tools", {"server_label": "s", "tools": []}, "in_progress completed"),
    ],
)
def test_hosted_tools_are_replayed_with_their_states(kind: str, fields: JsonObject, states: str) -> None:
    whole: JsonObject = {"object": "response", "status": "completed", "output": [{"id": "i", "type": kind, **fields}]}
    events = [as_object(loads(each.data)) for each in EventReader().push(b"".join(APIS["responses"].replay(whole, {})))]
    found = [event for event in events if str(event["type"]).startswith(f"response.{kind}.")]
    assert [event["type"] for event in found] == [f"response.{kind}.{state}" for state in states.split()]
    for event in found:
        stream_event().validate_python(event)


@settings(deadline=None)
@given(WHOLES, st.lists(st.integers(1, 200), min_size=1, max_size=5))
def test_replay_and_assembly_are_inverse(given_whole: tuple[ApiName, JsonObject], sizes: list[int]) -> None:
    name, whole = given_whole
    api = APIS[name]
    stream = b"".join(api.replay(whole, {"stream_options": {"include_usage": True}}))
    reader, start, cuts = UpstreamReader(api, stream=True, limit=1_000_000), 0, cycle(sizes)
    while start < len(stream):
        end = start + next(cuts)
        assert reader.push(stream[start:end]) == (end >= len(stream))
        start = end
    assert loads(response_for_client(orjson.dumps(asyncio.run(reader.result())))) == whole


@settings(deadline=None)
@given(WHOLES)
def test_an_incomplete_or_failed_stream_is_not_storable(given_whole: tuple[ApiName, JsonObject]) -> None:
    name, whole = given_whole
    parts = list(APIS[name].replay(whole, {}))
    # A stream with a finish reason may omit `[DONE]`.
    assert assembled(name, parts[: -2 if parts[-1] == encode_event(DONE) else -1]) is None
    # Some servers name the event `error` with any data.
    named = encode_event(
        {"type": "ping", "object": "chat.completion.chunk", "choices": [], "message": "overloaded"}, "error"
    )
    for bad in (b"data: {no json\n\n", b"data: 5\n\n", b'data: {"type": "error", "error": {}}\n\n', named):
        assert assembled(name, [parts[0], bad, *parts[1:]]) is None
        assert assembled(name, [bad, *parts]) is None


FIELDS = ["role", "content", "type", "text", "messages", "input", "prompt", "format", "tools"]
ODD = st.recursive(
    st.one_of(st.none(), st.booleans(), st.integers(-9, 9), st.text(max_size=3)),
    lambda inner: st.one_of(st.lists(inner, max_size=3), st.dictionaries(st.sampled_from(FIELDS), inner, max_size=3)),
    max_leaves=8,
)


@settings(deadline=None)
@given(st.sampled_from(list(APIS)), st.dictionaries(st.sampled_from(FIELDS), ODD))
def test_any_json_body_has_a_key(name: str, body: dict[str, Any]) -> None:
    api = APIS[name]
    api.question(body)
    assert isinstance(api.display_text(body), str)
    api.is_cacheable(body)


def test_embeddings_are_not_streamed() -> None:
    parts = [b'data: {"choices": [], "data": [{"embedding": [1]}]}\n\n', b"data: [DONE]\n\n"]
    assert assembled("embeddings", parts[:1]) is None
    with pytest.raises(NotImplementedError):
        APIS["embeddings"].replay({}, {})


def together(api: ApiName, *parts: Any) -> JsonObject:
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
    with pytest.raises(ValueError, match=r"unmergeable field tool_calls\.id"):
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
        ([block(1, "text")], "unmergeable field content"),
        ([delta(0, "text_delta", text="x")], "without a content block"),
        ([block(0, "text"), delta(1, "text_delta", text="x")], "without a content block"),
        ([block(0, "text"), delta(0, "new_delta")], "unmergeable field new_delta"),
    ],
)
def test_invalid_message_streams_raise(events: list[JsonObject], expected: str) -> None:
    with pytest.raises(ValueError, match=expected):
        together("messages", *events)
