"""Upstreams that answer oddly: the client sees what it would have seen without us, and nothing odd is stored."""

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
GOOD = {"reused": JSONResponse(WHOLE | {"usage": USAGE})}
ODD_BODIES: dict[str, Response] = {
    "choices is a number": JSONResponse({"choices": 5}),
    "usage is a list": JSONResponse(WHOLE | {"usage": [1]}),
    "a choice is null": JSONResponse({"choices": [None]}),
    "no object": JSONResponse([1]),
    "an error": JSONResponse({"error": {"message": "broken", "type": "server_error"}}, 500, {"x-vendor": "1"}),
    "garbage": Response(b"<html>oops", media_type="text/html"),
}


def chunk(delta: object, finish_reason: str | None = None) -> bytes:
    choice = {"index": 0, "delta": delta, "finish_reason": finish_reason}
    return encode_event({"id": "x", "object": "chat.completion.chunk", "choices": [choice]})


STOP, DONE = chunk({}, "stop"), encode_event(b"[DONE]")
MORE = chunk({"content": "Hello there"})
UNFINISHED = [chunk({"role": "assistant"}), MORE]
STREAM = [*UNFINISHED, STOP, DONE]
WHOLE_STREAM = b"".join(STREAM)
PADDING = b": " + b"x" * 5000 + b"\n\n"
GOOD_STREAMS = {
    "in small parts": [WHOLE_STREAM[start : start + 7] for start in range(0, len(WHOLE_STREAM), 7)],
    "talks of [DONE]": [chunk(MESSAGE | {"content": "say data: [DONE] now"}), STOP, DONE],
}
ODD_STREAMS: dict[str, list[bytes]] = {
    "a choice is null": [encode_event({"choices": [None]}), STOP, DONE],
    "finished twice": [*UNFINISHED, STOP, chunk({}, "length"), STOP, DONE],
    "goes on after its end": [*STREAM[:-1], DONE + MORE],
    "large and goes on": [*STREAM[:-1], PADDING + DONE + PADDING + MORE],
    "goes on after its reason": [*STREAM[:-1], MORE, DONE],
    "no reason": UNFINISHED,
    "no end": [*UNFINISHED, STOP],
    "cut": UNFINISHED,
}


class Odd:
    """A server that answers as its model's name says."""

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
        return (ODD_BODIES | GOOD).get(model) or JSONResponse(WHOLE, headers={"x-request-id": "upstream"})

    async def stream(self, model: str) -> AsyncIterator[bytes]:
        for part in (ODD_STREAMS | GOOD_STREAMS).get(model, STREAM):
            yield part
            await asyncio.sleep(0.01 if model in ODD_STREAMS else 0)
        if model == "cut":
            raise RuntimeError("cut")


@pytest.fixture(scope="module")
def odd(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[httpx.Client, Services, Odd]]:
    server = Odd()
    data: Path = tmp_path_factory.mktemp("odd")
    with (
        run_upstream(server.answer) as target,
        run_front(data, f"{target}/v1") as (url, services),
        httpx.Client(base_url=url, timeout=60) as client,
    ):
        yield client, services, server


def question(model: str, **fields: Any) -> dict[str, Any]:
    return {"model": model, "messages": [{"role": "user", "content": "hi"}], **fields}


def post(client: httpx.Client, model: str, *, stream: bool = False, **headers: str) -> httpx.Response:
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    return client.post("/v1/chat/completions", json=question(model, stream=stream), headers=named)


@contextlib.contextmanager
def nothing_stored(services: Services) -> Iterator[None]:
    until_stored(services)
    before = services.answerer.store.count()
    yield
    until(lambda: not services.answerer.shared_requests)
    until_stored(services)
    assert services.answerer.store.count() == before


@pytest.mark.parametrize("model", ODD_BODIES)
def test_odd_bodies_pass_and_are_not_stored(odd: tuple[httpx.Client, Services, Odd], model: str) -> None:
    client, services, server = odd
    count, sent = len(server.seen), ODD_BODIES[model]
    with nothing_stored(services):
        for _ in range(2):
            answer = post(client, model)
            assert (answer.status_code, answer.content) == (sent.status_code, sent.body)
            assert answer.headers.get("x-vendor") == sent.headers.get("x-vendor")
            assert not makes_entry(answer.headers["cache-status"])
            assert ("fwd-status=500" in answer.headers["cache-status"]) == (sent.status_code == 500)
    assert len(server.seen) == count + 2


@pytest.mark.parametrize("model", ODD_STREAMS)
@pytest.mark.filterwarnings("default::pytest.PytestUnhandledThreadExceptionWarning")
def test_odd_streams_pass_and_are_not_stored(odd: tuple[httpx.Client, Services, Odd], model: str) -> None:
    client, services, _ = odd
    received = b""
    broken = pytest.raises(httpx.RemoteProtocolError) if model == "cut" else contextlib.nullcontext()
    sent = client.stream("POST", "/v1/chat/completions", json=question(model, stream=True))
    with nothing_stored(services), broken, sent as response:
        for part in response.iter_raw():
            received += part
    assert received == b"".join(ODD_STREAMS[model])


def test_bytes_pass_untouched_and_come_back_from_the_cache(odd: tuple[httpx.Client, Services, Odd]) -> None:
    client, _, server = odd
    fields = {"vendor_option": [1, {"a": None}]}
    headers = {"authorization": "Bearer secret"}
    first = client.post("/v1/chat/completions?api-version=1", json=question("m", **fields), headers=headers)
    seen = server.seen[-1]
    assert seen.headers["authorization"] == "Bearer secret"
    assert (seen.scope["raw_path"], seen.scope["query_string"]) == (b"/v1/chat/completions", b"api-version=1")
    assert asyncio.run(seen.body()) == first.request.content
    assert first.headers.get_list("x-request-id") == ["upstream"]
    again = client.send(first.request)
    assert first.json() == again.json() == WHOLE
    assert "hit" in again.headers["cache-status"]
    streamed = client.post(first.request.url, json=question("m", stream=True, **fields), headers=headers)
    assert streamed.text.endswith("data: [DONE]\n\n")
    assert server.seen[-1] is seen


@pytest.mark.parametrize(
    ("model", "text"), [("in small parts", "Hello there"), ("talks of [DONE]", "say data: [DONE] now")]
)
def test_a_good_stream_is_kept_whole(odd: tuple[httpx.Client, Services, Odd], model: str, text: str) -> None:
    live = post(odd[0], model, stream=True)
    assert live.content == b"".join(GOOD_STREAMS[model])
    stored = post(odd[0], model)
    assert "hit" in stored.headers["cache-status"]
    assert stored.json()["choices"][0]["message"] == {"role": "assistant", "content": text}


def test_what_cannot_be_keyed_passes_and_is_not_cached(odd: tuple[httpx.Client, Services, Odd]) -> None:
    client, services, _ = odd
    seeds = [b"18446744073709551617", b"18446744073709551618", b"[" * 300 + b"]" * 300]
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
    assert fresh.headers["cache-status"] == 'kvproxy; fwd=request; detail="prefix 645/662"'
