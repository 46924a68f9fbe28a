"""Concurrent writes share transactions, and each caller receives its own result."""

import asyncio
import threading
import time
from collections.abc import Sequence

import pytest

from kvproxy.index.errors import CacheStoreError
from kvproxy.index.store import Capacity, NewEntry, Store, WriteResult
from kvproxy.index.store.group_commit import WriteBatcher
from tests.index.conftest import MakeStore
from tests.index.entries import make_entry


async def test_concurrent_writers_share_transactions(open_file: MakeStore, store: Store) -> None:
    sizes = []

    def write(puts: Sequence[NewEntry]) -> WriteResult:
        sizes.append(len(puts))
        return store.put_many(puts)

    batcher = WriteBatcher(write)

    other = open_file()

    async def insert(number: int) -> None:
        entry = make_entry(f"question {number}")
        assert await batcher.put(NewEntry(entry))
        assert other.find(entry.key) is not None

    await asyncio.gather(*(insert(number) for number in range(100)))
    assert sum(sizes) == 100
    assert len(sizes) < 20


async def test_an_invalid_entry_fails_alone(open_file: MakeStore) -> None:
    store = open_file(capacity=Capacity(bytes=2000))
    batcher = WriteBatcher(store.put_many)
    puts = [NewEntry(make_entry(f"question {number}")) for number in range(5)]
    broken = NewEntry(make_entry("broken", model=object()))
    large = NewEntry(make_entry("large", response=b'"' + b"x" * 3000 + b'"'))
    results = await asyncio.gather(*map(batcher.put, [*puts, broken, large]), return_exceptions=True)
    assert results[:5] == [True] * 5
    assert isinstance(results[5], CacheStoreError)
    assert results[6] is False
    assert store.count() == 5


async def test_a_cancelled_caller_cancels_no_write() -> None:
    written: list[str] = []

    def write(puts: Sequence[NewEntry]) -> WriteResult:
        time.sleep(0.05)
        written.extend(put.entry.prompt for put in puts)
        return WriteResult(tuple(None for _ in puts), ())

    batcher = WriteBatcher(write)
    tasks = [asyncio.create_task(batcher.put(NewEntry(make_entry(f"q {number}")))) for number in range(3)]
    await asyncio.sleep(0)
    tasks[1].cancel()
    assert await tasks[0]
    assert await tasks[2]
    assert sorted(written) == ["q 0", "q 1", "q 2"]
    with pytest.raises(asyncio.CancelledError):
        await tasks[1]


async def test_cancelling_the_batch_resolves_all_callers() -> None:
    """A shutdown cancels the tasks of the event loop."""
    began, end = threading.Event(), threading.Event()

    def write(entries: Sequence[NewEntry]) -> WriteResult:
        began.set()
        end.wait(300)
        return WriteResult(tuple(None for _ in entries), ())

    batcher = WriteBatcher(write)
    puts = [asyncio.create_task(batcher.put(NewEntry(make_entry(f"q {number}")))) for number in range(5)]
    await asyncio.to_thread(began.wait, 60)
    for task in asyncio.all_tasks() - {asyncio.current_task(), *puts}:
        task.cancel()
    done, waiting = await asyncio.wait(puts, timeout=300)
    end.set()
    assert not waiting
    assert all(isinstance(put.exception(), RuntimeError) for put in done)
    assert await asyncio.wait_for(batcher.put(NewEntry(make_entry())), 60)
