"""SIGTERM during streams: those that end in time are complete, the rest end with an error, and the exit status is 0."""

import asyncio
import signal
import threading
import time
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import httpx
import pytest
from starlette.requests import Request
from starlette.responses import JSONResponse, Response, StreamingResponse

from kvproxy.apis.sse import encode_event
from kvproxy.index.store import open_store
from tests.faults.proxies import ask, proxy_process, stored
from tests.plain_upstream import WHOLE
from tests.polling import until, until_async
from tests.servers import run_upstream


def part(text: str, reason: str | None = None) -> bytes:
    delta = {"role": "assistant", "content": text}
    return encode_event({"choices": [{"index": 0, "delta": delta, "finish_reason": reason}]})


class Upstream:
    """Streams an answer in two parts; the second comes when `more` is set, and for some questions never."""

    def __init__(self) -> None:
        self.more = threading.Event()
        self.never = threading.Event()

    async def chat(self, request: Request) -> Response:
        if request.method != "POST":
            return Response()
        asked = await request.json()
        for_ever = "for ever" in asked["messages"][0]["content"]
        if not asked.get("stream"):
            return JSONResponse(WHOLE)

        async def parts() -> AsyncIterator[bytes]:
            yield part("one")
            await asyncio.to_thread(self.never.wait if for_ever else self.more.wait)
            yield part("two", "stop") + b"data: [DONE]\n\n"

        return StreamingResponse(parts(), media_type="text/event-stream")


@pytest.fixture
def upstream() -> Iterator[tuple[str, Upstream]]:
    server = Upstream()
    with run_upstream(server.chat) as url:
        yield url, server
        # The threads that wait for it are to end with the test.
        server.never.set()


def test_streams_end_cleanly_when_the_proxy_is_stopped(upstream: tuple[str, Upstream], tmp_path: Path) -> None:
    url, server = upstream
    data, log = tmp_path / "data", tmp_path / "log"
    with proxy_process(url, data, log, "--no-semantic", limits__drain_seconds=4.0) as proxy:
        assert stored(ask(proxy.url, "kept"))

        async def streams() -> tuple[list[bytes], int]:
            begun = asyncio.Semaphore(0)

            async def stream(question: str) -> bytes:
                body = {"model": "m", "stream": True, "messages": [{"role": "user", "content": question}]}
                read = b""
                async with (
                    httpx.AsyncClient(timeout=300) as client,
                    client.stream("POST", f"{proxy.url}/v1/chat/completions", json=body) as answer,
                ):
                    async for each in answer.aiter_raw():
                        read += each
                        begun.release()
                return read

            questions = [f"{kind} {number}" for kind in ("soon", "for ever") for number in range(4)]
            tasks = [asyncio.create_task(stream(question)) for question in questions]
            for _ in tasks:
                await begun.acquire()
            proxy.process.send_signal(signal.SIGTERM)
            await until_async(lambda: "stopping" in log.read_text())
            server.more.set()
            read = await asyncio.gather(*tasks)
            return read, await asyncio.to_thread(proxy.process.wait, 300)

        read, code = asyncio.run(streams())
    assert code == 0
    assert all(each == part("one") + part("two", "stop") + b"data: [DONE]\n\n" for each in read[:4])
    assert all(each.startswith(part("one")) and b"error" in each and b"[DONE]" not in each for each in read[4:])
    said = log.read_text()
    assert "Traceback" not in said
    assert "ERROR" not in said
    store = open_store(data / "responses.db")
    assert {entry.prompt for entry in store.list_entries()} == {"kept", *(f"soon {number}" for number in range(4))}
    store.close()


def test_sighup_reloads_the_rules_and_a_second_ctrl_c_waits_for_nobody(
    upstream: tuple[str, Upstream], tmp_path: Path
) -> None:
    url, _ = upstream
    data, log = tmp_path / "data", tmp_path / "log"
    with (
        proxy_process(url, data, log, "--no-semantic", limits__drain_seconds=300.0) as proxy,
        httpx.Client(timeout=300) as client,
    ):
        assert stored(ask(proxy.url, "kept"))
        rules = data / "kvproxy.toml"
        rules.write_text("[[rules]]\nname = 'off'\ncache = maybe\n")
        proxy.process.send_signal(signal.SIGHUP)
        # A signal during a reload would read the file once more, instead of both versions.
        until(lambda: "the settings were not reloaded" in log.read_text())
        assert "; hit" in ask(proxy.url, "kept").headers["cache-status"]
        rules.write_text("[[rules]]\nname = 'off'\ncache = false\n")
        proxy.process.send_signal(signal.SIGHUP)
        until(lambda: "fwd=bypass" in ask(proxy.url, "kept").headers["cache-status"])
        body = {"model": "m", "stream": True, "messages": [{"role": "user", "content": "for ever"}]}
        sent = client.build_request("POST", f"{proxy.url}/v1/chat/completions", json=body)
        assert next(client.send(sent, stream=True).iter_raw()) == part("one")
        for _ in range(2):
            proxy.process.send_signal(signal.SIGINT)
            time.sleep(0.02)
        assert proxy.process.wait(300) == 0
    store = open_store(data / "responses.db")
    assert {entry.prompt for entry in store.list_entries()} == {"kept"}
    store.close()
