"""In front of another server: bytes pass through, and what it breaks is never stored."""

import asyncio
import contextlib
import sqlite3
import threading
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

WHOLE = {
    "id": "x",
    "object": "chat.completion",
    "model": "m",
    "vendor": {"kept": True},
    "choices": [{"index": 0, "message": {"role": "assistant", "content": "Hello there"}, "finish_reason": "stop"}],
}
PARTS = [
    {"id": "x", "object": "chat.completion.chunk", "choices": [{"index": 0, "delta": {"role": "assistant"}}]},
    {"id": "x", "object": "chat.completion.chunk", "choices": [{"index": 0, "delta": {"content": "Hello there"}}]},
    {"id": "x", "object": "chat.completion.chunk", "choices": [{"index": 0, "delta": {}, "finish_reason": "stop"}]},
]


class Fake:
    """A server that misbehaves as its model's name says."""

    def __init__(self) -> None:
        self.seen: list[tuple[dict[str, str], bytes]] = []
        self.go = threading.Event()
        """Lets slow answers go."""

    async def chat(self, request: Request) -> Response:
        raw = await request.body()
        self.seen.append((dict(request.headers), raw))
        body = orjson.loads(raw)
        if body["model"] == "error":
            return JSONResponse({"error": {"message": "broken", "type": "server_error"}}, 500, {"x-vendor": "1"})
        if body["model"] == "garbage":
            return Response(b"<html>oops", media_type="text/html")
        if body["model"] == "slow":
            while not self.go.is_set():  # noqa: ASYNC110
                await asyncio.sleep(0.01)
        if body.get("stream"):
            return StreamingResponse(self.events(body["model"]), media_type="text/event-stream")
        return JSONResponse(WHOLE)

    async def events(self, model: str) -> AsyncIterator[bytes]:
        for number, part in enumerate(PARTS):
            data = b"data: " + orjson.dumps(part) + b"\n\n"
            if model == "cut" and number == 2:
                raise RuntimeError("cut")
            if model == "early" and number == 2:
                return
            if model == "dribble":
                for index in range(0, len(data), 7):
                    yield data[index : index + 7]
                    await asyncio.sleep(0)
            else:
                yield data
        if model == "unfinished":
            return
        more = b"data: " + orjson.dumps(PARTS[1]) + b"\n\n"
        end = b"data: [DONE]\n\n"
        if model == "finished twice":
            choice = {"index": 0, "delta": {}, "finish_reason": "length"}
            for part in ({**PARTS[2], "choices": [choice]}, PARTS[2]):
                yield b"data: " + orjson.dumps(part) + b"\n\n"
        elif model == "goes on after its end":
            end += more
        elif model == "large and goes on":
            end = b": " + b"x" * 5000 + b"\n\n" + end + b": " + b"x" * 5000 + b"\n\n" + more
        elif model == "goes on after its reason":
            end = more + end
        yield end
        if model == "goes on later":
            await asyncio.sleep(0.05)
            yield more

    async def echo(self, request: Request) -> Response:
        body = await request.body()
        return Response(body + request.url.query.encode(), 207, {"x-echo": request.method}, "application/x-any")


@pytest.fixture(scope="module")
def upstream(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[str, Services, Fake]]:
    fake = Fake()
    app = Starlette(
        routes=[
            Route("/v1/chat/completions", fake.chat, methods=["POST"]),
            Route("/v1/models", lambda request: JSONResponse({"object": "list", "data": [{"id": "m"}]})),
            Route("/v1/anything", fake.echo, methods=["POST", "PUT"]),
        ]
    )
    with run_app(app) as url:
        data: Path = tmp_path_factory.mktemp("upstream")
        settings = load_settings(data=data, upstream=f"{url}/v1", cache={"semantic": False})
        with run_proxy(settings) as (proxy, services):
            yield proxy, services, fake


