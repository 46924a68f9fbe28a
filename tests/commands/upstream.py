"""A server behind a proxy that notes its requests."""

import asyncio
import contextlib
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any

import orjson
from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from kvproxy.settings import load_settings
from tests.servers import run_proxy, run_upstream


def said(question: str, **more: Any) -> dict[str, Any]:
    return {"model": "m", "messages": [{"role": "user", "content": question}]} | more


class Upstream:
    """Any server: it echoes the question, and notes each with its time and key."""

    def __init__(self, seconds: float = 0.0, headers: dict[str, str] | None = None) -> None:
        self.asked: list[tuple[float, str, str | None]] = []
        self.seconds = seconds
        self.headers = headers or {}

    async def answer(self, request: Request) -> Response:
        path = request.url.path
        if path == "/v1/models":
            return JSONResponse({"data": [{"id": "m"}]})
        if path not in ("/v1/chat/completions", "/v1/messages"):
            return Response(status_code=404)
        question = orjson.loads(await request.body())["messages"][-1]["content"]
        self.asked.append((time.monotonic(), question, request.headers.get("x-api-key")))
        await asyncio.sleep(self.seconds)
        if path == "/v1/messages":
            blocks = [{"type": "text", "text": question}]
            message = {"type": "message", "role": "assistant", "content": blocks, "stop_reason": "end_turn"}
            return JSONResponse(message, headers=self.headers)
        choice = {"index": 0, "message": {"role": "assistant", "content": question}, "finish_reason": "stop"}
        usage = {"prompt_tokens": len(question), "completion_tokens": 1, "prompt_tokens_details": {"cached_tokens": 1}}
        return JSONResponse({"object": "chat.completion", "choices": [choice], "usage": usage}, headers=self.headers)

    def questions(self) -> list[str]:
        """The questions since the last call."""
        found = [question for _, question, _ in self.asked]
        self.asked.clear()
        return found

    def run(self) -> contextlib.AbstractContextManager[str]:
        return run_upstream(self.answer)


@contextlib.contextmanager
def proxied(
    data: Path,
    upstream: Upstream | None = None,
    cache: Mapping[str, Any] = MappingProxyType({}),
    **settings: Any,
) -> Iterator[str]:
    """Run a proxy with an exact cache in front of an upstream; yield its URL."""
    with (
        (upstream or Upstream()).run() as target,
        run_proxy(load_settings(data=data, upstream=target, cache={"semantic": False, **cache}, **settings)) as (
            url,
            _,
        ),
    ):
        yield url
