"""The health of a store and its log."""

import time

import pytest

from kvproxy.index.errors import CacheStoreError
from kvproxy.index.store.database import Operation, StoreHealth


class Store:
    def __init__(self) -> None:
        self.health = StoreHealth("r.db")

    def fail(self, operation: Operation, why: str = "the disk is full") -> None:
        with pytest.raises(CacheStoreError, match=why), self.health.watch(operation):
            raise CacheStoreError(why)

    def work(self, operation: Operation) -> None:
        with self.health.watch(operation):
            pass


def test_a_failure_and_its_end_are_logged_once(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = [5000.0]
    monkeypatch.setattr(time, "monotonic", lambda: now[0])
    store = Store()

    def told() -> list[str]:
        lines = [record.getMessage() for record in caplog.records]
        caplog.clear()
        return lines

    assert store.health.failure is None
    store.work("write")
    store.fail("write")
    store.fail("write", "another")
    assert told() == ["the disk is full; until it works again, no response is stored"]
    assert store.health.failure == "another"
    # Reads and writes are logged separately.
    store.fail("read", "a page is damaged")
    assert told() == ["a page is damaged; until it works again, no stored response is found"]
    store.work("read")
    assert told() == ["the store r.db can be read again"]
    assert store.health.failure == "another"
    store.work("write")
    assert told() == ["the store r.db can be written again"]
    assert store.health.failure is None
    store.work("write")
    # Alternating failures and successes are logged once a minute.
    for _ in range(3):
        now[0] += 19.9
        store.fail("write")
        assert store.health.failure == "the disk is full"
        store.work("write")
    assert told() == []
    now[0] += 0.4
    store.fail("write")
    store.work("write")
    assert told() == [
        "the disk is full; until it works again, no response is stored",
        "the store r.db can be written again",
    ]
