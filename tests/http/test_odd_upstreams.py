"""Upstreams that answer oddly: the client sees what it would have seen without us, and nothing odd is stored."""

import asyncio
import time
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import httpx
import orjson
import pytest
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.routing import Route

from kvproxy.http.services import Services
from kvproxy.settings import load_settings
from tests.polling import until
from tests.servers import run_app, run_proxy, until_stored
from tests.statuses import makes_entry

MESSAGE = {"role": "assistant", "content": "Hello"}
WHOLE: dict[str, Any] = {
    "id": "x",
    "object": "chat.completion",
    "choices": [{"index": 0, "message": MESSAGE, "finish_reason": "stop"}],
}
ODD_BODIES: dict[str, Any] = {
    "choices is a number": {"choices": 5},
    "usage is a list": WHOLE | {"usage": [1]},
    "a choice is null": {"choices": [None]},
    "no object": [1],
}


def chunk(delta: object, finish_reason: str | None = None) -> dict[str, Any]:
    choice = {"index": 0, "delta": delta, "finish_reason": finish_reason}
    return {"id": "x", "object": "chat.completion.chunk", "choices": [choice]}


def call(index: int, id: str) -> dict[str, Any]:
    return chunk({"tool_calls": [{"index": index, "id": id, "function": {"name": "f", "arguments": "{}"}}]})


END = chunk({}, "stop")
ODD_STREAMS: dict[str, list[Any]] = {
    "a choice is null": [{"choices": [None]}, END],
    "choices is a number": [{"choices": 5}, END],
    "a delta is a text": [chunk("x"), END],
    "a tool call far ahead": [call(30_000_000, "a"), END],
    "two tool calls with one index": [call(0, "a"), call(0, "b"), END],
}


class Odd:
    """A server that answers as its model's name says."""

    def __init__(self) -> None:
        self.open = 0
        self.seen: list[tuple[bytes, bytes]] = []

    async def chat(self, request: Request) -> Response:
        body = await request.json()
        self.seen.append((request.scope["raw_path"], request.scope["query_string"]))
        if not body.get("stream"):
            return JSONResponse(ODD_BODIES.get(body["model"], WHOLE), headers={"x-request-id": "upstream"})
        parts = ODD_STREAMS.get(body["model"], [chunk(MESSAGE | {"content": "say data: [DONE] now"}), END])

        async def events() -> AsyncIterator[bytes]:
            for part in parts:
                yield b"data: " + orjson.dumps(part) + b"\n\n"
                await asyncio.sleep(0.01)
            yield b"data: [DONE]\n\n"

        return StreamingResponse(events(), media_type="text/event-stream")

    async def endless(self, request: Request) -> Response:
        async def parts() -> AsyncIterator[bytes]:
            self.open += 1
            try:
                while True:
                    yield b"data: x\n\n"
                    await asyncio.sleep(0.01)
            finally:
                self.open -= 1

        return StreamingResponse(parts(), media_type="text/event-stream")

    async def path(self, request: Request) -> Response:
        return Response(request.scope["raw_path"] + b"?" + request.scope["query_string"])


@pytest.fixture(scope="module")
def odd(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[httpx.Client, Services, Odd]]:
    server = Odd()
    app = Starlette(
        routes=[
            Route("/v1/chat/completions", server.chat, methods=["POST"]),
            Route("/v1/endless", server.endless, methods=["POST"]),
            Route("/{path:path}", server.path),
        ]
    )
    data: Path = tmp_path_factory.mktemp("odd")
    with run_app(app) as target:
        settings = load_settings(data=data, upstream=target, cache={"semantic": False})
        with run_proxy(settings) as (url, services), httpx.Client(base_url=url, timeout=60) as client:
            yield client, services, server


def post(client: httpx.Client, model: str, stream: bool = False, **headers: str) -> httpx.Response:
    body = {"model": model, "messages": [{"role": "user", "content": "hi"}], "stream": stream}
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    return client.post("/v1/chat/completions", json=body, headers=named)


