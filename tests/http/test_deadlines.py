"""Requests end: at their deadline, and when the proxy is told to stop."""

import asyncio
import contextlib
import json
import re
from collections.abc import AsyncIterator, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import httpx
import pytest
from starlette.requests import Request
from starlette.responses import JSONResponse, Response, StreamingResponse

from kvproxy.http.services import Services
from kvproxy.journal.reader import JournalReader
from tests.plain_upstream import WHOLE
from tests.polling import until
from tests.processes import answers
from tests.requests import chat, post
from tests.servers import run_front, run_upstream

EVENT = b'data: {"choices": [{"index": 0, "delta": {"content": "a"}}]}\n\n'


class Hanging:
    """An upstream that never answers the text `hang`, and starts a stream that never ends for the text `stream`."""

    def __init__(self) -> None:
        self.inside = 0

    async def answer(self, request: Request) -> Response:
        body = await request.body()
        if b"hang" in body:
            self.inside += 1
            try:
                while (await request.receive())["type"] != "http.disconnect":
                    pass
            finally:
                self.inside -= 1
            return Response()
        if b"stream" in body:
            return StreamingResponse(self._stream(), media_type="text/event-stream")
        return JSONResponse(WHOLE)

    async def _stream(self) -> AsyncIterator[bytes]:
        self.inside += 1
        try:
            while True:
                yield EVENT
                await asyncio.sleep(0.02)
        finally:
            self.inside -= 1


@pytest.fixture(scope="module")
def hanging() -> Iterator[tuple[str, Hanging]]:
    server = Hanging()
    with run_upstream(server.answer) as url:
        yield url, server


@pytest.fixture(scope="module")
def proxy(hanging: tuple[str, Hanging], tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[str, Services]]:
    data = tmp_path_factory.mktemp("proxy")
    limits = {"request_seconds": 1.0, "choices": 4}
    with run_front(data, hanging[0], limits=limits) as running:
        yield running


@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/messages", "/v1/rerank"])
def test_a_request_that_hangs_is_ended(proxy: tuple[str, Services], hanging: tuple[str, Hanging], path: str) -> None:
    def count() -> float:
        sample = r'kvproxy_limited_total{limit="request_seconds"} (\S+)'
        found = re.search(sample, proxy[1].metrics.render().decode())
        return float(found[1]) if found else 0.0

    before = count()
    answer = post(proxy[0], "hang", path, {"max_tokens": 5})
    assert answer.status_code == 504
    error = answer.json()["error"]
    assert "limits.request_seconds" in error["message"]
    if path != "/v1/messages":
        assert error["code"] == "deadline_exceeded"
    assert count() == before + 1
    # The upstream's work is given up too.
    until(lambda: hanging[1].inside == 0)


def test_a_stream_that_goes_on_too_long_ends_with_an_error(
    proxy: tuple[str, Services], hanging: tuple[str, Hanging]
) -> None:
    answer = post(proxy[0], "x", fields={"stream": True})
    events = [line for line in answer.text.split("\n\n") if line]
    assert answer.status_code == 200
    assert events[0] + "\n\n" == EVENT.decode()
    assert json.loads(events[-1].split("data: ")[1])["error"]["code"] == "deadline_exceeded"
    until(lambda: hanging[1].inside == 0)
    until(lambda: not proxy[1].path.requests_in_flight)
    assert [(each.layer, each.reason) for each in proxy[1].journal.latest(1)] == [("error", "error-timeout")]
    text = httpx.get(f"{proxy[0]}/metrics").text
    assert 'kvproxy_requests_total{endpoint="chat",layer="error",status="200"} 1.0' in text


def test_a_request_may_ask_for_less_time(proxy: tuple[str, Services]) -> None:
    def ask(question: str, seconds: str) -> httpx.Response:
        return post(proxy[0], question, x_kvproxy_timeout=seconds)

    for seconds in ("0.1", "0"):
        told = ask("hang", seconds).json()["error"]["message"]
        # It names what set the limit, and not the setting, which allows more.
        assert f"within {seconds} s, the limit of the header x-kvproxy-timeout" in told
        assert "limits.request_seconds" not in told
    told = ask("hang", "1000").json()["error"]["message"]
    assert "within 1 s, the limit of the setting limits.request_seconds" in told
    assert [each.reason for each in proxy[1].journal.latest(3)] == ["error-timeout", *["disconnected-timeout"] * 2]
    assert ask("Hi", "10").status_code == 200
    assert ask("Hi", "soon").status_code == 400


@pytest.mark.parametrize("field", ["n", "best_of"])
def test_a_request_may_not_ask_for_any_number_of_answers(proxy: tuple[str, Services], field: str) -> None:
    for number, status in ((4, 200), (5, 400), (1e30, 400)):
        answer = post(proxy[0], "n", fields={field: number})
        assert answer.status_code == status
    assert (answer.json()["error"]["param"], "limits.choices" in answer.text) == (field, True)


def test_the_deadline_frees_the_blocks_of_the_embedded_engine(demo: tuple[str, Services]) -> None:
    url, services = demo
    body = {"model": "demo", "prompt": "hang", "max_tokens": 900, "ignore_eos": True, "n": 4}
    answer = httpx.post(f"{url}/v1/completions", json=body, headers={"x-kvproxy-timeout": "0.05"}, timeout=300)
    assert (answer.status_code, answer.json()["error"]["code"]) == (504, "deadline_exceeded")
    until(lambda: httpx.get(f"{url}/admin/blocks/stats").json()["used"] == 0)
    assert services.backend.admission.active == 0  # type: ignore[attr-defined]


def test_a_stop_lets_streams_go_on_and_takes_no_new_requests(hanging: tuple[str, Hanging], tmp_path: Path) -> None:
    """After the drain time, requests end with an error, and a client that does not read is waited for no longer."""
    with contextlib.ExitStack() as running, ThreadPoolExecutor() as threads:
        url, _ = running.enter_context(run_front(tmp_path, hanging[0], limits={"drain_seconds": 0.5}))
        hung = threads.submit(httpx.post, f"{url}/v1/rerank", json=chat("hang"), timeout=300)
        asked = threads.submit(httpx.post, f"{url}/v1/chat/completions", json=chat("hang"), timeout=300)
        until(lambda: hanging[1].inside > 1)
        with (
            httpx.stream("POST", f"{url}/v1/rerank", json=chat("stream")),
            httpx.stream("POST", f"{url}/v1/chat/completions", json=chat("y", stream=True)) as answer,
        ):
            parts = answer.iter_raw()
            assert next(parts).startswith(EVENT)
            stopped = threads.submit(running.close)
            until(lambda: not answers(url + "/health"))
            assert next(parts).startswith(EVENT)
            assert b'"code":"shutting_down"' in b"".join(parts)
            assert (hung.result(300).status_code, hung.result().headers["retry-after"]) == (503, "1")
            assert asked.result(300).json()["error"]["code"] == "shutting_down"
            stopped.result(300)
    with contextlib.closing(JournalReader(tmp_path / "journal.db")) as reader:
        ended = {(each.status, each.layer, each.reason) for each in reader.latest(2)}
    assert ended == {(503, "error", "error-stopped"), (200, "error", "error-stopped")}
