"""A database file that is taken away while it is open: nothing is called stored that a restart would not find."""

import asyncio
import logging
import shutil
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from kvproxy.http.services import build_services
from kvproxy.index.errors import CacheStoreError
from kvproxy.index.store import open_store
from kvproxy.settings import load_settings
from tests.faults.proxies import ask, health, hit, stored
from tests.index.entries import make_entry
from tests.plain_upstream import run_plain_upstream
from tests.servers import run_proxy


@pytest.fixture(scope="module")
def upstream() -> Iterator[str]:
    with run_plain_upstream() as url:
        yield url


@pytest.mark.parametrize("semantic", [False, True])
def test_nothing_is_called_stored_in_a_deleted_file(
    upstream: str, tmp_path: Path, caplog: pytest.LogCaptureFixture, semantic: bool
) -> None:
    settings = load_settings(data=tmp_path, upstream=upstream, cache={"semantic": semantic, "policy": "threshold"})
    with run_proxy(settings) as (url, services):
        assert stored(ask(url, "one"))
        assert hit(ask(url, "one"))
        assert health(url)["status"] == "ok"
        for file in tmp_path.glob("responses.db*"):
            shutil.rmtree(file) if file.is_dir() else file.unlink()
        time.sleep(1.1)  # A response that was read is kept for a second.
        for question in ("one", "two", "two"):
            answer = ask(url, question)
            assert answer.status_code == 200
            assert not stored(answer)
            assert not hit(answer)
        state = health(url)
        assert state["status"] == "degraded"
        assert "was deleted or replaced: restart" in state["store"]
        assert httpx.get(f"{url}/admin/cache").status_code == 503
        assert httpx.get(f"{url}/metrics").status_code == 200
        client = httpx.get(f"{url}/health", headers={"x-forwarded-for": "10.0.0.1"})
        assert set(client.json()) == {"status", "version"}, "only the operator is told where the store was"
        with pytest.raises(CacheStoreError):
            services.cache.maintain()
    # The comparisons of the first answers may be too late for the file, and log this themselves.
    expected = ("an observation was not stored", "a reverse proxy forwards requests")
    told = [record.message for record in caplog.records if record.levelno >= logging.WARNING]
    lines = [line for line in told if not line.startswith(expected)]
    # One for what cannot be found, one for what cannot be stored.
    assert len(lines) == 2, caplog.text
    assert not list(tmp_path.glob("responses.db*"))
    with run_proxy(settings) as (url, _):
        assert stored(ask(url, "two"))
        assert "store" not in health(url)


def test_a_proxy_closes_without_its_store(upstream: str, tmp_path: Path) -> None:
    before = set(threading.enumerate())
    services = build_services(load_settings(data=tmp_path, upstream=upstream))
    for file in tmp_path.glob("responses.db*"):
        file.unlink()
    asyncio.run(services.close())
    assert "journal" not in {thread.name for thread in set(threading.enumerate()) - before}


def test_a_file_that_was_replaced_is_left_alone(tmp_path: Path) -> None:
    backup, path = tmp_path / "backup.db", tmp_path / "r.db"
    with_backup = open_store(backup)
    with_backup.put(make_entry("from the backup"))
    with_backup.close()
    store = open_store(path)
    store.put(make_entry("of today"))
    path.rename(tmp_path / "moved.db")
    backup.replace(path)
    assert "was deleted or replaced" in (store.database.failure() or "")
    with pytest.raises(CacheStoreError):
        store.put(make_entry("lost"))
    store.close()
    again = open_store(path)
    # The log of the old file still stood there, and SQLite would have written it over the new one.
    assert [entry.prompt for entry in again.list_entries()] == ["from the backup"]
    assert again.database.count_intact_responses() == 1
    again.close()
    moved = open_store(tmp_path / "moved.db")
    assert [entry.prompt for entry in moved.list_entries()] == ["of today"]
    moved.close()


def test_a_log_that_is_deleted_is_noticed(tmp_path: Path) -> None:
    store = open_store(tmp_path / "r.db")
    store.put(make_entry("one"))
    (tmp_path / "r.db-wal").unlink()
    with pytest.raises(CacheStoreError):
        store.put(make_entry("two"))
    store.close()
