"""Identical requests on several proxies reach the upstream once."""

import asyncio
import threading
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import httpx
import psycopg
import pytest
from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from kvproxy.clients.shared_state import LEASE_SECONDS, SharedState
from kvproxy.index.errors import CacheStoreError
from kvproxy.index.store import open_postgres
from kvproxy.index.store.database import Database, Row
from kvproxy.index.store.postgres.database import PostgresDatabase
from tests.fleet.proxies import Proxy, run_proxies
from tests.plain_upstream import WHOLE
from tests.polling import until, until_async
from tests.servers import run_upstream, until_stored, waiting_clients

NOW = "extract(epoch from clock_timestamp())"


def slow(calls: list[bytes]) -> Callable[[Request], Awaitable[Response]]:
    """Return an upstream that records its requests, and answers them after half a second."""

    async def answer(request: Request) -> Response:
        if request.method == "POST":
            calls.append(await request.body())
        await asyncio.sleep(0.5)
        return JSONResponse(WHOLE)

    return answer


def ask_all(proxies: list[Proxy], requests: int, **more: object) -> list[httpx.Response]:
    with ThreadPoolExecutor(requests) as threads:
        return list(threads.map(lambda number: proxies[number % len(proxies)].ask(**more), range(requests)))


def test_fifty_identical_requests_on_three_proxies_are_one(empty_postgres: str, tmp_path: Path) -> None:
    calls: list[bytes] = []
    with run_upstream(slow(calls)) as upstream, run_proxies(tmp_path, empty_postgres, upstream) as proxies:
        answers = ask_all(proxies, 50)
        assert {answer.status_code for answer in answers} == {200}
        assert {answer.json()["choices"][0]["message"]["content"] for answer in answers} == {"Hi"}
        assert len(calls) == 1
        waited = [answer for answer in answers if "; hit" in answer.headers["cache-status"]]
        assert len(waited) >= 2
        # Streams of the same request receive the stored response, too.
        streams = ask_all(proxies, 6, stream=True)
        assert all("[DONE]" in answer.text for answer in streams)
        assert len(calls) == 1
        # A request for a fresh response does not wait.
        fresh = httpx.post(answers[0].request.url, content=calls[0], headers={"cache-control": "no-cache"})
        assert (fresh.status_code, len(calls)) == (200, 2)


def test_each_proxy_asks_once_if_the_upstream_fails(empty_postgres: str, tmp_path: Path) -> None:
    calls: list[bytes] = []
    gate = threading.Event()

    async def fail(request: Request) -> Response:
        if request.method == "POST":
            calls.append(await request.body())
            await asyncio.to_thread(gate.wait)
        return JSONResponse({"error": {"message": "no"}}, 400)

    with (
        run_upstream(fail) as upstream,
        run_proxies(tmp_path, empty_postgres, upstream) as proxies,
        ThreadPoolExecutor(1) as thread,
    ):
        answers = thread.submit(ask_all, proxies, 12)
        until(lambda: sum(waiting_clients(proxy.services) for proxy in proxies) == 12)
        gate.set()
        assert Counter(answer.status_code for answer in answers.result()) == {400: 12}
        assert len(calls) <= 3


@contextmanager
def heartbeats(postgres: str, *, once: bool) -> Iterator[None]:
    """Let the proxy `other` live, or let it die after one heartbeat."""
    ended = threading.Event()
    sql = f"insert into kvproxy.proxies values ('other', {NOW}) on conflict (id) do update set seen = excluded.seen"

    def beat() -> None:
        with psycopg.connect(postgres, autocommit=True) as database:
            while not ended.wait(0.1):
                database.execute(sql)

    with psycopg.connect(postgres, autocommit=True) as database:
        database.execute(sql)
    thread = threading.Thread(target=beat)
    if not once:
        thread.start()
    try:
        yield
    finally:
        ended.set()
        if not once:
            thread.join()


