"""SQLite files are created by one process or by several at once, and are private."""

import sqlite3
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from kvproxy.index.store.sqlite.connection import DatabaseFiles, connect, create_schema, make_private

OPENER = """
import sys
from pathlib import Path
from kvproxy.index.store import SqliteStore
from kvproxy.index.store.opening import open_observations
print("ready", flush=True)
sys.stdin.readline()
for number in range(12):
    path = Path(sys.argv[1]) / f"{number}.db"
    store, observations = SqliteStore(path), open_observations(path)
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
        printed, errors = opener.communicate(timeout=120)
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


def test_created_files_and_folders_are_private(tmp_path: Path) -> None:
    def rights(path: Path) -> int:
        return stat.S_IMODE(path.stat().st_mode)

    tmp_path.chmod(0o755)
    path = tmp_path / "new" / "r.db"
    make_private(path)
    assert (rights(tmp_path), rights(path.parent), rights(path)) == (0o755, 0o700, 0o600)
    log = path.with_name("r.db-wal")
    log.touch()
    for each in (path, log):
        each.chmod(0o644)
    path.write_bytes(b"x")
    make_private(path)
    assert (rights(path), rights(log), path.read_bytes()) == (0o600, 0o600, b"x")
    with pytest.raises(IsADirectoryError):
        make_private(path.parent)


def test_the_log_of_a_moved_file_is_merged_into_it(tmp_path: Path) -> None:
    path, moved = tmp_path / "r.db", tmp_path / "moved.db"
    writer = connect(path)
    with writer:
        writer.execute("create table one (id integer)")
    files = DatabaseFiles(path, writer)
    assert not files.were_replaced()
    with writer:
        writer.execute("insert into one values (7)")
    path.rename(moved)
    assert files.were_replaced()
    # SQLite would apply the old log to a new file.
    for _ in range(2):
        files.checkpoint()
    assert Path(f"{path}-wal").stat().st_size == 0
    writer.close()
    again = sqlite3.connect(moved)
    assert again.execute("select id from one").fetchall() == [(7,)]
    again.close()
    files = DatabaseFiles(tmp_path / "none.db", writer)
    assert not files.were_replaced()
    files.checkpoint()
