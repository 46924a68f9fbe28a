"""The store in a file: damage and other schemas are reported, and a killed process loses no acknowledged response."""

import os
import sqlite3
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from kvproxy.index.errors import CacheStoreError, SchemaVersionError, StoreDamaged
from kvproxy.index.store import SqliteStore
from kvproxy.index.store.opening import open_observations
from tests.index.entries import make_entry


@pytest.mark.parametrize("content", [b"this is no database at all, but long enough to be read as one" * 99, None])
def test_a_damaged_file_is_reported_and_not_changed(tmp_path: Path, content: bytes | None) -> None:
    path = tmp_path / "responses.db"
    if content is None:
        store = SqliteStore(path)
        for number in range(200):
            store.put(make_entry(f"question {number}"))
        store.close()
        data = bytearray(path.read_bytes())
        data[4096 : len(data)] = os.urandom(len(data) - 4096)
        content = bytes(data)
    path.write_bytes(content)
    with pytest.raises(StoreDamaged, match="move it away"):
        SqliteStore(path)
    with pytest.raises(CacheStoreError, match="damaged"):
        open_observations(path)
    assert path.read_bytes() == content


def test_a_damaged_entry_stays_damaged_after_it_is_expired(tmp_path: Path) -> None:
    store = SqliteStore(tmp_path / "r.db", clock=lambda: 2000.0)
    whole, damaged = make_entry("whole"), make_entry("damaged", stale_if_error=5)
    store.put(whole)
    store.put(damaged)
    with sqlite3.connect(tmp_path / "r.db") as connection:
        connection.execute("update responses set stale_if_error = 5000 where id = ?", [damaged.id])
    connection.close()
    store.expire_now([whole.id, damaged.id])
    assert store.get(whole.id) == replace(whole, expires=2000.0)
    with pytest.raises(StoreDamaged):
        store.get(damaged.id)
    store.close()


def test_damaged_totals_are_reported_at_the_start(tmp_path: Path) -> None:
    path = tmp_path / "responses.db"
    SqliteStore(path).close()
    with sqlite3.connect(path) as connection:
        (page,) = connection.execute("select rootpage from sqlite_master where name = 'totals'").fetchone()
        (size,) = connection.execute("pragma page_size").fetchone()
    connection.close()
    with path.open("r+b") as file:
        file.seek((page - 1) * size)
        file.write(b"\xff" * size)
    with pytest.raises(StoreDamaged, match="move it away"):
        SqliteStore(path)


def test_a_folder_is_not_a_store(tmp_path: Path) -> None:
    with pytest.raises(CacheStoreError, match="cannot open"):
        SqliteStore(tmp_path)


def test_a_file_of_another_schema_is_refused_with_the_fix(tmp_path: Path) -> None:
    unknown, newer = tmp_path / "unknown.db", tmp_path / "newer.db"
    with sqlite3.connect(unknown) as connection:
        connection.execute("create table responses (id text)")
    connection.close()
    SqliteStore(newer).close()
    with sqlite3.connect(newer) as connection:
        connection.execute("pragma user_version = 99")
    connection.close()
    for path, version in ((unknown, 0), (newer, 99)):
        with pytest.raises(
            SchemaVersionError, match=f"{path.name} has schema version {version}, .*kvproxy cache export"
        ):
            SqliteStore(path)
    with sqlite3.connect(unknown) as connection:
        assert connection.execute("select name from sqlite_master").fetchall() == [("responses",)]
    connection.close()


def test_a_process_that_closes_the_file_keeps_the_log_of_others(tmp_path: Path) -> None:
    """Closing a file descriptor releases SQLite's locks, and another process could then delete the log."""
    path = tmp_path / "r.db"
    store, observations = SqliteStore(path), open_observations(path)
    store.put(make_entry("one"))
    log = (path.parent / "r.db-wal").stat().st_ino
    code = f"from pathlib import Path; from kvproxy.index.store import SqliteStore; SqliteStore(Path({str(path)!r})).close()"
    subprocess.run([sys.executable, "-c", code], check=True)
    assert (path.parent / "r.db-wal").stat().st_ino == log
    store.put(make_entry("two"))
    assert store.count() == 2
    observations.close()
    store.close()
