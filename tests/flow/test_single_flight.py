"""Identical requests share one call of the backend, which ends with its last client; backpressure of its response."""

import asyncio
import gc
import weakref
from collections.abc import AsyncIterator, Iterator
from typing import cast

import pytest

from kvproxy.errors import UpstreamUnreachable
from kvproxy.exchange import Exchange, ResponseFacts
from kvproxy.flow.backend_response import BackendResponse
from kvproxy.flow.single_flight import MAX_UNSENT_BYTES, SharedRequest, SharedRequests
from kvproxy.flow.store_response import PARSE_STEP_BYTES, ResponseRecorder, ResponseWriter
from tests.requests import api_request

PARTS = [b"a", b"b", b"c"]


async def body_of(shared: SharedRequest) -> bytes:
    return b"".join([chunk async for chunk in shared.chunks()])


class Source:
    """A backend that waits at a gate before each part, and counts its calls."""

    def __init__(self, error_at: int | None = None) -> None:
        self.facts = ResponseFacts()
        self.report = None
        self.begun = self.finished = self.closed = 0
        self.error_at = error_at
        self.kept: list[bytes] = []
        self.gate = asyncio.Semaphore(0)

    def shared(self) -> SharedRequest:
        return SharedRequest(self._open, 1_000_000)

    def release(self, parts: int) -> None:
        for _ in range(parts):
            self.gate.release()

    async def _open(self) -> BackendResponse:
        self.begun += 1
        return self.response(self._parts())

    def response(self, parts: AsyncIterator[bytes], *, streams: bool = False) -> BackendResponse:
        """Return a recorded response."""
        response = BackendResponse(200, [], parts, self, self._close, streams=streams)
        exchange = Exchange("chat", "id", request=api_request({"model": "m"}))
        # No writer: nothing is stored.
        ResponseRecorder(cast("ResponseWriter", None), exchange).record(response)
        return response

    async def _parts(self) -> AsyncIterator[bytes]:
        for number, part in enumerate(PARTS):
            await self.gate.acquire()
            if number == self.error_at:
                raise UpstreamUnreachable("cut")
            yield part

    def push(self, chunk: bytes) -> bool:
        self.kept.append(chunk)
        return chunk == PARTS[-1]

    async def result(self) -> None:
        assert self.kept == PARTS
        self.finished += 1

    async def _close(self) -> None:
        self.closed += 1


async def until_ended(requests: SharedRequests) -> None:
    for _ in range(100):
        await asyncio.sleep(0)
    assert len(requests) == 0


async def test_a_late_client_gets_everything_from_the_start() -> None:
    source, requests = Source(), SharedRequests()
    first, joined = requests.join("k", source.shared)
    assert not joined
    source.release(2)
    seen = first.chunks()
    assert [await anext(seen), await anext(seen)] == PARTS[:2]
    second, joined = requests.join("k", source.shared)
    assert joined
    assert second is first
    source.release(1)
    assert await body_of(second) == b"abc"
    assert [part async for part in seen] == PARTS[2:]
    assert (source.begun, source.finished) == (1, 1)
    await until_ended(requests)
    assert source.closed == 1


@pytest.fixture
def no_collection() -> Iterator[None]:
    gc.collect()
    gc.disable()
    yield
    gc.enable()


@pytest.mark.parametrize("parts", [0, 1])
async def test_a_cancelled_request_is_freed_without_garbage_collection(no_collection: None, parts: int) -> None:
    requests = SharedRequests()

    async def leave() -> "weakref.ref[SharedRequest]":
        source = Source()
        shared, _ = requests.join("k", source.shared)
        source.release(parts)
        for _ in range(20):
            await asyncio.sleep(0)
        shared.release()
        return weakref.ref(shared)

    shared = await leave()
    await until_ended(requests)
    assert shared() is None


async def test_the_last_client_cancels_the_request() -> None:
    source, requests = Source(), SharedRequests()
    first, _ = requests.join("k", source.shared)
    second, _ = requests.join("k", source.shared)
    source.release(1)
    assert await anext(second.chunks()) == b"a"
    first.release()
    await asyncio.sleep(0)
    assert not second.task.done()
    second.release()
    await until_ended(requests)
    assert second.task.cancelled()
    assert (source.finished, source.closed) == (0, 1)


async def test_a_cancelled_request_is_not_joined() -> None:
    source, requests = Source(), SharedRequests()
    first, _ = requests.join("k", source.shared)
    await first.wait_for_head()
    first.release()
    second, joined = requests.join("k", source.shared)
    assert not joined
    for _ in range(10):
        await asyncio.sleep(0)
    assert first.task.done()
    # The first one has ended, and the second is found in its place.
    assert requests.join("k", source.shared) == (second, True)
    source.release(3)
    assert await body_of(second) == b"abc"
    await until_ended(requests)
    assert requests._joinable == {}
    assert source.begun == source.closed == 2