def post(url: str, model: str, question: str = "hi", **options: Any) -> httpx.Response:
    body = {"model": model, "messages": [{"role": "user", "content": question}], "vendor_option": [1, {"a": None}]}
    return httpx.post(f"{url}/v1/chat/completions", json=body | options, headers={"authorization": "Bearer secret"})


def test_bytes_pass_untouched_and_come_back_from_the_cache(upstream: tuple[str, Services, Fake]) -> None:
    url, _, fake = upstream
    first = post(url, "m")
    headers, raw = fake.seen[-1]
    assert headers["authorization"] == "Bearer secret"
    assert raw == first.request.content
    assert first.json() == WHOLE
    count = len(fake.seen)
    again = post(url, "m")
    assert "hit" in again.headers["cache-status"]
    assert again.json() == WHOLE
    streamed = post(url, "m", stream=True)
    assert streamed.text.endswith("data: [DONE]\n\n")
    assert len(fake.seen) == count


def test_a_stream_is_kept_whole_however_it_is_cut(upstream: tuple[str, Services, Fake]) -> None:
    url, _, _ = upstream
    live = post(url, "dribble", stream=True)
    assert live.content == b"".join(b"data: " + orjson.dumps(part) + b"\n\n" for part in PARTS) + b"data: [DONE]\n\n"
    stored = post(url, "dribble")
    assert "hit" in stored.headers["cache-status"]
    assert stored.json()["choices"][0]["message"] == {"role": "assistant", "content": "Hello there"}


@pytest.mark.parametrize("model", ["error", "garbage"])
def test_failures_are_passed_on_and_never_stored(upstream: tuple[str, Services, Fake], model: str) -> None:
    url, services, fake = upstream
    until_stored(services)
    before, count = services.answerer.store.stats()["entries"], len(fake.seen)
    answers = [post(url, model) for _ in range(2)]
    assert len(fake.seen) == count + 2
    until_stored(services)
    assert services.answerer.store.stats()["entries"] == before
    if model == "error":
        assert answers[0].status_code == 500
        assert answers[0].headers["x-vendor"] == "1"
        assert "fwd-status=500" in answers[0].headers["cache-status"]
    else:
        assert answers[0].content == b"<html>oops"


@pytest.mark.parametrize(
    "model",
    [
        "finished twice",
        "goes on after its end",
        "large and goes on",
        "goes on after its reason",
        "goes on later",
    ],
)
def test_streams_that_contradict_themselves_pass_and_are_never_stored(
    upstream: tuple[str, Services, Fake], model: str
) -> None:
    url, services, _ = upstream
    until_stored(services)
    before = services.answerer.store.stats()["entries"]
    assert b"[DONE]" in post(url, model, stream=True).content
    until(lambda: len(services.answerer.shared_requests) == 0)
    until_stored(services)
    assert services.answerer.store.stats()["entries"] == before


@pytest.mark.parametrize("model", ["cut", "early", "unfinished"])
@pytest.mark.filterwarnings("default::pytest.PytestUnhandledThreadExceptionWarning")
def test_streams_without_their_end_are_never_stored(upstream: tuple[str, Services, Fake], model: str) -> None:
    url, services, _ = upstream
    until_stored(services)
    before = services.answerer.store.stats()["entries"]
    body = {"model": model, "messages": [{"role": "user", "content": "hi"}], "stream": True}
    received = b""
    broken = pytest.raises(httpx.RemoteProtocolError) if model == "cut" else contextlib.nullcontext()
    with broken, httpx.stream("POST", f"{url}/v1/chat/completions", json=body) as response:
        for chunk in response.iter_raw():
            received += chunk
    assert b"Hello there" in received
    assert b"[DONE]" not in received
    until_stored(services)
    assert services.answerer.store.stats()["entries"] == before
    until(lambda: len(services.answerer.shared_requests) == 0)


