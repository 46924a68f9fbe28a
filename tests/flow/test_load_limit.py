"""Cache misses wait while the event loop lags, and only then."""

import asyncio
import math
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import httpx
import pytest
from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from kvproxy.errors import ProxyOverloaded
from kvproxy.exchange import Exchange
from kvproxy.flow.answered_bodies import MAX_ANSWERED, AnsweredBodies
from kvproxy.flow.layers import load_limit
from kvproxy.flow.layers.load_limit import BURST, LEAST_LIMIT, ConcurrencyLimit, LimitLoad
from kvproxy.http.services import Services
from kvproxy.journal.journal import Journal
from kvproxy.operations.record_query import RecordQuery
from kvproxy.settings.limits import LimitSettings
from tests.plain_upstream import WHOLE
from tests.polling import until
from tests.requests import chat
from tests.servers import run_front, run_upstream

MAX_LAG, MAX_WAIT, TICK = 0.1, 5.0, 0.02
_IN_FLIGHT = 8


class Turns:
    """A limit, and a clock that advances with each turn of the event loop."""

    def __init__(self) -> None:
        self.now = 100.0
        self.limit = ConcurrencyLimit(MAX_LAG, MAX_WAIT, self.now)

    def run(self, turns: int, lag: float, in_flight: int, completed: int = 0, oldest_wait: float = 0.0) -> float:
        for _ in range(turns):
            self.now += TICK + lag
            self.limit.update(self.now, lag, in_flight, completed, oldest_wait)
        return self.limit.value

    def lag_for_long(self) -> float:
        return self.run(5, lag=0.4, in_flight=400)


def test_misses_that_wait_for_a_slow_upstream_are_not_limited() -> None:
    assert Turns().run(1000, lag=0.0, in_flight=2000) == math.inf


def test_single_stalls_limit_nothing() -> None:
    turns = Turns()
    for stall in (0.3, 2.0, 20.0):
        turns.run(1, lag=stall, in_flight=2000)
        assert turns.run(2, lag=0.01, in_flight=2000) == math.inf


def test_a_lag_that_varies_limits_too() -> None:
    turns = Turns()
    for _ in range(5):
        turns.run(1, lag=0.15, in_flight=400)
        turns.run(1, lag=0.06, in_flight=400)
    assert turns.limit.value < 400


def test_a_lasting_lag_limits_in_proportion() -> None:
    turns = Turns()
    assert turns.lag_for_long() == 200
    # The misses that entered before still lag.
    assert turns.run(5, lag=0.3, in_flight=300) == 200
    assert turns.run(1, lag=0.125, in_flight=200) == pytest.approx(160)
    assert turns.run(20, lag=1.0, in_flight=LEAST_LIMIT) == LEAST_LIMIT


def test_a_limit_between_two_numbers_falls_too() -> None:
    turns = Turns()
    turns.limit.value = 416.3  # Admits 417.
    assert turns.run(1, lag=0.125, in_flight=417) == pytest.approx(416.3 * 0.8)


def test_the_limit_rises_while_it_is_reached_without_lag() -> None:
    turns = Turns()
    least = turns.lag_for_long()
    assert turns.run(10, lag=0.08, in_flight=int(least), oldest_wait=1.0) == least
    assert turns.run(10, lag=0.01, in_flight=1, oldest_wait=1.0) == least
    assert turns.run(10, lag=0.01, in_flight=int(least), oldest_wait=1.0) > least


def test_the_limit_ends_after_the_last_waiting_miss() -> None:
    turns = Turns()
    turns.lag_for_long()
    assert turns.run(500, lag=0.0, in_flight=1, oldest_wait=0.1) < math.inf
    assert turns.run(200, lag=0.0, in_flight=1) < math.inf
    assert turns.run(100, lag=0.0, in_flight=1) == math.inf


def test_no_miss_waits_for_ever_where_something_else_causes_the_lag() -> None:
    turns = Turns()
    turns.lag_for_long()
    turns.run(50, lag=0.4, in_flight=LEAST_LIMIT, oldest_wait=1.0)
    assert turns.run(50, lag=0.4, in_flight=LEAST_LIMIT, oldest_wait=2 * MAX_WAIT + 0.1) > 1000


def test_the_queue_holds_what_completes_within_the_maximum_wait() -> None:
    turns = Turns()
    assert turns.limit.max_waiting == BURST
    turns.run(500, lag=0.0, in_flight=100, completed=30)
    assert turns.limit.max_waiting == pytest.approx(MAX_WAIT * 30 / TICK, rel=0.01)
    turns.run(500, lag=0.0, in_flight=100)
    assert turns.limit.max_waiting == BURST


