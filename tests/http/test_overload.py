"""Overload: requests above the bound are refused with `Retry-After`, and the rest is served."""

import asyncio
import threading
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from kvproxy.settings import load_settings
from tests.http.test_request_heads import connected, post, statuses, until_closed
from tests.plain_upstream import WHOLE
from tests.polling import until
from tests.requests import chat
from tests.servers import run_app, run_front, run_proxy


class Slow:
    """An upstream whose answers wait at a gate."""

    def __init__(self) -> None:
        self.gate = threading.Event()
        self.most = self.inside = 0

    async def answer(self, request: Request) -> Response:
        self.inside += 1
        self.most = max(self.most, self.inside)
        await asyncio.to_thread(self.gate.wait)
        self.inside -= 1
        return JSONResponse(WHOLE)


@pytest.fixture
def slow(tmp_path: Path) -> Iterator[tuple[str, Slow]]:
    server = Slow()
    routes = [Route("/health", lambda request: Response()), Route("/{path:path}", server.answer, methods=["POST"])]
    limits = {"queue_size": 3, "queue_seconds": 60.0}
    with (
        run_app(Starlette(routes=routes)) as upstream,
        run_front(tmp_path, upstream, forward={"max_connections": 4}, limits=limits) as (url, _),
    ):
        yield url, server


@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/rerank"])
def test_hanging_requests_make_no_further_one_wait_for_ever(slow: tuple[str, Slow], path: str) -> None:
    url, server = slow
    server.gate.set()
    httpx.post(f"{url}/v1/chat/completions", json=chat("known"))
    server.gate.clear()

    async def all_of_them() -> list[httpx.Response]:
        async with httpx.AsyncClient(timeout=300) as client:
            asked = [asyncio.create_task(client.post(url + path, json=chat(number))) for number in range(20)]
            waiting = set(asked)
            while len(waiting) > 7:
                _, waiting = await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
            # The caches and the operator are served.
            known = await client.post(f"{url}/v1/chat/completions", json=chat("known"))
            assert "hit" in known.headers["cache-status"]
            for served in ("/health", "/admin/cache"):
                assert (await client.get(url + served)).status_code == 200
            # The four admitted requests are in flight.
            await asyncio.to_thread(until, lambda: server.inside == 4)
            server.gate.set()
            return await asyncio.gather(*asked)

    answers = asyncio.run(all_of_them())
    assert sorted(answer.status_code for answer in answers) == [200] * 7 + [503] * 13
    assert server.most == 4
    for answer in answers:
        if answer.status_code == 503:
            assert answer.headers["retry-after"] == "1"
            assert answer.json()["error"]["code"] == "overloaded"
    assert httpx.post(url + path, json=chat("after"), timeout=300).status_code == 200


def test_clients_that_leave_make_room(slow: tuple[str, Slow]) -> None:
    url, server = slow

    async def leave() -> None:
        async with httpx.AsyncClient(timeout=0.3) as client:
            asked = [client.post(f"{url}/v1/chat/completions", json=chat(number)) for number in range(7)]
            await asyncio.gather(*asked, return_exceptions=True)

    asyncio.run(leave())
    until(lambda: server.most > 0)
    server.gate.set()
    # That they left may be noticed a moment later.
    until(lambda: httpx.post(f"{url}/v1/chat/completions", json=chat("after"), timeout=300).status_code == 200)


def test_the_engine_takes_no_more_than_it_has_a_line_for(tmp_path: Path) -> None:
    settings = load_settings(
        data=tmp_path, cache={"enabled": False}, engine={"max_num_seqs": 2}, limits={"queue_size": 3}
    )

    async def ask(client: httpx.AsyncClient, number: int) -> int:
        body = {"model": "demo", "prompt": f"question {number}", "max_tokens": 16, "ignore_eos": True}
        return (await client.post("/v1/completions", json=body)).status_code

    async def all_of_them(url: str) -> list[int]:
        async with httpx.AsyncClient(base_url=url, timeout=300) as client:
            return await asyncio.gather(*(ask(client, number) for number in range(15)))

    with run_proxy(settings) as (url, services):
        statuses = asyncio.run(all_of_them(url))
        assert set(statuses) == {200, 503}
        assert statuses.count(200) >= 5
        assert httpx.get(f"{url}/health").status_code == 200
        assert services.backend.admission.active == 0  # type: ignore[attr-defined]


def test_a_body_that_trickles_in_is_given_up(tmp_path: Path) -> None:
    slow = run_front(tmp_path, "http://127.0.0.1:9", limits={"body_seconds": 0.3})
    with slow as (url, _), connected(httpx.URL(url).port or 0) as client:
        client.sendall(post(b"/v1/chat/completions", b"x" * 100)[:-90])
        answer = until_closed(client)
    assert statuses(answer) == [b"408"]
    assert b"request_timeout" in answer