@pytest.mark.parametrize("dies", [True, False])
def test_the_lease_of_a_dead_proxy_ends(empty_postgres: str, tmp_path: Path, dies: bool) -> None:
    calls: list[bytes] = []
    with (
        run_upstream(slow(calls)) as upstream,
        run_proxies(tmp_path, empty_postgres, upstream, count=1) as (proxy,),
        psycopg.connect(empty_postgres, autocommit=True) as database,
        ThreadPoolExecutor(1) as thread,
    ):
        # The key of the request, from the entry of an equal one.
        proxy.ask()
        until_stored(proxy.services)
        key = proxy.services.cache.store.list_entries()[0].key
        # On a busy machine the pool of connections may time out.
        until(lambda: httpx.delete(f"{proxy.url}/admin/cache", params={"all": "true"}).is_success)
        with heartbeats(empty_postgres, once=dies):
            # The proxy releases its own lease after the response.
            database.execute(
                f"insert into kvproxy.leases values (%s, 'other', {NOW}) on conflict (key) do update set owner = 'other'",
                [key],
            )
            answer = thread.submit(proxy.ask)
            until(lambda: answer.done() or waiting_clients(proxy.services) == 1)
            if not dies:
                time.sleep(0.5)
                assert (answer.done(), len(calls)) == (False, 1)
                database.execute("delete from kvproxy.leases")
            assert answer.result().status_code == 200
        assert len(calls) == 2
        assert not database.execute("select 1 from kvproxy.leases where owner = 'other'").fetchall()


@pytest.mark.parametrize("lost", ["release", "acquisition"])
def test_a_lease_that_nobody_holds_ends_while_its_proxy_waits_for_it(
    empty_postgres: str, monkeypatch: pytest.MonkeyPatch, lost: str
) -> None:
    query, attempts = PostgresDatabase.query, []

    def record(database: PostgresDatabase, sql: str, values: Mapping[str, Any] = {}) -> list[Row]:
        attempts.append("insert into leases" in sql)
        return query(database, sql, values)

    def fail(database: PostgresDatabase, sql: str, values: Mapping[str, Any] = {}) -> list[Row]:
        if lost == "acquisition":
            # The server has executed the statement, and its answer is lost.
            query(database, sql, values)
        raise CacheStoreError("the server is away")

    async def lose(state: SharedState) -> None:
        if lost == "release":
            await state.acquire_lease("key")
        change = state.release_lease if lost == "release" else state.acquire_lease
        with monkeypatch.context() as patch:
            patch.setattr(PostgresDatabase, "query", fail)
            with pytest.raises(CacheStoreError):
                await change("key")

    async def age(database: Database, state: SharedState) -> None:
        database.query(f"update leases set acquired = acquired - {LEASE_SECONDS}")
        await state.send_heartbeat()

    async def run() -> None:
        with closing(open_postgres(empty_postgres)) as database:
            state = SharedState(database)
            await state.send_heartbeat()
            await lose(state)
            monkeypatch.setattr(PostgresDatabase, "query", record)
            waiting = asyncio.create_task(state.acquire_lease("key"))
            await until_async(lambda: sum(attempts) > 1)
            await age(database, state)
            while not waiting.done():
                await state.send_heartbeat()
            # Heartbeats keep a lease that is held.
            await age(database, state)
            assert database.query("select 1 as held from leases") == [{"held": 1}]
            await state.release_lease("key")
            assert not database.query("select 1 as held from leases")

    asyncio.run(asyncio.wait_for(run(), 300))


def test_equal_arrays_on_several_proxies_are_computed_once(empty_postgres: str, tmp_path: Path) -> None:
    calls: list[list[str]] = []
    gate = threading.Event()

    async def embed(request: Request) -> Response:
        if request.method == "POST":
            calls.append((await request.json())["input"])
            await asyncio.to_thread(gate.wait)
        inputs = calls[-1] if calls else []
        data = [{"index": place, "embedding": [len(given)]} for place, given in enumerate(inputs)]
        return JSONResponse({"data": data, "model": "e", "usage": {"prompt_tokens": 2, "total_tokens": 2}})

    def ask(proxy: Proxy, inputs: list[str]) -> httpx.Response:
        return httpx.post(f"{proxy.url}/v1/embeddings", json={"model": "e", "input": inputs}, timeout=300)

    with (
        run_upstream(embed) as upstream,
        run_proxies(tmp_path, empty_postgres, upstream, count=2) as proxies,
        ThreadPoolExecutor(4) as threads,
    ):
        arrays = [["a", "bb"], ["a", "bb"], ["a", "bb", "a"], ["a", "a", "bb"]]
        asked = [threads.submit(ask, proxies[number % 2], inputs) for number, inputs in enumerate(arrays)]
        until(lambda: sum(waiting_clients(proxy.services) for proxy in proxies) == 4)
        gate.set()
        answers = [each.result() for each in asked]
        assert calls == [["a", "bb"]]
        for inputs, answer in zip(arrays, answers, strict=True):
            assert [item["embedding"] for item in answer.json()["data"]] == [[len(given)] for given in inputs]
        waited = [answer for answer in answers if "; hit" in answer.headers["cache-status"]]
        assert len(waited) == 2
        # A proxy waited for the other one, which was charged for the inputs.
        assert all(answer.json()["usage"]["total_tokens"] == 0 for answer in waited)