def test_a_queue_that_stays_full_holds_no_burst_until_it_was_empty() -> None:
    turns = Turns()
    assert turns.run(2000, lag=0.0, in_flight=100, oldest_wait=1.0) == math.inf
    assert turns.limit.max_waiting == BURST
    for _ in range(500):
        turns.now += TICK
        turns.limit.update(turns.now, 0.0, 100, 2, 1.0, is_full=True)
    assert turns.limit.max_waiting == pytest.approx(MAX_WAIT * 2 / TICK, rel=0.01)
    turns.run(1, lag=0.0, in_flight=100, oldest_wait=1.0)
    assert turns.limit.max_waiting < BURST
    turns.run(1, lag=0.0, in_flight=100)
    assert turns.limit.max_waiting == BURST


def test_a_limited_proxy_has_no_second_burst() -> None:
    turns = Turns()
    turns.lag_for_long()
    for _ in range(500):
        turns.now += TICK
        turns.limit.update(turns.now, 0.06, 200, 2, 1.0, is_full=True)
    full = turns.limit.max_waiting
    assert full == pytest.approx(MAX_WAIT * 2 / TICK, rel=0.01)
    # The queue is empty for a moment, and few misses arrive: the capacity stays.
    turns.run(50, lag=0.0, in_flight=1)
    assert turns.limit.max_waiting == full
    turns.run(300, lag=0.0, in_flight=1)
    assert turns.limit.value == math.inf
    assert turns.limit.max_waiting == BURST


def exchange(number: int = 0) -> Exchange:
    return Exchange("chat", f"{number}")


async def test_misses_enter_in_order_and_their_places_are_free_after_they_end(monkeypatch: pytest.MonkeyPatch) -> None:
    load, entered = LimitLoad(LimitSettings()), list[int]()
    first = exchange()
    await load.enter(first)
    monkeypatch.setattr(load._limit, "value", 1)

    async def enter(number: int) -> None:
        miss = exchange(number)
        await load.enter(miss)
        entered.append(number)
        load.finish(miss)

    waiting = [asyncio.create_task(enter(number)) for number in range(5)]
    await asyncio.sleep(0)
    # A client that disconnects leaves the queue.
    waiting.pop(0).cancel()
    await asyncio.sleep(0)
    assert entered == []
    load.finish(first)
    await asyncio.gather(*waiting)
    assert entered == [1, 2, 3, 4]
    assert not load._in_flight
    assert not load._waiting
    load.close()


class SlowJournal(Journal):
    is_behind = True


