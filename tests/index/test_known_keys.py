"""The keys that a store in a file has in memory: never is a stored answer missed for them, whoever stored it."""

import contextlib
import sqlite3
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvproxy.index.entry import Entry
from kvproxy.index.errors import CacheStoreError
from kvproxy.index.store import Capacity, NewEntry, SqliteStore, known_keys
from tests.index.entries import make_entry

FAR = 100.0  # Seconds that no test takes.


@pytest.fixture(autouse=True)
def _at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(known_keys, "_LEAST_ASKED", 1)


def whole(store: SqliteStore) -> bool:
    return store._keys._keys is not None and store._keys._keys.whole


def with_keys(store: SqliteStore) -> SqliteStore:
    """A store that has read its keys."""
    end = time.monotonic() + FAR
    while not whole(store):
        store.find("something else")
        assert time.monotonic() < end
        time.sleep(0.001)
    return store


@contextlib.contextmanager
def opened(path: Path, **how: Any) -> Iterator[SqliteStore]:
    store = SqliteStore(path, **how)
    try:
        yield store
    finally:
        store.close()


def entry(name: str, **more: Any) -> Entry:
    return make_entry(name, key=f"key of {name}", **more)


def statements(store: SqliteStore, ask: Callable[[], object]) -> list[str]:
    """What is asked of the file meanwhile."""
    seen, query = list[str](), store._query

    def told(sql: str, values: Mapping[str, Any]) -> Any:
        seen.append(sql)
        return query(sql, values)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(store, "_query", told)
        patch.setattr(store._keys, "_query", told)
        ask()
    return seen


NAMES = st.sampled_from("abcdefgh")
STEPS = st.lists(
    st.tuples(st.sampled_from(["put", "delete", "find", "find", "read"]), st.booleans(), NAMES), min_size=5, max_size=60
)


@given(STEPS)
def test_what_either_of_two_stores_of_a_file_stored_is_found_by_both(steps: list[tuple[str, bool, str]]) -> None:
    with pytest.MonkeyPatch.context() as patch, tempfile.TemporaryDirectory() as folder:
        for name, value in (("_LOOK_SECONDS", 0.0), ("_REST", 0.0), ("_PAGE", 2), ("_MORE", 3)):
            patch.setattr(known_keys, name, value)
        path = Path(folder) / "responses.db"
        with opened(path) as one, opened(path) as other:
            there: dict[str, Entry] = {}
            for what, first, name in steps:
                store = one if first else other
                key = f"key of {name}"
                if what == "put":
                    there[key] = entry(name)
                    store.put(there[key])
                elif what == "delete" and key in there:
                    store.delete([there.pop(key).id])
                elif what == "find":
                    assert store.find(key) == there.get(key)
                else:
                    with_keys(store)


def test_a_new_question_is_not_asked_of_the_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(known_keys, "_LOOK_SECONDS", FAR)
    with opened(tmp_path / "responses.db") as store:
        for number in range(5):
            store.put(entry(str(number)))
        assert statements(store, lambda: store.find("no key")) != []
        with_keys(store).find("no key")
        assert statements(store, lambda: store.find("no key")) == []
        found = []
        assert len(statements(store, lambda: found.append(store.find("key of 3")))) == 1
        assert found[0] is not None
        store.put(entry("new"))
        assert store.find("key of new") is not None
        assert statements(store, lambda: store.find("no key")) == []


