"""Writes that come together share a transaction; each is told when it is durable, and what fails fails alone."""

import asyncio
import time
from collections.abc import Sequence
from pathlib import Path

import pytest

from kvproxy.index.errors import CacheStoreError
from kvproxy.index.store import Capacity, Put, ResponseStore, Written
from kvproxy.index.writes import WriteBatcher
from tests.index.entries import make_entry


async def test_many_writers_need_few_transactions(tmp_path: Path) -> None:
    store = ResponseStore(tmp_path / "r.db")
    sizes = []

    def write(puts: Sequence[Put]) -> Written:
        sizes.append(len(puts))
        return store.put_many(puts)

    batcher = WriteBatcher(write)

    async def insert(number: int) -> None:
        entry = make_entry(f"question {number}")
        assert await batcher.put(Put(entry))
        # Another connection sees it: it is committed.
        other = ResponseStore(tmp_path / "r.db")
        assert other.find(entry.key) is not None
        other.close()

    await asyncio.gather(*(insert(number) for number in range(100)))
    assert sum(sizes) == 100
    assert len(sizes) < 20
    store.close()


async def test_what_fails_fails_alone(tmp_path: Path) -> None:
    store = ResponseStore(tmp_path / "r.db", capacity=Capacity(bytes=2000))
    batcher = WriteBatcher(store.put_many)
    puts = [Put(make_entry(f"question {number}")) for number in range(5)]
    broken = Put(make_entry("broken", tenant=object()))
    large = Put(make_entry("large", response=b'"' + b"x" * 3000 + b'"'))
    results = await asyncio.gather(*map(batcher.put, [*puts, broken, large]), return_exceptions=True)
    assert results[:5] == [True] * 5
    assert isinstance(results[5], CacheStoreError)
    assert results[6] is False
    assert store.count() == 5
    store.close()


async def test_a_caller_that_leaves_takes_nobody_along() -> None:
    written: list[str] = []

    def write(puts: Sequence[Put]) -> Written:
        time.sleep(0.05)
        written.extend(put.entry.prompt for put in puts)
        return Written(tuple(None for _ in puts), ())

    batcher = WriteBatcher(write)
    tasks = [asyncio.create_task(batcher.put(Put(make_entry(f"q {number}")))) for number in range(3)]
    await asyncio.sleep(0)
    tasks[1].cancel()
    assert await tasks[0]
    assert await tasks[2]
    assert sorted(written) == ["q 0", "q 1", "q 2"]
    with pytest.raises(asyncio.CancelledError):
        await tasks[1]