async def test_misses_wait_in_the_queue_while_the_journal_is_behind(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(load_limit, "BURST", 1)
    journal = SlowJournal()
    load, first = LimitLoad(LimitSettings(), journal), exchange()
    waiting = asyncio.create_task(load.enter(first))
    await asyncio.sleep(0)
    assert load._waiting
    assert not load._in_flight
    with pytest.raises(ProxyOverloaded):
        await load.enter(exchange(1))
    # A refusal after a lookup would delay the journal.
    assert load.refuses_unread(b"new")
    journal.is_behind = False
    assert not load.refuses_unread(b"new")
    await asyncio.wait_for(waiting, 300)
    assert load._in_flight == {first}
    load.finish(first)
    load.close()


async def test_a_client_that_disconnects_at_its_turn_holds_no_place(monkeypatch: pytest.MonkeyPatch) -> None:
    load, first, second = LimitLoad(LimitSettings()), exchange(1), exchange(2)
    await load.enter(first)
    monkeypatch.setattr(load._limit, "value", 1)

    async def enter() -> None:
        try:
            await load.enter(second)
        finally:
            load.finish(second)

    waiting = asyncio.create_task(enter())
    await asyncio.sleep(0)
    load.finish(first)
    waiting.cancel()
    with suppress(asyncio.CancelledError):
        await waiting
    assert not load._in_flight
    assert not load._waiting


async def test_a_miss_beyond_the_queue_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(load_limit, "BURST", 1)
    load, first = LimitLoad(LimitSettings()), exchange()
    await load.enter(first)
    monkeypatch.setattr(load._limit, "value", 1)
    waiting = asyncio.create_task(load.enter(exchange(1)))
    await asyncio.sleep(0)
    with pytest.raises(ProxyOverloaded, match=r"limits\.overload_seconds") as refused:
        await load.enter(exchange(2))
    assert (refused.value.status, refused.value.retry_after, refused.value.limit) == (503, 1.0, "overload_seconds")
    load.finish(first)
    await waiting


class Gate:
    """An upstream whose responses wait while it is closed."""

    def __init__(self) -> None:
        self._loop: asyncio.AbstractEventLoop | None = None
        self._opened = asyncio.Event()
        self._opened.set()

    async def answer(self, request: Request) -> Response:
        self._loop = asyncio.get_running_loop()
        if request.method == "POST":
            await self._opened.wait()
        return JSONResponse(WHOLE)

    @contextmanager
    def closed(self) -> Iterator[None]:
        assert self._loop is not None, "no request has arrived"
        self._loop.call_soon_threadsafe(self._opened.clear)
        try:
            yield
        finally:
            self._loop.call_soon_threadsafe(self._opened.set)


async def test_misses_beyond_a_reduced_limit_count_as_waiting(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(load_limit, "BURST", 3)
    load = LimitLoad(LimitSettings())
    for number in range(5):
        await load.enter(exchange(number))
    monkeypatch.setattr(load._limit, "value", 2)
    with pytest.raises(ProxyOverloaded):
        await load.enter(exchange(5))


def test_only_equal_bodies_count_as_answered() -> None:
    answered = AnsweredBodies()
    for number in range(1000):
        answered.add(b"%d" % number)
    assert sum(b"%d" % number in answered for number in range(1000)) > 900
    assert not any(b"%d" % number in answered for number in range(1000, 100_000))
    before = len(answered._hashes)
    for number in range(2 * MAX_ANSWERED):
        answered.add(b"%d" % number)
    assert len(answered._hashes) == before == MAX_ANSWERED


@pytest.mark.parametrize(("unread_lag", "records"), [(math.inf, 3), (0.25, 1)], ids=["read", "unread"])
def test_a_lagging_proxy_serves_hits_queues_misses_and_refuses_the_rest(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, unread_lag: float, records: int
) -> None:
    monkeypatch.setattr(load_limit, "UNREAD_LAG", unread_lag)
    monkeypatch.setattr(load_limit, "BURST", 3)
    monkeypatch.setattr(load_limit, "LEAST_LIMIT", _IN_FLIGHT)
    monkeypatch.setattr(load_limit, "MEASURED_FROM", _IN_FLIGHT)
    monkeypatch.setattr(load_limit, "LAGGING_SECONDS", 0.05)
    update = ConcurrencyLimit.update

    def update_with_lag(limit: ConcurrencyLimit, now: float, lag: float, in_flight: int, *others: Any) -> None:
        update(limit, now, 1.0, in_flight, 0, 0.0)

    monkeypatch.setattr(ConcurrencyLimit, "update", update_with_lag)
    gate = Gate()
    with run_upstream(gate.answer) as upstream, run_front(tmp_path, upstream) as (url, services):
        path = f"{url}/v1/chat/completions"
        httpx.post(path, json=chat("known"), timeout=300)
        asyncio.run(overload(path, gate, services))
        limited = 'kvproxy_limited_total{limit="overload_seconds"} 4.0'
        assert limited in httpx.get(f"{url}/metrics", timeout=300).text
    reasons = [record.reason for record in services.journal.read(lambda reader: reader.records(RecordQuery()))]
    # A forwarded request that is refused has no record, and neither has a request that is refused before its route.
    assert reasons.count("refused-overload") == records


async def overload(path: str, gate: Gate, services: Services) -> None:
    load, limits = services.path.load, httpx.Limits(max_connections=None)
    async with httpx.AsyncClient(timeout=300, limits=limits) as client:
        with gate.closed():
            admitted = [asyncio.create_task(client.post(path, json=chat(n))) for n in range(_IN_FLIGHT)]
            await asyncio.to_thread(until, lambda: load._limit.value < math.inf)
            queued = [asyncio.create_task(client.post(path, json=chat(f"queued {n}"))) for n in range(3)]
            await asyncio.to_thread(until, lambda: len(load._waiting) == 3)
            messages, rerank = (path.replace("chat/completions", name) for name in ("messages", "rerank"))
            # A body of several parts, another format of errors, and a forwarded request, too.
            large = chat("refused " + "x" * 200_000)
            bodies = ((path, chat("refused")), (path, large), (messages, chat("refused")), (rerank, {}))
            for url, body in bodies:
                refused = await client.post(url, json=body, headers={"x-request-id": "mine"})
                assert (refused.status_code, refused.headers["retry-after"]) == (503, "1")
                assert refused.headers["x-request-id"] == "mine"
                assert refused.headers["date"]
                assert "limits.overload_seconds" in refused.json()["error"]["message"]
                code = refused.json()["error"].get("code")
                assert code == ("overloaded" if url != messages else None)
            hit = await client.post(path, json=chat("known"))
            assert "hit" in hit.headers["cache-status"]
        responses = await asyncio.gather(*admitted, *queued)
    assert {response.status_code for response in responses} == {200}
    assert not load._waiting
