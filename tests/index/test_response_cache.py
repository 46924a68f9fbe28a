"""The response cache: pending writes, maintenance, and recent entries."""

import asyncio
import contextlib
import threading
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from kvproxy.index.entry import Entry
from kvproxy.index.errors import CacheStoreError
from kvproxy.index.pending_writes import PendingWrite
from kvproxy.index.response_cache import ResponseCache
from kvproxy.index.store import EntryFilter, Store, open_store
from kvproxy.index.store.group_commit import WriteBatcher
from tests.index.conftest import MakeStore
from tests.index.entries import make_entry


async def test_a_pending_entry_is_found_until_it_expires(open_file: MakeStore) -> None:
    now = [1000.0]
    store = open_file(clock=lambda: now[0])
    cache = ResponseCache(store, None, clock=lambda: now[0])
    entry, go = make_entry("x", expires=1010.0), threading.Event()
    put = store.put_many

    def slow(puts: Any) -> Any:
        assert go.wait(300)
        return put(puts)

    cache._writes = WriteBatcher(slow)
    inserting = asyncio.create_task(cache.insert(entry))
    await asyncio.sleep(0)
    assert (await cache.find(entry.key), store.find(entry.key)) == (entry, None)
    now[0] = 1010.0
    assert await cache.find(entry.key) is None
    now[0] = 1000.0
    # A newer entry replaces it, and stays pending after the first is stored.
    newer = replace(entry, id="f" * 32)
    second = asyncio.create_task(cache.insert(newer))
    await asyncio.sleep(0)
    go.set()
    assert await inserting
    assert await second
    assert await cache.find(entry.key) == newer


async def test_a_pending_entry_is_not_found_after_an_invalidation(open_file: MakeStore) -> None:
    store = open_file()
    cache = ResponseCache(store, None)
    entry, go = make_entry("x", tags=("t",)), threading.Event()
    put = store.put_many

    def slow(puts: Any) -> Any:
        assert go.wait(300)
        return put(puts)

    cache._writes = WriteBatcher(slow)
    computation = await cache.begin_computation(entry.key, entry.namespace, entry.tags)
    inserting = asyncio.create_task(cache.insert(entry, computation))
    await asyncio.sleep(0)
    assert await cache.find(entry.key) == entry
    assert store.invalidate(EntryFilter(tag="t")) == []
    assert await cache.find(entry.key) is None
    go.set()
    assert not await inserting
    assert await cache.find(entry.key) is None


async def test_maintenance_removes_expired_entries(tmp_path: Path) -> None:
    now = [1000.0]
    store = open_store(tmp_path / "r.db", clock=lambda: now[0])
    with contextlib.closing(ResponseCache(store, None, clock=lambda: now[0])) as cache:
        entries = [make_entry(f"what is {number}", created=1000.0, expires=1010.0) for number in range(3)]
        assert await cache.insert_many([*entries, make_entry("and this", created=1000.0)]) == 4
        store.record_hit(entries[0].id)
        now[0] = 1010.0
        cache.maintain()
        assert [entry.prompt for entry in store.list_entries()] == ["and this"]
        assert await cache.remove([store.list_entries()[0].id, "none"]) == 1
        assert store.count() == 0


async def _ended(kept: bool | Exception) -> bool:
    if isinstance(kept, Exception):
        raise kept
    return kept


def _known(entry: Entry | None) -> "asyncio.Future[Entry | None]":
    future: asyncio.Future[Entry | None] = asyncio.get_running_loop().create_future()
    future.set_result(entry)
    return future


@pytest.mark.parametrize("kept", [True, False, CacheStoreError("the disk is full")])
async def test_a_pending_write_has_an_id_unless_it_fails_or_redaction_refuses_it(kept: bool | Exception) -> None:
    entry = make_entry()
    coming = PendingWrite("key", "n", _known(entry), asyncio.create_task(_ended(kept)))
    refused = PendingWrite("key", "n", _known(None), asyncio.create_task(_ended(kept)))
    assert (coming.id, refused.id) == (entry.id, None)
    assert await coming.wait_until_stored() is await refused.wait_until_stored() is (kept is True)
    assert coming.id == (entry.id if kept is True else None)
    assert (refused.id, refused.question) == (None, None)


async def test_a_hit_is_in_memory_for_a_second(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    cache = ResponseCache(store, None)
    entry = make_entry("a question", key="k")
    await cache.insert(entry)
    assert await cache.find("k") == entry
    store.database.query("delete from responses")  # As another process would.
    assert await cache.find("k") == entry
    assert await cache.find("k", latest=True) is None
    now = time.monotonic()
    monkeypatch.setattr("kvproxy.index.response_cache.time.monotonic", lambda: now + 1)
    assert await cache.find("k") is None


@pytest.mark.parametrize("change", ["replace", "remove", "expire"])
async def test_a_change_during_a_read_is_effective_at_once(store: Store, change: str) -> None:
    cache, entry = ResponseCache(store, None), make_entry("a question", key="k")
    await cache.insert(entry)
    read, began, changed = store.find, threading.Event(), threading.Event()

    def slow(key: str) -> Entry | None:
        found = read(key)
        began.set()
        assert changed.wait(300)
        return found

    store.remote, store.find = True, slow  # type: ignore[method-assign]
    reading = asyncio.create_task(cache.find("k"))
    assert await asyncio.to_thread(began.wait, 10)
    store.find = read  # type: ignore[method-assign]
    new = replace(entry, id="2" * 32, response=b'{"new": 1}')
    if change == "replace":
        await cache.insert(new)
    elif change == "remove":
        await cache.remove([entry.id])
    else:
        await cache.expire_now([entry.id])
    changed.set()
    assert await reading == entry
    found = await cache.find("k")
    assert found == new if change == "replace" else found is None