async def test_all_clients_receive_an_error_and_nothing_is_stored() -> None:
    source, requests = Source(error_at=1), SharedRequests()
    boarded = [requests.join("k", source.shared)[0] for _ in range(3)]
    source.release(2)
    results = await asyncio.gather(*(body_of(shared) for shared in boarded), return_exceptions=True)
    assert [type(result) for result in results] == [UpstreamUnreachable] * 3
    await until_ended(requests)
    assert (source.finished, source.closed) == (0, 1)

    async def refuse() -> BackendResponse:
        raise UpstreamUnreachable("refused")

    shared, _ = requests.join("k", lambda: SharedRequest(refuse, 1_000_000))
    with pytest.raises(UpstreamUnreachable, match="refused"):
        await shared.wait_for_head()
    await until_ended(requests)
    assert source.finished == 0


async def test_close_ends_everything() -> None:
    source, requests = Source(), SharedRequests()
    for key in "ab":
        await requests.join(key, source.shared)[0].wait_for_head()
    await requests.close()
    await until_ended(requests)
    assert source.closed == 2


async def test_a_large_chunk_is_parsed_in_steps() -> None:
    large, turns = b"x" * 50 * PARSE_STEP_BYTES, [0]
    read: list[tuple[int, int]] = []

    class Reading(Source):
        def push(self, chunk: bytes) -> bool:
            read.append((turns[0], len(chunk)))
            return False

        async def result(self) -> None: ...

    async def parts() -> AsyncIterator[bytes]:
        yield large

    async def others() -> None:
        while True:
            turns[0] += 1
            await asyncio.sleep(0)

    async def opened() -> BackendResponse:
        return Reading().response(parts(), streams=True)

    beside = asyncio.create_task(others())
    shared, _ = SharedRequests().join("k", lambda: SharedRequest(opened, 1_000_000))
    assert await body_of(shared) == large
    beside.cancel()
    assert sum(size for _, size in read) == len(large)
    assert max(size for _, size in read) <= PARSE_STEP_BYTES
    assert len({turn for turn, _ in read}) == len(read)


PART = 32 * 1024
NUM_PARTS = 64


class Endless:
    """A backend that sends its parts without a pause."""

    def __init__(self, limit: int) -> None:
        self.given = 0
        self.facts = ResponseFacts()
        self.shared = SharedRequest(self._open, limit)

    async def _open(self) -> BackendResponse:
        return BackendResponse(200, [], self._parts(), self, self._close)  # type: ignore[arg-type]

    async def _parts(self) -> AsyncIterator[bytes]:
        for number in range(NUM_PARTS):
            self.given += 1
            yield bytes([number]) * PART

    async def _close(self) -> None: ...

    @property
    def bytes_in_memory(self) -> int:
        return sum(map(len, self.shared._chunks))


async def still(source: Endless) -> int:
    """Return the number of sent parts when it no longer changes."""
    given = -1
    while given != source.given:
        given = source.given
        for _ in range(50):
            await asyncio.sleep(0)
    return given


WHOLE = b"".join(bytes([number]) * PART for number in range(NUM_PARTS))


@pytest.mark.parametrize("limit", [10 * MAX_UNSENT_BYTES, MAX_UNSENT_BYTES // 2], ids=["kept", "too large to keep"])
async def test_the_backend_waits_for_a_client_that_has_not_begun(limit: int) -> None:
    requests, source = SharedRequests(), Endless(limit)
    shared, _ = requests.join("key", lambda: source.shared)
    assert (await still(source) - 1) * PART == MAX_UNSENT_BYTES
    body = await body_of(shared)
    assert body == WHOLE
    shared.release()


async def test_a_small_response_is_read_as_fast_as_the_fastest_client() -> None:
    requests, source = SharedRequests(), Endless(10 * len(WHOLE))
    shared, _ = requests.join("key", lambda: source.shared)
    assert requests.join("key", lambda: source.shared) == (shared, True)
    assert await asyncio.wait_for(body_of(shared), 30) == WHOLE
    assert await body_of(shared) == WHOLE
    shared.release()
    shared.release()


async def test_a_large_response_is_read_as_fast_as_the_slowest_client() -> None:
    requests, source = SharedRequests(), Endless(2 * MAX_UNSENT_BYTES)
    shared, _ = requests.join("key", lambda: source.shared)
    requests.join("key", lambda: source.shared)
    fast, slow = shared.chunks(), shared.chunks()
    first = [await anext(slow)]
    taken = asyncio.create_task(_all(fast))
    assert (await still(source)) * PART <= 2 * MAX_UNSENT_BYTES + MAX_UNSENT_BYTES + 2 * PART
    assert not taken.done()
    slowly = []
    async for part in slow:
        slowly.append(part)
        assert source.bytes_in_memory <= 2 * MAX_UNSENT_BYTES + MAX_UNSENT_BYTES + 2 * PART
    assert b"".join(first + slowly) == await taken == WHOLE
    assert source.bytes_in_memory <= 2 * MAX_UNSENT_BYTES
    assert not shared.is_joinable
    shared.release()
    shared.release()


async def test_a_slow_client_that_leaves_delays_no_other() -> None:
    requests, source = SharedRequests(), Endless(MAX_UNSENT_BYTES // 2)
    shared, _ = requests.join("key", lambda: source.shared)
    requests.join("key", lambda: source.shared)
    taken = asyncio.create_task(_all(shared.chunks()))
    await still(source)
    assert not taken.done()
    shared.release()
    assert await asyncio.wait_for(taken, 300) == WHOLE
    shared.release()


async def _all(parts: AsyncIterator[bytes]) -> bytes:
    return b"".join([part async for part in parts])
