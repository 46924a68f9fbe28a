"""The store in a file: damage and other schemas are reported, and a killed process loses no acknowledged response."""

import os
import signal
import sqlite3
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvproxy.index.errors import CacheStoreError, SchemaVersionError, StoreDamaged
from kvproxy.index.store import ClassifiedAnswer, NewEntry, SqliteStore
from kvproxy.index.store.opening import open_observations
from tests.index.conftest import CIPHER
from tests.index.entries import make_entry


@pytest.mark.parametrize("content", [b"this is no database at all, but long enough to be read as one" * 99, None])
def test_a_damaged_file_is_told_and_left_alone(tmp_path: Path, content: bytes | None) -> None:
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
    # When it is opened, not when somebody first asks for what is damaged.
    with pytest.raises(StoreDamaged, match="move it away"):
        SqliteStore(path)
    assert path.read_bytes() == content


def test_damaged_totals_are_told_when_the_file_is_opened(tmp_path: Path) -> None:
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


def test_a_folder_is_no_store(tmp_path: Path) -> None:
    with pytest.raises(CacheStoreError, match="cannot open"):
        SqliteStore(tmp_path)


WRITER = """
import sys
from pathlib import Path
import numpy as np
from kvproxy.index.store import SqliteStore
from tests.index.entries import make_entry
store = SqliteStore(Path(sys.argv[1]))
for number in range(100_000):
    entry = make_entry(f"question {number}")
    store.put(entry, np.ones(8, np.float32), "e")
    print(entry.id, flush=True)
"""


@pytest.mark.parametrize("acknowledged", [1, 7, 40])
def test_kill_loses_nothing_that_was_acknowledged(tmp_path: Path, acknowledged: int) -> None:
    path = tmp_path / "responses.db"
    writer = subprocess.Popen([sys.executable, "-c", WRITER, str(path)], stdout=subprocess.PIPE, text=True)
    assert writer.stdout is not None
    with writer.stdout:
        ids = [writer.stdout.readline().strip() for _ in range(acknowledged)]
        writer.send_signal(signal.SIGKILL)
        writer.wait()
        ids += [line.strip() for line in writer.stdout if line.endswith("\n")]
    store = SqliteStore(path)
    kept = {entry.id for entry in store.ls()}
    assert set(ids) <= kept
    assert {id.decode() for id in store.vector_ids("n", "e")[1]} == kept
    store.close()


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
        assert connection.execute("select name from sqlite_master").fetchall() == [
            ("responses",),
        ]
    connection.close()


def test_another_process_that_closes_the_file_leaves_its_log(tmp_path: Path) -> None:
    """SQLite deletes the log with the last connection, which it tells by locks; a process that closes the file loses these."""
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


@given(st.lists(st.text(st.characters(exclude_categories=["Cs"]), max_size=20), min_size=1, max_size=30), st.booleans())
def test_what_is_near_is_read_alike_with_its_vectors_and_without(prompts: list[str], sealed: bool) -> None:
    with tempfile.TemporaryDirectory() as folder:
        store = SqliteStore(Path(folder) / "responses.db", cipher=CIPHER if sealed else None)
        vector = np.array([0.6, 0.8], np.float32)
        entries = [make_entry(prompt, key=str(place)) for place, prompt in enumerate(prompts)]
        written = store.put_many([NewEntry(entry, vector, "e") for entry in entries])
        store.classify(ClassifiedAnswer(entries[0].id, "n", "a class", "a text", None, "e"))
        numbers = [number for number in written.numbers if number is not None][::-1]
        without = store.near("n", "e", numbers, vectors=False)
        assert {number: head for number, (head, _) in store.near("n", "e", numbers, vectors=True).items()} == {
            number: head for number, (head, _) in without.items()
        }
        assert [head.prompt for head, _ in without.values()] == prompts
        assert list(without) == sorted(numbers)
        assert without[numbers[-1]][0].answer == "a class"
        store.close()
