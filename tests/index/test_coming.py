"""Answers on their way to the store, as those see them who wait."""

import asyncio
import time

import pytest

from kvproxy.index.entry import Entry
from kvproxy.index.errors import CacheStoreError
from kvproxy.index.pending_writes import PendingWrite, PendingWrites
from tests.index.entries import make_entry


async def _ended(kept: bool | Exception) -> bool:
    if isinstance(kept, Exception):
        raise kept
    return kept


def _known(entry: Entry | None) -> "asyncio.Future[Entry | None]":
    future: asyncio.Future[Entry | None] = asyncio.get_running_loop().create_future()
    future.set_result(entry)
    return future


@pytest.mark.parametrize("kept", [True, False, CacheStoreError("the disk is full")])
async def test_an_entry_has_an_id_until_it_is_known_not_to_be_kept(kept: bool | Exception) -> None:
    entry = make_entry()
    coming = PendingWrite("key", "n", _known(entry), asyncio.create_task(_ended(kept)))
    assert coming.id == entry.id
    assert await coming.stored() is (kept is True)
    assert coming.id == (entry.id if kept is True else None)


async def test_what_must_not_be_stored_has_no_id() -> None:
    coming = PendingWrite("key", "n", _known(None), asyncio.create_task(_ended(True)))
    assert coming.id is None
    await coming.stored()
    assert (coming.id, coming.question) == (None, None)


@pytest.mark.parametrize(("seconds", "patience"), [(0.03, 0.0225), (0.4, 0.3), (60.0, 1.0), (None, 1.0)])
async def test_a_lookup_waits_for_others_for_a_part_of_its_time(seconds: float | None, patience: float) -> None:
    way = PendingWrites()
    task = asyncio.create_task(_ended(True))
    coming = PendingWrite("key", "n", _known(make_entry()), task)
    way.add(coming)
    began = time.monotonic()
    writes = way.awaited("n", seconds)
    assert began + patience <= writes.until <= time.monotonic() + patience
    assert writes.under_way == (coming,)
    assert way.awaited("another", seconds).under_way == ()
    await way.wait()
    assert way.awaited("n", seconds).under_way == ()
