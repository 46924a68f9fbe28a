"""The health of a store and its log."""

import time

import pytest

from kvproxy.index.errors import CacheStoreError
from kvproxy.index.store.database import Operation, StoreHealth


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
