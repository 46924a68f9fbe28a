"""The store in a file: damage and other schemas are reported, and a killed process loses no acknowledged response."""

import contextlib
import os
import sqlite3
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from kvproxy.index.errors import CacheStoreError, ForeignDatabase, SchemaVersionError, StoreDamaged
from kvproxy.index.sqlite_files import connect, create_schema
from kvproxy.index.store import open_observations, open_store
from kvproxy.index.store.sqlite.database import SqliteDatabase
from tests.index.conftest import MakeStore
from tests.index.entries import make_entry


def execute(path: Path, sql: str, *values: object) -> list[Any]:
    with contextlib.closing(sqlite3.connect(path)) as connection, connection:
        return connection.execute(sql, values).fetchall()


def test_a_store_that_is_closed_during_a_read_closes_its_connection(tmp_path: Path) -> None:
    database = SqliteDatabase(tmp_path / "r.db")
    with database.reader() as reader:
        database.close()
    with pytest.raises(sqlite3.ProgrammingError, match="closed database"):
        reader.execute("select 1")


@pytest.mark.parametrize("content", [b"this is no database at all, but long enough to be read as one" * 99, None])
def test_a_damaged_file_is_reported_and_not_changed(tmp_path: Path, content: bytes | None) -> None:
    path = tmp_path / "responses.db"
    if content is None:
        store = open_store(path)
        for number in range(200):
            store.put(make_entry(f"question {number}"))
        store.close()
        data = bytearray(path.read_bytes())
        data[4096 : len(data)] = os.urandom(len(data) - 4096)
        content = bytes(data)
    path.write_bytes(content)
    with pytest.raises(StoreDamaged, match="move it away"):
        open_store(path)
    with pytest.raises(CacheStoreError, match="damaged"):
        open_observations(path)
    assert path.read_bytes() == content


def test_a_damaged_entry_stays_damaged_after_it_is_expired(tmp_path: Path, open_file: MakeStore) -> None:
    store = open_file(clock=lambda: 2000.0)
    whole, damaged = make_entry("whole"), make_entry("damaged", stale_if_error=5)
    store.put(whole)
    store.put(damaged)
    execute(tmp_path / "r.db", "update responses set stale_if_error = 5000 where id = ?", damaged.id)
    store.expire_now([whole.id, damaged.id])
    assert store.get(whole.id) == replace(whole, expires=2000.0)
    with pytest.raises(StoreDamaged):
        store.get(damaged.id)
    assert list(store.get_many([whole.id, damaged.id, "removed"])) == [whole.id]


def test_damaged_totals_are_reported_at_the_start(tmp_path: Path) -> None:
    path = tmp_path / "responses.db"
    open_store(path).close()
    ((page,),) = execute(path, "select rootpage from sqlite_master where name = 'totals'")
    ((size,),) = execute(path, "pragma page_size")
    with path.open("r+b") as file:
        file.seek((page - 1) * size)
        file.write(b"\xff" * size)
    with pytest.raises(StoreDamaged, match="move it away"):
        open_store(path)


def test_a_folder_is_not_a_store(tmp_path: Path) -> None:
    with pytest.raises(CacheStoreError, match="cannot open"):
        open_store(tmp_path)


def test_a_file_of_another_schema_is_refused_with_the_fix(tmp_path: Path) -> None:
    unknown, older, newer = (tmp_path / f"{name}.db" for name in ("unknown", "older", "newer"))
    for path in (unknown, older):
        execute(path, "create table responses (id text)")
    execute(older, "pragma user_version = -1")
    open_store(newer).close()
    execute(newer, "pragma user_version = 99")
    with pytest.raises(ForeignDatabase, match=f"{unknown.name} belongs to another program"):
        open_store(unknown)
    for path, version in ((older, -1), (newer, 99)):
        with pytest.raises(
            SchemaVersionError, match=f"{path.name} has schema version {version}, .*kvproxy cache export"
        ):
            open_store(path)
    assert execute(unknown, "select name from sqlite_master") == [("responses",)]


def test_a_process_that_closes_the_file_keeps_the_log_of_others(tmp_path: Path) -> None:
    """Closing a file descriptor releases SQLite's locks, and another process could then delete the log."""
    path = tmp_path / "r.db"
    store, observations = open_store(path), open_observations(path)
    store.put(make_entry("one"))
    log = (path.parent / "r.db-wal").stat().st_ino
    code = (
        f"from pathlib import Path; from kvproxy.index.store import open_store; open_store(Path({str(path)!r})).close()"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
    assert (path.parent / "r.db-wal").stat().st_ino == log
    store.put(make_entry("two"))
    assert store.count() == 2
    observations.close()
    store.close()


OPENER = """
import sys
from pathlib import Path
from kvproxy.index.store import open_store
from kvproxy.index.store import open_observations
print("ready", flush=True)
sys.stdin.readline()
for number in range(12):
    path = Path(sys.argv[1]) / f"{number}.db"
    store, observations = open_store(path), open_observations(path)
    assert store.count() == 0 and observations.summary()["observed"] == 0
    observations.close()
    store.close()
print("done", flush=True)
"""


def test_concurrent_processes_can_create_a_file(tmp_path: Path) -> None:
    command = [sys.executable, "-c", OPENER, str(tmp_path)]
    openers = [
        subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        for _ in range(3)
    ]
    for opener in openers:
        assert opener.stdout is not None
        assert opener.stdout.readline() == "ready\n"
    for opener in openers:
        assert opener.stdin is not None
        opener.stdin.write("\n")
        opener.stdin.flush()
    for opener in openers:
        printed, errors = opener.communicate(timeout=300)
        assert (printed, opener.returncode) == ("done\n", 0), errors


def test_a_schema_that_fails_leaves_the_file_unchanged(tmp_path: Path) -> None:
    connection = connect(tmp_path / "r.db")
    with pytest.raises(sqlite3.OperationalError):
        create_schema(connection, "r.db", 1, ["create table one (id integer)", "create table one (id integer)"])
    assert not connection.in_transaction
    assert list(connection.execute("select name from sqlite_master")) == []
    for _ in range(2):
        create_schema(connection, "r.db", 1, ["create table one (id integer)"])
    assert connection.execute("select count(*) from one").fetchone() == (0,)
    connection.close()
