"""Upstreams that are healthy, and send the first byte of a response late: the next upstream or the fallback answers."""

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx
import pytest
from starlette.requests import Request
from starlette.responses import JSONResponse, Response, StreamingResponse

from kvproxy.settings import load_settings
from tests.polling import until, until_async
from tests.servers import run_proxy, run_upstream
from tests.upstreams.fleets import WHOLE

CHUNK = b'data: {"id":"x","object":"chat.completion.chunk","choices":[{"index":0,"delta":{"content":"ok"}}]}\n\n'
SECONDS = 0.2


@dataclass
class Slow:
    """An upstream that never ends: before its head, before its first chunk, or after it."""

    hangs: str = "head"
    got: list[Any] = field(default_factory=list)
    is_over: bool = False

    async def answer(self, request: Request) -> Response:
        if request.method == "GET":
            return Response()
        self.got.append(await request.json())
        if self.hangs == "head":
            await until_async(lambda: self.is_over)
        if self.hangs == "nowhere":
            return JSONResponse(WHOLE)
        return StreamingResponse(self.chunks(), media_type="text/event-stream")

    async def chunks(self) -> AsyncIterator[bytes]:
        if self.hangs == "chunk":
            await until_async(lambda: self.is_over)
        await asyncio.sleep(3 * SECONDS)
        yield CHUNK
        await until_async(lambda: self.is_over)


@contextmanager
def running(data: Path, slow: Slow, **upstream: float) -> Iterator[tuple[str, str, Slow]]:
    """Run a slow upstream of the model `large`, and a fast one of its fallback; yield the URLs of proxy and slow upstream."""
    fast = Slow("nowhere")
    with ExitStack() as stack:
        urls = [stack.enter_context(run_upstream(each.answer)) for each in (slow, fast)]
        large, small = {"url": urls[0], "models": ["large"], **upstream}, {"url": urls[1], "models": ["small"]}
        routing = {"health_interval": 60.0, "eject_after": 2, "fallbacks": {"large": ["small"]}}
        settings = load_settings(data=data, upstreams=[large, small], cache={"enabled": False}, routing=routing)
        proxy, _ = stack.enter_context(run_proxy(settings))
        yield proxy, urls[0], fast
        slow.is_over = True


def ask(url: str, **fields: object) -> httpx.Response:
    body = {"model": "large", "messages": [{"role": "user", "content": "x"}], **fields}
    return httpx.post(f"{url}/v1/chat/completions", json=body, timeout=300)


@pytest.mark.parametrize("hangs", ["head", "chunk"])
def test_the_fallback_answers_if_no_byte_comes_in_time(
    hangs: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    slow = Slow(hangs)
    with caplog.at_level("WARNING", "kvproxy"), running(tmp_path, slow, first_byte_timeout=SECONDS) as (url, own, fast):
        assert [ask(url, stream=hangs == "chunk").status_code for _ in range(3)] == [200] * 3
        # Two in a row eject the upstream.
        assert (len(slow.got), [body["model"] for body in fast.got]) == (2, ["small"] * 3)
        metrics = httpx.get(f"{url}/metrics").text
        for name in ("errors", "retried"):
            assert f'kvproxy_upstream_{name}_total{{upstream="{own}"}} 2.0' in metrics
        assert 'kvproxy_fallback_answered_total{model="large"} 3.0' in metrics
        (row,) = httpx.get(f"{url}/admin/upstreams").json()[:1]
        assert row["state"] == "ejected"
        cause = f"{own} sent no byte of a response within 0.2 s (first_byte_timeout)"
        assert f"large: {cause}; trying the fallback small" in [record.message for record in caplog.records]

        until(lambda: [row["tags"] for row in httpx.get(f"{url}/admin/log").json()] == ["fallback:large"] * 3)


def test_without_another_upstream_the_client_gets_504(tmp_path: Path) -> None:
    slow = Slow("chunk")
    with running(tmp_path, slow, first_byte_timeout=SECONDS) as (url, _, fast):
        # The conversation is on the upstream.
        done = ask(url, stream=True, previous_response_id="resp_1")
        assert (done.status_code, done.json()["error"]["code"]) == (504, "upstream_timeout")
        assert fast.got == []


def test_the_timeout_between_chunks_begins_after_the_first_byte(tmp_path: Path) -> None:
    slow = Slow("later")
    with running(tmp_path, slow, first_byte_timeout=600, read_timeout=SECONDS) as (url, _, _):
        got = bytearray()
        with pytest.raises(httpx.RemoteProtocolError):
            read_stream(url, got)
        assert CHUNK in got


def read_stream(url: str, got: bytearray) -> None:
    body = {"model": "large", "messages": [{"role": "user", "content": "x"}], "stream": True}
    with httpx.stream("POST", f"{url}/v1/chat/completions", json=body, timeout=300) as reply:
        for chunk in reply.iter_raw():
            got += chunk
