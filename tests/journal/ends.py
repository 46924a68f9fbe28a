"""An upstream that ends its answers in every way, and a proxy in front of it."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import orjson
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.routing import Route

from kvproxy.http.services import Services
from kvproxy.journal.journal import FileJournal
from kvproxy.journal.record import Record
from kvproxy.settings import load_settings
from tests.servers import run_app, run_proxy

USAGE = {"prompt_tokens": 40, "completion_tokens": 7, "prompt_tokens_details": {"cached_tokens": 30}}
CHAT = "/v1/chat/completions"


def answer(**more: Any) -> dict[str, Any]:
    message = {"role": "assistant", "content": "An answer."}
    choice = {"index": 0, "message": message, "finish_reason": "stop"}
    return {"id": "x", "object": "chat.completion", "created": 1, "model": "m", "choices": [choice], **more}


async def chat(request: Request) -> Response:
    """The question says how the answer ends."""
    body = orjson.loads(await request.body())
    asked = body["messages"][-1]["content"] if isinstance(body.get("messages"), list) else ""
    if "missing" in asked:
        return JSONResponse({"error": {"message": "no such model"}}, 404)
    if "fail" in asked:
        return JSONResponse({"error": {"message": "no"}}, 500)
    if "wait" in asked:
        await asyncio.sleep(0.3 if "short" in asked else 30)
    if body.get("stream"):
        return StreamingResponse(
            _stream("break" in asked, "slow" in asked, "late" in asked), media_type="text/event-stream"
        )
    return JSONResponse(answer(usage={**USAGE, **({"prompt_tokens_details": None} if "cold" in asked else {})}))


async def _stream(broken: bool, slow: bool, late: bool) -> AsyncIterator[bytes]:
    if late:
        # The head is sent already.
        await asyncio.sleep(0.3)
    for text in ("An ", "answer."):
        delta = {"index": 0, "delta": {"role": "assistant", "content": text}, "finish_reason": None}
        yield b"data: " + orjson.dumps(answer() | {"choices": [delta]}) + b"\n\n"
        if broken:
            raise ConnectionError("the test breaks it off")
        if slow:
            await asyncio.sleep(30)
    last = {"index": 0, "delta": {}, "finish_reason": "stop"}
    yield b"data: " + orjson.dumps(answer() | {"choices": [last], "usage": USAGE}) + b"\n\ndata: [DONE]\n\n"


@contextlib.contextmanager
def upstream() -> Iterator[str]:
    with run_app(Starlette(routes=[Route(CHAT, chat, methods=["POST"])])) as url:
        yield url


@contextlib.contextmanager
def proxy(data: Path, url: str, **settings: Any) -> Iterator[tuple[str, Services]]:
    """A proxy that looks for equal requests only, in front of an upstream."""
    cache = {"semantic": False} | settings.pop("cache", {})
    with run_proxy(load_settings(data=data, upstream=url, cache=cache, **settings)) as running:
        yield running


def ask(question: str, **fields: Any) -> dict[str, Any]:
    return {"model": "m", "messages": [{"role": "user", "content": question}], **fields}


def records(services: Services) -> list[Record]:
    """All records, the newest first."""
    journal = services.answerer.journal
    assert isinstance(journal, FileJournal)
    journal.flush()
    return journal.latest(1000)
