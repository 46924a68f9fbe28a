"""Waiting for entries that are being stored."""

import asyncio

from kvproxy.index.entry import Entry
from kvproxy.index.pending_writes import PendingWrite, PendingWrites


class _CountedWrites(PendingWrites):
    """Fails instead of blocking the event loop."""

    def __init__(self) -> None:
        super().__init__()
        self.lookups = 0

    def get(self, key: str) -> PendingWrite | None:
        self.lookups += 1
        assert self.lookups < 100
        return super().get(key)


async def test_a_write_that_has_just_ended_is_not_waited_for() -> None:
    writes, release = _CountedWrites(), asyncio.Event()

    def start_write() -> asyncio.Task[bool]:
        task = asyncio.create_task(release.wait())
        redacted: asyncio.Future[Entry | None] = asyncio.get_running_loop().create_future()
        writes.add(PendingWrite("key", None, redacted, task))  # type: ignore[arg-type]
        return task  # type: ignore[return-value]

    async def wait_after_the_end() -> None:
        # In this step of the event loop the task has ended, and its callbacks have not run yet.
        assert task.done()
        assert writes.get("key") is not None
        await writes.wait_until_stored("key", 60.0)

    task = start_write()
    await asyncio.sleep(0)
    release.set()
    await asyncio.create_task(wait_after_the_end())
    assert writes.get("key") is None
    # A write that has not ended is waited for, and so is its successor.
    release.clear()
    first = start_write()
    waiting = asyncio.create_task(writes.wait_until_stored("key", 60.0))
    await asyncio.sleep(0)
    second = start_write()
    await asyncio.sleep(0)
    assert not waiting.done()
    release.set()
    await waiting
    assert first.done()
    assert second.done()
