"""The health of a store and its log."""

import time
from pathlib import Path

import pytest

from kvproxy.index.errors import CacheStoreError
from kvproxy.index.store import open_store
from kvproxy.index.store.database import Operation, StoreHealth
from kvproxy.index.store.sqlite.database import SqliteDatabase
from tests.index.entries import make_entry


def test_failures_and_recoveries_are_logged(caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch) -> None:
    now = [5000.0]
    monkeypatch.setattr(time, "monotonic", lambda: now[0])
    health = StoreHealth("r.db")

    def fail(operation: Operation, why: str = "the disk is full") -> None:
        with pytest.raises(CacheStoreError, match=why), health.watch(operation):
            raise CacheStoreError(why)

    def work(operation: Operation) -> None:
        with health.watch(operation):
            pass

    def logged() -> list[str]:
        lines = [record.getMessage() for record in caplog.records]
        caplog.clear()
        return lines

    work("write")
    fail("write")
    fail("write", "another")
    fail("read", "a page is damaged")
    assert logged() == [
        "the disk is full; until it works again, no response is stored",
        "a page is damaged; until it works again, no stored response is found",
    ]
    work("read")
    assert health.failure == "another"
    work("write")
    assert logged() == ["the store r.db can be read again", "the store r.db can be written again"]
    assert health.failure is None
    # Five outages of an operation are logged in a minute, and the first of these was above.
    for _ in range(6):
        now[0] += 1.0
        fail("write")
        work("write")
    assert len(logged()) == 4 * 2
    now[0] = 5060.0
    fail("write")
    work("write")
    assert len(logged()) == 2


def test_a_full_store_works_again_with_the_next_stored_response(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    store = open_store(tmp_path / "r.db")
    database = store.database
    assert isinstance(database, SqliteDatabase)
    kept, large = make_entry("kept"), make_entry("large", response=b"x" * 500_000)
    store.put(kept)

    def limit_pages(count: int) -> None:
        with database.transaction() as run:
            run(f"pragma max_page_count = {count}")

    limit_pages(1)
    with pytest.raises(CacheStoreError, match="full"):
        store.put(large)
    # Maintenance may succeed while no response can be stored.
    assert store.remove_expired() == []
    store.record_hit(kept.id)
    store.flush()
    assert [gone.id for gone in store.delete([kept.id])] == [kept.id]
    failure = database.failure()
    assert failure is not None
    assert "full" in failure
    assert not any("can be written again" in line for line in caplog.messages)
    limit_pages(1_000_000)
    store.put(large)
    assert database.failure() is None
    assert caplog.messages[-1] == f"the store {tmp_path / 'r.db'} can be written again"
    store.close()
