"""Flights share one generation, and end it when nobody waits for it any more."""

import asyncio
import gc
import weakref
from collections.abc import AsyncIterator, Iterator

import pytest

from kvproxy.apis.json import JsonObject
from kvproxy.errors import UpstreamUnreachable
from kvproxy.flow.backend_response import Source as Answer
from kvproxy.flow.single_flight import STEP, Flight, Flights
from kvproxy.index.coming import Coming
from kvproxy.index.entry import Entry
from tests.index.entries import make_entry

PARTS = [b"a", b"b", b"c"]


class Keeper:
    """Keeps what passes of a source."""

    limit = 1_000_000

    def __init__(self, source: "Source") -> None:
        self._source = source

    def push(self, source: Answer, chunk: bytes) -> bool:
        return source.said.push(chunk)

    async def finish(self, source: Answer) -> Coming | None:
        assert self._source.kept == PARTS
        self._source.finished += 1
        known: asyncio.Future[Entry | None] = asyncio.get_running_loop().create_future()
        known.set_result(make_entry(id="an entry"))
        return Coming("key", None, known, asyncio.create_task(self._source.stored.wait()))


class Source:
    """Work that waits at a gate before each part, and counts how often it was begun, finished and closed."""

    def __init__(self, error_at: int | None = None) -> None:
        self.begun = self.finished = self.closed = 0
        self.error_at = error_at
        self.kept: list[bytes] = []
        self.gate = asyncio.Semaphore(0)
        self.stored = asyncio.Event()

    def flight(self) -> Flight:
        return Flight(self._open, Keeper(self))

    def release(self, parts: int) -> None:
        for _ in range(parts):
            self.gate.release()

    async def _open(self) -> Answer:
        self.begun += 1
        return Answer(200, [], self._parts(), self, self._close)

    async def _parts(self) -> AsyncIterator[bytes]:
        for number, part in enumerate(PARTS):
            await self.gate.acquire()
            if number == self.error_at:
                raise UpstreamUnreachable("cut")
            yield part

    def push(self, chunk: bytes) -> bool:
        self.kept.append(chunk)
        return chunk == PARTS[-1]

    async def whole(self) -> JsonObject | None:
        return {}

    async def _close(self) -> None:
        self.closed += 1


async def until_landed(flights: Flights) -> None:
    for _ in range(100):
        await asyncio.sleep(0)
    assert len(flights) == 0


async def test_a_late_client_gets_everything_from_the_start() -> None:
    source, flights = Source(), Flights()
    first, joined = flights.board("k", source.flight)
    assert not joined
    source.release(2)
    seen = first.chunks()
    assert [await anext(seen), await anext(seen)] == PARTS[:2]
    second, joined = flights.board("k", source.flight)
    assert joined
    assert second is first
    source.release(1)
    assert await second.body() == b"abc"
    assert [part async for part in seen] == PARTS[2:]
    assert (source.begun, source.finished) == (1, 1)
    await until_landed(flights)
    assert source.closed == 1


@pytest.fixture
def no_look_for_circles() -> Iterator[None]:
    gc.collect()
    gc.disable()
    yield
    gc.enable()


@pytest.mark.parametrize("parts", [0, 1])
async def test_a_flight_that_its_client_has_left_is_in_no_circle(no_look_for_circles: None, parts: int) -> None:
    flights = Flights()

    async def leave() -> "weakref.ref[Flight]":
        source = Source()
        flight, _ = flights.board("k", source.flight)
        source.release(parts)
        for _ in range(20):
            await asyncio.sleep(0)
        flight.leave()
        return weakref.ref(flight)

    flight = await leave()
    await until_landed(flights)
    assert flight() is None


async def test_only_who_asks_to_know_waits_until_the_answer_is_stored() -> None:
    source, flights = Source(), Flights()
    flight, _ = flights.board("k", source.flight)
    source.release(3)
    assert await flight.body() == b"abc"
    assert flight.entry == "an entry"
    second, _ = flights.board("k", lambda: flight)
    sure = asyncio.create_task(anext(second.chunks(confirm=True)))
    told = asyncio.create_task(second.stored())
    for _ in range(20):
        await asyncio.sleep(0)
    assert not sure.done()
    assert not told.done()
    source.stored.set()
    assert await sure == b"a"
    assert await told
    await until_landed(flights)


