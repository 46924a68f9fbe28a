"""Pending writes."""

import asyncio

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
async def test_a_pending_write_has_an_id_unless_it_fails_or_redaction_refuses_it(kept: bool | Exception) -> None:
    entry = make_entry()
    coming = PendingWrite("key", "n", _known(entry), asyncio.create_task(_ended(kept)))
    refused = PendingWrite("key", "n", _known(None), asyncio.create_task(_ended(kept)))
    assert (coming.id, refused.id) == (entry.id, None)
    assert await coming.stored() is await refused.stored() is (kept is True)
    assert coming.id == (entry.id if kept is True else None)
    assert (refused.id, refused.question) == (None, None)


async def test_pending_writes_are_found_by_namespace() -> None:
    writes = PendingWrites()
    write = PendingWrite("key", "n", _known(make_entry()), asyncio.create_task(_ended(True)))
    writes.add(write)
    assert (writes.in_namespace("n"), writes.in_namespace("another")) == ((write,), ())
    await writes.wait()
    assert writes.in_namespace("n") == ()
