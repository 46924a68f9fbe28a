"""Requests and responses pass unchanged; `tests/apis/test_storable_responses.py` has the responses that are not stored."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from starlette.requests import Request
from starlette.responses import JSONResponse, Response, StreamingResponse

from kvproxy.apis.sse import encode_event
from kvproxy.http.services import Services
from tests.polling import until
from tests.requests import chat
from tests.servers import run_front, run_upstream, until_stored
from tests.statuses import makes_entry

MESSAGE = {"role": "assistant", "content": "Hello there"}
WHOLE: dict[str, Any] = {
    "id": "x",
    "object": "chat.completion",
    "vendor": {"kept": True},
    "choices": [{"index": 0, "message": MESSAGE, "finish_reason": "stop"}],
}
USAGE = {"prompt_tokens": 662, "completion_tokens": 3, "prompt_tokens_details": {"cached_tokens": 645}}
ERROR = JSONResponse({"error": {"message": "broken", "type": "server_error"}}, 500, {"x-vendor": "1"})
ANSWERS = {"reused": JSONResponse(WHOLE | {"usage": USAGE}), "error": ERROR}


def chunk(delta: object, finish_reason: str | None = None) -> bytes:
    choice = {"index": 0, "delta": delta, "finish_reason": finish_reason}
    return encode_event({"id": "x", "object": "chat.completion.chunk", "choices": [choice]})


STREAM = chunk(MESSAGE) + chunk({}, "stop") + encode_event(b"[DONE]")
STREAMS = {
    "in small parts": [STREAM[start : start + 7] for start in range(0, len(STREAM), 7)],
    "reused": [encode_event({**WHOLE, "object": "chat.completion.chunk", "choices": [], "usage": USAGE}) + STREAM],
    "talks of [DONE]": [STREAM.replace(b"Hello there", b"say data: [DONE] now")],
}


class Odd:
    """A server whose answer depends on the model's name."""

    def __init__(self) -> None:
        self.seen: list[Request] = []

    async def answer(self, request: Request) -> Response:
        if request.method != "POST":
            return Response()
        body = await request.json()
        self.seen.append(request)
        model = body["model"]
        if body.get("stream"):
            return StreamingResponse(self.stream(model), media_type="text/event-stream")
        return ANSWERS.get(model) or JSONResponse(WHOLE, headers={"x-request-id": "upstream"})

    async def stream(self, model: str) -> AsyncIterator[bytes]:
        for part in STREAMS.get(model, [STREAM]):
            yield part


@pytest.fixture(scope="module")
def odd(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[httpx.Client, Services, Odd]]:
    server = Odd()
    data: Path = tmp_path_factory.mktemp("odd")
    with (
        run_upstream(server.answer) as target,
        run_front(data, f"{target}/v1") as (url, services),
        httpx.Client(base_url=url, timeout=300) as client,
    ):
        yield client, services, server


def post(client: httpx.Client, model: str, *, stream: bool = False, **headers: str) -> httpx.Response:
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    return client.post("/v1/chat/completions", json=chat(model=model, stream=stream), headers=named)


@contextlib.contextmanager
def nothing_stored(services: Services) -> Iterator[None]:
    until_stored(services)
    before = services.cache.store.count()
    yield
    until(lambda: not services.path.requests_in_flight)
    until_stored(services)
    assert services.cache.store.count() == before


def test_an_error_passes_and_is_not_stored(odd: tuple[httpx.Client, Services, Odd]) -> None:
    with nothing_stored(odd[1]):
        for _ in range(2):
            answer = post(odd[0], "error")
            assert (answer.status_code, answer.content, answer.headers["x-vendor"]) == (500, ERROR.body, "1")
            assert not makes_entry(answer.headers["cache-status"])
            assert "fwd-status=500" in answer.headers["cache-status"]


def test_bytes_pass_untouched_and_come_back_from_the_cache(odd: tuple[httpx.Client, Services, Odd]) -> None:
    client, _, server = odd
    fields = {"vendor_option": [1, {"a": None}]}
    headers = {"authorization": "Bearer secret"}
    first = client.post("/v1/chat/completions?api-version=1", json=chat(**fields), headers=headers)
    seen = server.seen[-1]
    assert seen.headers["authorization"] == "Bearer secret"
    assert (seen.scope["raw_path"], seen.scope["query_string"]) == (b"/v1/chat/completions", b"api-version=1")
    assert asyncio.run(seen.body()) == first.request.content
    assert first.headers.get_list("x-request-id") == ["upstream"]
    again = client.send(first.request)
    assert first.json() == again.json() == WHOLE
    assert "hit" in again.headers["cache-status"]
    streamed = client.post(first.request.url, json=chat(stream=True, **fields), headers=headers)
    assert streamed.text.endswith("data: [DONE]\n\n")
    assert server.seen[-1] is seen


@pytest.mark.parametrize(
    ("model", "text"), [("in small parts", "Hello there"), ("talks of [DONE]", "say data: [DONE] now")]
)
def test_a_good_stream_is_kept_whole(odd: tuple[httpx.Client, Services, Odd], model: str, text: str) -> None:
    live = post(odd[0], model, stream=True)
    assert live.content == b"".join(STREAMS[model])
    stored = post(odd[0], model)
    assert "hit" in stored.headers["cache-status"]
    assert stored.json()["choices"][0]["message"] == {"role": "assistant", "content": text}


def test_what_cannot_be_keyed_passes_and_is_not_cached(odd: tuple[httpx.Client, Services, Odd]) -> None:
    client, services, _ = odd
    seeds = [b'"\\ud800"', b'"\\udfff"']
    with nothing_stored(services):
        for raw in [b'{"model": "m", "messages": [], "seed": ' + seed + b"}" for seed in seeds] * 2:
            answer = client.post("/v1/chat/completions", content=raw)
            assert (answer.json(), answer.headers["cache-status"]) == (WHOLE, "kvproxy; fwd=bypass")


def test_what_an_upstream_reused_is_told(odd: tuple[httpx.Client, Services, Odd]) -> None:
    """vLLM and llama.cpp report it in the body; a stream does so too late for the header."""
    first = post(odd[0], "reused")
    assert 'fwd=uri-miss; detail="prefix 645/662"; key="' in first.headers["cache-status"]
    assert first.json()["usage"] == USAGE
    assert 'detail="exact"' in post(odd[0], "reused").headers["cache-status"]
    fresh = post(odd[0], "reused", cache_control="no-store, no-cache")
    assert fresh.headers["cache-status"] == 'kvproxy; fwd=request; detail="prefix 645/662 not stored: request-no-store"'
    stream = post(odd[0], "reused", stream=True, cache_control="no-store, no-cache")
    assert "prefix" not in stream.headers["cache-status"]
