"""Storable responses: complete ones, or those that reached a limit of the request."""

import asyncio
import tracemalloc

import pytest

from kvproxy.apis import APIS
from kvproxy.apis.api import ApiName
from kvproxy.apis.json import Json, JsonObject
from kvproxy.apis.not_stored import UnstorableResponse
from kvproxy.apis.sse import encode_event
from kvproxy.flow.backend_response import UpstreamReader


def chat(reason: str | None, content: str | None = "Hello", **fields: object) -> JsonObject:
    choice: JsonObject = {"index": 0, "message": {"role": "assistant", "content": content}, "finish_reason": reason}
    return {"object": "chat.completion", "choices": [choice], **fields}  # type: ignore[dict-item]


TEXT: JsonObject = {"type": "text", "text": "x"}
LIMITS: JsonObject = {"max_tokens": 5, "max_output_tokens": 5}


def completion(reason: str | None) -> JsonObject:
    return {"choices": [{"index": 0, "text": "Hello", "finish_reason": reason}]}


def message(reason: str | None, *content: JsonObject) -> JsonObject:
    return {"type": "message", "content": list[Json](content), "stop_reason": reason}


def response(status: str, reason: str | None = None, output: Json = None) -> JsonObject:
    items: Json = [{"type": "message", "content": []}] if output is None else output
    return {"object": "response", "status": status, "incomplete_details": {"reason": reason}, "output": items}


@pytest.mark.parametrize(
    ("name", "whole", "body"),
    [
        *(("chat", chat(reason), {}) for reason in ("stop", "tool_calls", "function_call", "eos_token")),
        ("chat", chat("stop", error=None), {}),
        ("chat", chat("length"), {"max_tokens": 10}),
        ("chat", chat("length"), {"max_completion_tokens": 10}),
        ("messages", message("end_turn", TEXT), {}),
        ("messages", message("max_tokens", TEXT), {}),
        ("responses", response("completed"), {}),
        ("responses", response("incomplete", "max_output_tokens"), LIMITS),
        ("embeddings", {"data": [{"embedding": [1]}]}, {}),
        ("embeddings", {"data": [{"embedding": [1]}], "error": None}, {}),
    ],
)
def test_complete_responses_are_storable(name: ApiName, whole: JsonObject, body: JsonObject) -> None:
    assert APIS[name].is_storable(whole, body)


REASONS = ("abort", "error", "cancelled", "content_filter", "length", "", None, "new_one")


@pytest.mark.parametrize(
    ("name", "whole", "body"),
    [
        *(("chat", chat(reason), {"max_tokens": None}) for reason in REASONS),
        *(("completions", completion(reason), {}) for reason in REASONS),
        *(("messages", message(reason, TEXT), LIMITS) for reason in ("refusal", "error", "pause_turn", None)),
        ("chat", chat("stop", content=None), LIMITS),
        ("chat", chat("stop", content=""), LIMITS),
        ("chat", chat("stop", error={"message": "x"}), LIMITS),
        ("chat", chat("stop", usage=[1]), LIMITS),
        ("chat", {"choices": [{"index": 0, "finish_reason": "stop"}]}, LIMITS),
        ("chat", {"choices": [{}]}, LIMITS),
        ("chat", {"choices": []}, LIMITS),
        ("chat", {"choices": 5}, LIMITS),
        ("chat", {"choices": [None]}, LIMITS),
        ("embeddings", {"data": [{"embedding": []}]}, LIMITS),
        ("embeddings", {"data": [{"embedding": [1]}, {}]}, LIMITS),
        ("embeddings", {"data": [{"embedding": [1]}], "error": {}}, LIMITS),
        ("embeddings", {"data": []}, LIMITS),
        ("messages", message("end_turn"), LIMITS),
        ("messages", {"type": "error", "error": {}}, LIMITS),
        ("responses", response("incomplete", "max_output_tokens"), {}),
        ("responses", response("incomplete", "content_filter"), LIMITS),
        ("responses", response("in_progress"), LIMITS),
        ("responses", response("completed", output=[]), LIMITS),
        ("responses", {**response("failed"), "error": {"code": "x"}}, LIMITS),
    ],
)
def test_other_responses_are_not_storable(name: ApiName, whole: JsonObject, body: JsonObject) -> None:
    assert not APIS[name].is_storable(whole, body)


def chunk(delta: JsonObject, reason: str | None = None) -> bytes:
    return encode_event({"id": "x", "choices": [{"index": 0, "delta": delta, "finish_reason": reason}]})


MORE, STOP, DONE = chunk({"content": "Hello"}), chunk({}, "stop"), encode_event(b"[DONE]")


@pytest.mark.parametrize(
    ("stream", "storable"),
    [
        (MORE + STOP + DONE, True),
        (encode_event({"choices": [None]}) + STOP + DONE, False),
        (MORE + STOP + chunk({}, "length") + STOP + DONE, False),
        (MORE + STOP + DONE + MORE, False),
        (MORE + STOP + MORE + DONE, False),
        (MORE + DONE, False),
        (MORE, False),
        # Complete streams in unusual forms.
        (MORE + STOP, True),
        (MORE + STOP + b"data: [DONE]", True),
        (MORE + STOP + b"data: [DONE]\n", True),
        (MORE + STOP + b"data: [DONE]\n\r\n", True),
        (b"\xef\xbb\xbf" + MORE + STOP + DONE, True),
        (MORE + STOP + MORE + STOP + DONE, True),
        (MORE + STOP + chunk({}, "") + DONE, True),
        (MORE + STOP + b'data: {"choices', False),
    ],
)
def test_a_storable_stream_is_complete_and_ends(stream: bytes, storable: bool) -> None:
    reader = UpstreamReader(APIS["chat"], stream=True, limit=100_000)
    reader.push(stream)
    try:
        whole = asyncio.run(reader.result())
    except UnstorableResponse:
        assert not storable
    else:
        assert APIS["chat"].is_storable(whole, {}) == storable


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
    with pytest.raises(UnstorableResponse, match="too-large"):
        asyncio.run(reader.result())