async def test_one_client_leaving_does_not_harm_the_other(upstream: tuple[str, Services, Fake]) -> None:
    url, services, fake = upstream
    count = len(fake.seen)
    body = {"model": "slow", "messages": [{"role": "user", "content": "both"}]}

    async def until_aboard(passengers: int) -> None:
        async with asyncio.timeout(60):
            while [shared.clients for shared in services.answerer.shared_requests._in_flight] != [passengers]:  # noqa: ASYNC110
                await asyncio.sleep(0.01)

    async with httpx.AsyncClient(base_url=url) as client:
        first = asyncio.create_task(client.post("/v1/chat/completions", json=body))
        await until_aboard(1)
        second = asyncio.create_task(client.post("/v1/chat/completions", json=body))
        await until_aboard(2)
        first.cancel()
        await until_aboard(1)
        fake.go.set()
        answer = await second
    assert answer.json() == WHOLE
    assert "collapsed" in answer.headers["cache-status"]
    assert len(fake.seen) == count + 1


def test_a_store_that_fails_costs_the_cache_and_nothing_else(
    upstream: tuple[str, Services, Fake], tmp_path: Path
) -> None:
    target = upstream[1].settings.upstream
    with run_proxy(load_settings(data=tmp_path, upstream=target, cache={"semantic": False})) as (url, services):
        assert makes_entry(post(url, "m").headers["cache-status"])
        until_stored(services)
        with sqlite3.connect(services.settings.store_path) as other:
            other.execute("alter table responses rename to hidden")
        other.close()
        answer = post(url, "m")
        assert answer.json() == WHOLE
        assert "hit" not in answer.headers["cache-status"]
        with sqlite3.connect(services.settings.store_path) as other:
            other.execute("alter table hidden rename to responses")
        other.close()
        assert "hit" in post(url, "m").headers["cache-status"]


def test_other_routes_pass_through(upstream: tuple[str, Services, Fake]) -> None:
    url = upstream[0]
    answer = httpx.put(f"{url}/v1/anything?a=1", content=b"\x00raw")
    assert (answer.status_code, answer.content) == (207, b"\x00rawa=1")
    assert answer.headers["x-echo"] == "PUT"
    assert answer.headers["content-type"] == "application/x-any"
    assert httpx.get(f"{url}/v1/models").json()["data"] == [{"id": "m"}]
    assert httpx.get(f"{url}/admin/blocks").status_code == 409


def test_an_unreachable_upstream_is_told(tmp_path: Path) -> None:
    settings = load_settings(data=tmp_path, upstream="http://127.0.0.1:9", cache={"semantic": False})
    with run_proxy(settings) as (url, services):
        answer = post(url, "m")
        assert answer.status_code == 502
        assert "cannot reach the upstream" in answer.json()["error"]["message"]
        assert services.answerer.store.stats()["entries"] == 0
        assert httpx.get(f"{url}/health").json()["status"] == "ok"


def test_what_an_upstream_reused_is_told(tmp_path: Path) -> None:
    """vLLM and llama.cpp report it in the body; a stream does so too late for the header."""
    usage = {"prompt_tokens": 662, "completion_tokens": 3, "prompt_tokens_details": {"cached_tokens": 645}}

    async def chat(request: Request) -> Response:
        return JSONResponse(WHOLE | {"usage": usage})

    app = Starlette(routes=[Route("/v1/chat/completions", chat, methods=["POST"])])
    with (
        run_app(app) as url,
        run_proxy(load_settings(data=tmp_path, upstream=url, cache={"semantic": False})) as (
            proxy,
            _,
        ),
    ):
        first = post(proxy, "m")
        assert 'fwd=uri-miss; detail="prefix 645/662"; key="' in first.headers["cache-status"]
        assert first.json()["usage"] == usage
        assert 'detail="exact"' in post(proxy, "m").headers["cache-status"]
        body = {"model": "m", "messages": [{"role": "user", "content": "hi"}]}
        fresh = httpx.post(f"{proxy}/v1/chat/completions", json=body, headers={"cache-control": "no-store, no-cache"})
        assert fresh.headers["cache-status"] == 'kvproxy; fwd=request; detail="prefix 645/662"'