async def test_the_first_may_leave_and_the_last_ends_the_work() -> None:
    source, flights = Source(), Flights()
    first, _ = flights.board("k", source.flight)
    second, _ = flights.board("k", source.flight)
    source.release(1)
    assert await anext(second.chunks()) == b"a"
    first.leave()
    await asyncio.sleep(0)
    assert not second.task.done()
    second.leave()
    await until_landed(flights)
    assert second.task.cancelled()
    assert (source.finished, source.closed) == (0, 1)


async def test_nobody_boards_a_flight_that_is_being_cancelled() -> None:
    source, flights = Source(), Flights()
    first, _ = flights.board("k", source.flight)
    await first.head()
    first.leave()
    second, joined = flights.board("k", source.flight)
    assert not joined
    source.release(3)
    assert await second.body() == b"abc"
    second.leave()
    await until_landed(flights)
    assert source.begun == source.closed == 2


async def test_a_flight_that_lands_makes_way_for_its_own_place_only() -> None:
    source, flights = Source(), Flights()
    first, _ = flights.board("k", source.flight)
    await first.head()
    first.leave()
    second, _ = flights.board("k", source.flight)
    for _ in range(10):
        await asyncio.sleep(0)
    assert first.task.done()
    # The first one landed, and the second is found in its place.
    assert flights.board("k", source.flight) == (second, True)
    source.release(3)
    assert await second.body() == b"abc"
    await until_landed(flights)
    assert flights._boarding == {}


async def test_everyone_is_told_of_an_error_and_nothing_is_kept() -> None:
    source, flights = Source(error_at=1), Flights()
    boarded = [flights.board("k", source.flight)[0] for _ in range(3)]
    source.release(2)
    results = await asyncio.gather(*(flight.body() for flight in boarded), return_exceptions=True)
    assert [type(result) for result in results] == [UpstreamUnreachable] * 3
    await until_landed(flights)
    assert (source.finished, source.closed) == (0, 1)


async def test_an_error_before_the_head_is_raised_there() -> None:
    async def refuse() -> Answer:
        raise UpstreamUnreachable("refused")

    source, flights = Source(), Flights()
    flight, _ = flights.board("k", lambda: Flight(refuse, Keeper(source)))
    with pytest.raises(UpstreamUnreachable, match="refused"):
        await flight.head()
    await until_landed(flights)
    assert source.finished == 0


async def test_close_ends_everything() -> None:
    source, flights = Source(), Flights()
    for key in "ab":
        await flights.board(key, source.flight)[0].head()
    await flights.close()
    await until_landed(flights)
    assert source.closed == 2


async def test_a_large_part_is_read_in_steps() -> None:
    """100 streams of large parts kept everybody else waiting for seconds."""
    large, turns = b"x" * 50 * STEP, [0]
    read: list[tuple[int, int]] = []

    class Reading(Keeper):
        def push(self, source: Answer, chunk: bytes) -> bool:
            read.append((turns[0], len(chunk)))
            return False

        async def finish(self, source: Answer) -> str | None:
            return None

    async def parts() -> AsyncIterator[bytes]:
        yield large

    async def others() -> None:
        while True:
            turns[0] += 1
            await asyncio.sleep(0)

    source = Source()

    async def opened() -> Answer:
        return Answer(200, [], parts(), source, source._close, streams=True, parsed=True)

    beside = asyncio.create_task(others())
    flight, _ = Flights().board("k", lambda: Flight(opened, Reading(source)))
    assert await flight.body() == large
    beside.cancel()
    assert sum(size for _, size in read) == len(large)
    assert max(size for _, size in read) <= STEP
    assert len({turn for turn, _ in read}) == len(read)
