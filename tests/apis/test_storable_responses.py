"""Storable responses: complete ones, or those that reached a limit of the request."""

import asyncio
import tracemalloc

import pytest

from kvproxy.apis import APIS
from kvproxy.apis.api import ApiName
from kvproxy.apis.json import JsonObject
from kvproxy.apis.sse import event
from kvproxy.flow.backend_response import UpstreamReader


def chat(reason: str | None, content: str | None = "Hello", **fields: object) -> JsonObject:
    choice: JsonObject = {"index": 0, "message": {"role": "assistant", "content": content}, "finish_reason": reason}
    return {"object": "chat.completion", "choices": [choice], **fields}  # type: ignore[dict-item]


@pytest.mark.parametrize("reason", ["stop", "tool_calls", "function_call", "eos_token"])
def test_complete_responses_are_storable(reason: str) -> None:
    assert APIS["chat"].is_storable(chat(reason), {})
    assert APIS["chat"].is_storable(chat(reason, error=None), {})


@pytest.mark.parametrize("reason", ["abort", "error", "cancelled", "content_filter", "length", "", None, "new_one"])
def test_other_finish_reasons_are_not_storable(reason: str | None) -> None:
    assert not APIS["chat"].is_storable(chat(reason), {})
    whole: JsonObject = {"choices": [{"index": 0, "text": "Hello", "finish_reason": reason}]}
    assert not APIS["completions"].is_storable(whole, {})


@pytest.mark.parametrize("limit", ["max_tokens", "max_completion_tokens"])
def test_a_limit_of_the_request_completes_a_response(limit: str) -> None:
    assert APIS["chat"].is_storable(chat("length"), {limit: 10})
    assert not APIS["chat"].is_storable(chat("length"), {limit: None})


@pytest.mark.parametrize(
    "whole",
    [
        chat("stop", content=None),
        chat("stop", content=""),
        chat("stop", error={"message": "x"}),
        chat("stop", usage=[1]),
        {"choices": [{"index": 0, "finish_reason": "stop"}]},
        {"choices": [{}]},
    ],
)
def test_empty_or_invalid_responses_are_not_storable(whole: JsonObject) -> None:
    assert not APIS["chat"].is_storable(whole, {})


@pytest.mark.parametrize(
    ("reason", "kept"), [("end_turn", True), ("max_tokens", True), ("refusal", False), ("error", False)]
)
def test_storable_messages(reason: str, kept: bool) -> None:
    whole: JsonObject = {"type": "message", "content": [{"type": "text", "text": "x"}], "stop_reason": reason}
    assert APIS["messages"].is_storable(whole, {"max_tokens": 5}) == kept
    assert not APIS["messages"].is_storable({**whole, "content": []}, {"max_tokens": 5})


@pytest.mark.parametrize(
    ("why", "body", "kept"),
    [
        ("max_output_tokens", {"max_output_tokens": 5}, True),
        ("max_output_tokens", {}, False),
        ("content_filter", {"max_output_tokens": 5}, False),
    ],
)
def test_storable_responses(why: str, body: JsonObject, kept: bool) -> None:
    whole: JsonObject = {
        "object": "response",
        "status": "incomplete",
        "incomplete_details": {"reason": why},
        "output": [{"type": "message", "content": []}],
        "error": None,
    }
    assert APIS["responses"].is_storable(whole, body) == kept


def kept_of(name: ApiName, parts: list[bytes]) -> JsonObject | None:
    reader = UpstreamReader(APIS[name], stream=True, limit=1_000_000)
    for part in parts:
        reader.push(part)
    return asyncio.run(reader.result())


@pytest.mark.parametrize("name", ["chat", "messages", "responses"])
def test_an_error_event_invalidates_a_stream(name: ApiName) -> None:
    """Some servers name the event `error` with any data."""
    wholes: dict[str, JsonObject] = {
        "chat": chat("stop"),
        "messages": {"type": "message", "content": [{"type": "text", "text": "x"}], "stop_reason": "end_turn"},
        "responses": {"object": "response", "status": "completed", "output": []},
    }
    parts = list(APIS[name].replay(wholes[name], {}))
    assert kept_of(name, parts) is not None
    error = event({"type": "ping", "object": "chat.completion.chunk", "choices": [], "message": "overloaded"}, "error")
    for place in range(len(parts)):
        assert kept_of(name, [*parts[:place], error, *parts[place:]]) is None


def test_a_null_error_is_ignored() -> None:
    parts = list(APIS["chat"].replay({**chat("stop"), "error": None}, {}))
    assert kept_of("chat", parts) == chat("stop")


def test_stored_responses_without_an_index_are_replayed() -> None:
    whole: JsonObject = {"choices": [{"message": {"content": "Hello there"}, "finish_reason": "stop"}]}
    stream = b"".join(APIS["chat"].replay(whole, {}))
    assert b'"index":0' in stream
    assert b"Hello " in stream


def test_a_large_response_is_not_kept_in_memory() -> None:
    reader = UpstreamReader(APIS["chat"], stream=False, limit=100_000)
    tracemalloc.start()
    for number in range(100):
        reader.push(bytes([number]) * 10_000)
    held, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert held < 100_000
    assert asyncio.run(reader.result()) is None