@pytest.mark.parametrize("model", ODD_BODIES)
def test_odd_bodies_pass_and_are_not_stored(odd: tuple[httpx.Client, Services, Odd], model: str) -> None:
    client, services, _ = odd
    until_stored(services)
    before = services.answerer.store.stats()["entries"]
    answer = post(client, model)
    assert (answer.status_code, answer.json()) == (200, ODD_BODIES[model])
    assert not makes_entry(answer.headers["cache-status"])
    until_stored(services)
    assert services.answerer.store.stats()["entries"] == before


@pytest.mark.parametrize("model", ODD_STREAMS)
def test_odd_streams_pass_at_once_and_are_not_stored(odd: tuple[httpx.Client, Services, Odd], model: str) -> None:
    client, services, _ = odd
    until_stored(services)
    before = services.answerer.store.stats()["entries"]
    began = time.perf_counter()
    answer = post(client, model, stream=True)
    expected = [b"data: " + orjson.dumps(part) + b"\n\n" for part in ODD_STREAMS[model]]
    assert answer.content == b"".join(expected) + b"data: [DONE]\n\n"
    assert time.perf_counter() - began < 40
    until_stored(services)
    assert services.answerer.store.stats()["entries"] == before
    until(lambda: len(services.answerer.shared_requests) == 0)


def test_a_text_that_speaks_of_the_end_is_cached(odd: tuple[httpx.Client, Services, Odd]) -> None:
    client = odd[0]
    post(client, "talks of [DONE]", stream=True)
    again = post(client, "talks of [DONE]")
    assert "hit" in again.headers["cache-status"]
    assert again.json()["choices"][0]["message"]["content"] == "say data: [DONE] now"


def test_no_answer_crosses_from_one_key_to_another(odd: tuple[httpx.Client, Services, Odd]) -> None:
    client = odd[0]
    for headers in ({"api_key": "a"}, {"api_key": "b"}, {"x_api_key": "a"}, {"cookie": "s=1"}, {}):
        assert "fwd=uri-miss" in post(client, "keys", **headers).headers["cache-status"]
        assert "hit" in post(client, "keys", **headers).headers["cache-status"]


def test_what_cannot_be_keyed_passes_and_is_not_cached(odd: tuple[httpx.Client, Services, Odd]) -> None:
    client, services, _ = odd
    until_stored(services)
    before = services.answerer.store.stats()["entries"]
    seeds = [b"18446744073709551617", b"18446744073709551618", b"[" * 300 + b"]" * 300]
    for raw in [b'{"model": "m", "messages": [], "seed": ' + seed + b"}" for seed in seeds] * 2:
        answer = client.post("/v1/chat/completions", content=raw)
        assert (answer.json(), answer.headers["cache-status"]) == (WHOLE, "kvproxy; fwd=bypass")
    until_stored(services)
    assert services.answerer.store.stats()["entries"] == before


def test_query_path_and_request_id_stay_as_they_are(odd: tuple[httpx.Client, Services, Odd]) -> None:
    client, _, server = odd
    body = {"model": "query", "messages": [{"role": "user", "content": "hi"}]}
    answer = client.post("/v1/chat/completions?api-version=1", json=body)
    assert server.seen[-1] == (b"/v1/chat/completions", b"api-version=1")
    assert answer.headers.get_list("x-request-id") == ["upstream"]
    assert client.get("/v1/files/a%2Fb%3Fc?d=%20e").content == b"/v1/files/a%2Fb%3Fc?d=%20e"


def test_an_upstream_is_told_when_the_client_of_another_route_leaves(odd: tuple[httpx.Client, Services, Odd]) -> None:
    client, _, server = odd
    with client.stream("POST", "/v1/endless", json={}) as response:
        # The connection goes when the iterator does, so that is kept.
        parts = response.iter_raw()
        assert next(parts)
        assert server.open == 1
    end = time.monotonic() + 60
    while server.open and time.monotonic() < end:
        time.sleep(0.02)
    assert server.open == 0