def test_keys_are_read_after_some_questions_only(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(known_keys, "_LEAST_ASKED", 5)
    with opened(tmp_path / "responses.db") as store:
        for _ in range(4):
            store.find("no key")
        assert store._keys._reader is None
        store.find("no key")
        assert store._keys._reader is not None


def test_what_another_process_stores_is_found_soon(tmp_path: Path) -> None:
    path = tmp_path / "responses.db"
    program = (
        "import sys\nfrom pathlib import Path\nfrom kvproxy.index.store import SqliteStore\n"
        "from tests.index.entries import make_entry\n"
        "store = SqliteStore(Path(sys.argv[1]))\nstore.put(make_entry('theirs', key='key of theirs'))\nprint('stored')\n"
    )
    with opened(path) as store:
        store.put(entry("ours"))
        with_keys(store)
        assert store.find("key of theirs") is None
        subprocess.run([sys.executable, "-c", program, str(path)], check=True, stdout=subprocess.DEVNULL)
        time.sleep(known_keys._LOOK_SECONDS)
        assert store.find("key of theirs") is not None
        # From now on the file is asked, until the keys are read again after a while.
        assert not whole(store)
        assert len(statements(store, lambda: store.find("no key"))) == 1


def test_a_process_that_is_not_alone_reads_the_keys_less_and_less_often(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(known_keys, "_LOOK_SECONDS", 0.0)
    now = [1000.0]
    monkeypatch.setattr(known_keys, "time", type("Clock", (), {"monotonic": staticmethod(lambda: now[0])}))
    with opened(tmp_path / "responses.db") as store, opened(tmp_path / "responses.db") as other:
        for round_, rest in enumerate((60.0, 120.0, 240.0)):
            with_keys(store)
            other.put(entry(f"theirs {round_}"))
            assert store.find(f"key of theirs {round_}") is not None
            reader = store._keys._reader
            now[0] += rest - 1
            store.find("no key")
            assert store._keys._reader is reader
            now[0] += 1


def test_what_was_not_committed_is_not_counted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(known_keys, "_LOOK_SECONDS", 0.0)
    with opened(tmp_path / "responses.db") as store:
        store.put_many([NewEntry(entry("kept")), NewEntry(entry("kept too"))])
        with_keys(store)

        def fail(*_: object) -> None:
            raise sqlite3.OperationalError("the disk is full")

        with monkeypatch.context() as patch:
            patch.setattr(store, "_put_vectors", fail)
            with pytest.raises(CacheStoreError, match="full"):
                store.put(entry("lost"))
        assert store.find("key of lost") is None
        store.put(entry("next"))
        assert store.find("key of next") is not None
        assert whole(store)
        assert statements(store, lambda: store.find("no key")) == ["select puts from totals"]


def test_keys_of_entries_that_went_are_forgotten_some_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(known_keys, "_MORE", 10)
    with opened(tmp_path / "responses.db", capacity=Capacity(entries=5)) as store:
        with_keys(store)
        for number in range(100):
            store.put_many([NewEntry(entry(f"{number} {place}")) for place in range(2)])
            assert store.find(f"key of {number} 1") is not None
            assert store._keys._keys is None or len(store._keys._keys.hashes) < 40
            with_keys(store)


def test_nothing_that_was_stored_is_missed_while_keys_are_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in (("_PAGE", 3), ("_MORE", 5), ("_LOOK_SECONDS", 0.0)):
        monkeypatch.setattr(known_keys, name, value)
    missed, done = list[str](), threading.Event()
    with opened(tmp_path / "responses.db", capacity=Capacity(entries=30)) as store:

        def write(thread: int) -> None:
            for number in range(60):
                name = f"{thread} {number}"
                store.put(entry(name, prompt_tokens=1))
                if store.find(f"key of {name}") is None and store.has_key(f"key of {name}"):
                    missed.append(name)

        def read() -> None:
            while not done.is_set():
                store.find("no key")

        reader = threading.Thread(target=read)
        reader.start()
        writers = [threading.Thread(target=write, args=[thread]) for thread in range(3)]
        for writer in writers:
            writer.start()
        for writer in writers:
            writer.join()
        done.set()
        reader.join()
    assert missed == []


def test_a_closed_store_says_so(tmp_path: Path) -> None:
    store = SqliteStore(tmp_path / "responses.db")
    with_keys(store)
    store.close()
    with pytest.raises(CacheStoreError, match="is closed"):
        store.find("no key")
    assert store._keys._reader is None or not store._keys._reader.is_alive()


class File:
    """What `KnownKeys` reads, with writes that can be stopped anywhere."""

    def __init__(self) -> None:
        self.puts = 0
        self.turn = threading.Lock()
        self.meanwhile: list[Callable[[], None]] = []
        self.keys = known_keys.KnownKeys(self.query, self.turn)

    def query(self, sql: str, values: Mapping[str, Any]) -> Any:
        if "puts" not in sql:
            return [{"keys": "[]", "last": None}]
        puts = self.puts
        for each in self.meanwhile:
            each()
        return [{"puts": puts}]

    def store(self, key: str) -> None:
        with self.turn, self.keys.writing():
            self.keys.add([key])
            self.puts += 1

    def read(self) -> None:
        self.keys.lacks("no key")
        assert self.keys._reader is not None
        self.keys._reader.join()


@pytest.fixture
def file(monkeypatch: pytest.MonkeyPatch) -> File:
    monkeypatch.setattr(known_keys, "_LOOK_SECONDS", 0.0)
    return File()


def test_a_commit_that_is_not_told_yet_is_nobody_elses(file: File) -> None:
    file.read()
    with file.turn, file.keys.writing():
        file.keys.add(["ours"])
        assert file.keys.lacks("no key")
        file.puts += 1
        assert file.keys.lacks("no key")
        assert not file.keys.lacks("ours")
    assert file.keys.lacks("no key")


def test_a_commit_while_the_file_is_looked_at_is_nobody_elses(file: File) -> None:
    file.read()
    file.meanwhile.append(lambda: file.store("ours"))
    assert not file.keys.lacks("no key")
    file.meanwhile.clear()
    assert file.keys.lacks("no key")


def test_keys_are_not_read_while_a_transaction_is_under_way(file: File) -> None:
    with file.turn:
        file.keys.lacks("no key")
        time.sleep(0.05)
        assert file.keys._keys is None
    file.read()
    assert file.keys._keys is not None
    assert file.keys._keys.hashes == set()


def test_the_file_is_looked_at_when_the_keys_have_been_read(file: File, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(known_keys, "_LOOK_SECONDS", FAR)
    file.read()
    assert file.keys.lacks("no key")
    file.keys._forget(0.0)
    file.read()
    file.puts += 1
    assert not file.keys.lacks("theirs")


def test_keys_that_were_read_are_not_read_again_for_who_comes_too_late(file: File) -> None:
    """Whoever found them missing may be held up until others have had them read: new ones would lack what is not read yet."""
    file.read()
    reader = file.keys._reader
    file.keys._start()
    assert file.keys._reader is reader
