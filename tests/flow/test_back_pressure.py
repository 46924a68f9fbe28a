"""An answer is read no faster than its clients take it, and nobody who is slow loses a part of it."""

import asyncio
from collections.abc import AsyncIterator

import pytest

from kvproxy.apis.json import JsonObject
from kvproxy.flow.backend_response import BackendResponse
from kvproxy.flow.single_flight import MAX_UNSENT_BYTES, SharedRequest, SharedRequests

PART = 32 * 1024
PARTS = 64


class Endless:
    """A source that gives its parts as fast as they are taken, each of them another one."""

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self.given = 0
        self.reused = None
        self.shared = SharedRequest(self._open, self)  # type: ignore[arg-type]

    async def _open(self) -> BackendResponse:
        return BackendResponse(200, [], self._parts(), self, self._close)  # type: ignore[arg-type]

    async def _parts(self) -> AsyncIterator[bytes]:
        for number in range(PARTS):
            self.given += 1
            yield bytes([number]) * PART

    async def _close(self) -> None:
        """Nothing to close."""

    def push(self, source: BackendResponse, chunk: bytes) -> bool:
        return False

    async def whole(self) -> JsonObject | None:
        return None

    async def finish(self, source: BackendResponse) -> str | None:
        return None

    @property
    def held(self) -> int:
        """Bytes in memory."""
        return sum(map(len, self.shared._chunks))


async def still(source: Endless) -> int:
    """Parts that were given when nothing moves any more."""
    given = -1
    while given != source.given:
        given = source.given
        for _ in range(50):
            await asyncio.sleep(0)
    return given


WHOLE = b"".join(bytes([number]) * PART for number in range(PARTS))


@pytest.mark.parametrize("limit", [10 * MAX_UNSENT_BYTES, MAX_UNSENT_BYTES // 2], ids=["kept", "too large to keep"])
async def test_no_more_is_read_than_a_window_ahead_of_who_has_not_begun(limit: int) -> None:
    requests, source = SharedRequests(), Endless(limit)
    shared, _ = requests.join("key", lambda: source.shared)
    assert (await still(source) - 1) * PART == MAX_UNSENT_BYTES
    body = await shared.body()
    assert body == WHOLE
    shared.release()


async def test_an_answer_that_is_kept_is_read_as_fast_as_the_fastest_takes_it() -> None:
    requests, source = SharedRequests(), Endless(10 * len(WHOLE))
    shared, _ = requests.join("key", lambda: source.shared)
    assert requests.join("key", lambda: source.shared) == (shared, True)
    assert await asyncio.wait_for(shared.body(), 30) == WHOLE
    # The slow one has begun only now, and gets all of it.
    assert await shared.body() == WHOLE
    shared.release()
    shared.release()


async def test_an_answer_too_large_to_keep_is_read_as_fast_as_the_slowest_takes_it_and_let_go() -> None:
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
        assert source.held <= 2 * MAX_UNSENT_BYTES + MAX_UNSENT_BYTES + 2 * PART
    assert b"".join(first + slowly) == await taken == WHOLE
    assert source.held <= 2 * MAX_UNSENT_BYTES
    # Whoever comes once parts were let go gets a shared of his own.
    assert not shared.is_joinable
    shared.release()
    shared.release()


async def test_a_slow_one_who_leaves_lets_the_others_go_on() -> None:
    requests, source = SharedRequests(), Endless(MAX_UNSENT_BYTES // 2)
    shared, _ = requests.join("key", lambda: source.shared)
    requests.join("key", lambda: source.shared)
    taken = asyncio.create_task(_all(shared.chunks()))
    await still(source)
    assert not taken.done()
    shared.release()
    assert await asyncio.wait_for(taken, 30) == WHOLE
    shared.release()


async def _all(parts: AsyncIterator[bytes]) -> bytes:
    return b"".join([part async for part in parts])
