"""Fake engines with failures, and a proxy in front of them."""

import asyncio
import contextlib
import weakref
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import httpx
import orjson
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.routing import Route

from kvproxy.blocks.block_hash import BlockHasher, event_hash
from kvproxy.http.services import Services
from kvproxy.settings import load_settings
from tests.polling import until_async
from tests.servers import run_app, run_proxy
from tests.upstreams.mirror.publisher import Model, Sockets

WHOLE = {
    "id": "x",
    "object": "chat.completion",
    "model": "m",
    "choices": [{"index": 0, "message": {"role": "assistant", "content": "ok"}, "finish_reason": "stop"}],
}


SIZE = 16
MALFORMED = b"{malformed"
"""Body that a proxy forwards without parsing."""


def block_hashes(tokens: list[int]) -> list[int]:
    return [event_hash(digest) for digest in BlockHasher().hash_blocks(tokens, SIZE)]


class Engine:
    """A fake upstream that publishes events, records its requests, and fails on demand."""

    def __init__(self) -> None:
        self.got: list[str] = []
        self.mood = "well"
        self.resets = self.tokenized = 0
        self.tokenize_body: dict[str, Any] = {}
        """Last request to `/tokenize`."""
        self.sockets = Sockets(Model())
        self.app = Starlette(
            routes=[
                Route("/v1/chat/completions", self.chat, methods=["POST"]),
                Route("/v1/messages", self.messages, methods=["POST"]),
                Route("/v1/models", lambda request: JSONResponse({"object": "list", "data": [{"id": "m"}]})),
                Route("/health", self.health),
                Route("/tokenize", self.tokenize, methods=["POST"]),
                Route("/reset_prefix_cache", self.reset, methods=["POST"]),
            ]
        )

    async def health(self, request: Request) -> Response:
        if self.mood == "stuck":
            await asyncio.sleep(5.0)
        return Response(status_code=500 if self.mood in ("sick", "leaving") else 200)

    async def reset(self, request: Request) -> Response:
        self.resets += 1
        # vLLM reports a failure with status 200.
        return JSONResponse({"success": False}) if self.mood == "busy" else Response()

    async def tokenize(self, request: Request) -> Response:
        self.tokenized += 1
        if self.mood == "hangs":
            await asyncio.sleep(60)
        if self.mood == "old":
            return JSONResponse({"detail": "Not Found"}, 404)
        body = self.tokenize_body = await request.json()
        text = body.get("prompt") or "".join(message["content"] for message in body["messages"])
        return JSONResponse({"tokens": list(text.encode()), "count": len(text), "max_model_len": 4096})

    def store(self, text: str, rank: int = 0, **fields: Any) -> None:
        """Publish the blocks of a text."""
        tokens = list(text.encode())[: len(text) // SIZE * SIZE]
        self.sockets.send(self.sockets.model.store(block_hashes(tokens), tokens=tokens, **fields), rank=rank)

    async def messages(self, request: Request) -> Response:
        self.got.append("messages")
        answer = {"id": "x", "type": "message", "role": "assistant", "content": [], "stop_reason": "end_turn"}
        return JSONResponse(answer)

    async def chat(self, request: Request) -> Response:
        raw = await request.body()
        if raw == MALFORMED:
            return self.refuse_malformed()
        body = orjson.loads(raw)
        self.got.append(body["messages"][-1]["content"])
        await until_async(lambda: self.mood != "computes")
        if self.mood == "full":
            return JSONResponse({"error": {"message": "full"}}, 503)
        if self.mood == "broken":
            return JSONResponse({"error": {"message": "broken"}}, 500)
        if self.mood == "limited":
            return JSONResponse({"error": {"message": "limited"}}, 429, {"Retry-After": "30"})
        if body.get("stream"):
            return StreamingResponse(self.events(), media_type="text/event-stream")
        return JSONResponse(WHOLE)

    def refuse_malformed(self) -> Response:
        if self.mood == "cut":
            return StreamingResponse(self.events(), 400)
        return JSONResponse({"error": {"message": "malformed"}}, 500 if self.mood == "broken" else 400)

    async def events(self) -> AsyncIterator[bytes]:
        chunk = {"id": "x", "object": "chat.completion.chunk", "choices": [{"index": 0, "delta": {"content": "ok"}}]}
        if self.mood == "dies":
            # The head of the response was already sent.
            await asyncio.sleep(0.05)
            raise RuntimeError("killed")
        yield b"data: " + orjson.dumps(chunk) + b"\n\n"
        if self.mood == "cut":
            raise RuntimeError("cut")
        chunk["choices"] = [{"index": 0, "delta": {}, "finish_reason": "stop"}]
        yield b"data: " + orjson.dumps(chunk) + b"\n\ndata: [DONE]\n\n"


def chat(messages: list[dict[str, Any]] | str) -> dict[str, Any]:
    turns = [{"role": "user", "content": messages}] if isinstance(messages, str) else messages
    return {"model": "m", "messages": turns}


class Proxy:
    """Client of a proxy."""

    def __init__(self, url: str, services: Services) -> None:
        self.url = url
        self.services = services
        self._client = httpx.Client(base_url=url, timeout=300)
        weakref.finalize(self, self._client.close)

    def ask(self, messages: list[dict[str, Any]] | str, **options: Any) -> httpx.Response:
        return self._client.post("/v1/chat/completions", json=chat(messages) | options)

    def get(self, path: str) -> Any:
        return self._client.get(f"/admin{path}").raise_for_status().json()

    def post(self, path: str, body: Any = None, **params: Any) -> httpx.Response:
        return self._client.post(f"/admin{path}", json=body, params=params)

    def explain(self, messages: list[dict[str, Any]] | str) -> dict[str, Any]:
        return dict(self.post("/explain", chat(messages), api="chat").raise_for_status().json()["prefix"])

    def status(self, url: str | None = None) -> dict[str, Any]:
        """Return the status of an upstream, by default of the first one."""
        return next(each for each in self.get("/upstreams") if url in (None, each["url"]))


class Fleet(Proxy):
    """Engines and the proxy in front of them."""

    def __init__(self, url: str, services: Services, engines: dict[str, Engine]) -> None:
        super().__init__(url, services)
        self.engines = engines

    def engine_for(self, question: str) -> str:
        """Send a question; return the URL of its engine."""
        before = {url: len(engine.got) for url, engine in self.engines.items()}
        assert self.ask(question).status_code == 200
        return next(url for url, engine in self.engines.items() if len(engine.got) > before[url])


@contextlib.contextmanager
def run_engine(engine: Engine) -> Iterator[tuple[str, dict[str, Any]]]:
    """Run an engine; return its URL, and its settings as an upstream with events."""
    try:
        with run_app(engine.app) as url:
            yield url, {"url": url, "kv_events": engine.sockets.events, "kv_replay": engine.sockets.replay}
    finally:
        engine.sockets.close()


@contextlib.contextmanager
def fleet(data: Path, count: int = 3, *, events: bool = False, **routing: Any) -> Iterator[Fleet]:
    """Run a proxy over `count` engines, which publish `events` or not."""
    with contextlib.ExitStack() as stack:
        engines, upstreams = {}, []
        for _ in range(count):
            engine = Engine()
            url, upstream = stack.enter_context(run_engine(engine))
            engines[url] = engine
            upstreams.append(upstream if events else {"url": f"{url}/v1"})
        settings = load_settings(
            data=data, upstreams=upstreams, cache={"enabled": False}, routing={"health_interval": 0.2} | routing
        )
        url, services = stack.enter_context(run_proxy(settings))
        yield Fleet(url, services, engines)
