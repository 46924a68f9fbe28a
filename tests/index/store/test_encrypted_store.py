"""Encrypted stores: no plain text in files, and key rotation. All tests with `make_store` cover encrypted stores too."""

import base64
import logging
import sqlite3
from contextlib import closing
from pathlib import Path

import numpy as np
import pytest

from kvproxy.index.errors import CacheStoreError
from kvproxy.index.store import EntryFilter, NewEntry, open_observations, open_store
from kvproxy.index.store.observations import Observation
from kvproxy.privacy.encryption import Cipher
from tests.index.conftest import MakeStore
from tests.index.entries import make_entry, stored_vectors

OLD, NEW = Cipher([b"o" * 32]), Cipher([b"n" * 32])
BOTH = Cipher([b"n" * 32, b"o" * 32])
SECRET = "xylophone"
ENTRY = make_entry(
    f"What is a {SECRET}?",
    key="digest",
    request=f'{{"q": "{SECRET}"}}'.encode(),
    response=f'{{"a": "{SECRET}"}}'.encode(),
)


def content(folder: Path) -> bytes:
    return b"".join(file.read_bytes() for file in folder.rglob("*") if file.is_file())


def test_no_file_contains_a_plain_text(tmp_path: Path, open_file: MakeStore) -> None:
    store, observations = open_file(cipher=NEW), open_observations(tmp_path / "r.db")
    store.put(ENTRY, np.ones(3, np.float32), "e")
    observations.add([Observation.from_verdict(ENTRY.id, True)])
    written = content(tmp_path)
    assert len(written) > 10_000
    for hidden in (SECRET.encode(), base64.b64encode(SECRET.encode())[:8]):
        assert hidden not in written
    assert store.get(ENTRY.id) == ENTRY
    observations.close()


def test_a_store_cannot_be_opened_without_its_key(tmp_path: Path) -> None:
    path = tmp_path / "r.db"
    store = open_store(path, cipher=OLD)
    store.put(ENTRY)
    store.close()
    before = path.read_bytes()
    for cipher in (None, NEW):
        with pytest.raises(CacheStoreError, match=f"the key {OLD.name}, which is not among the keys"):
            open_store(path, cipher=cipher)
    assert path.read_bytes() == before


def test_postgres_contains_no_plain_text(empty_postgres: str) -> None:
    store = open_store(empty_postgres, cipher=OLD)
    store.put(ENTRY)
    with store.database.connection() as connection:
        rows = connection.execute("select prompt, request, response from kvproxy.responses").fetchall()
    assert SECRET not in repr(rows)
    store.close()
    with pytest.raises(CacheStoreError, match="not among the keys"):
        open_store(empty_postgres, cipher=NEW)


def test_reseal_encrypts_plain_entries_and_those_of_an_older_key(tmp_path: Path) -> None:
    path = tmp_path / "r.db"
    store = open_store(path)
    assert store.reencrypt() == 0
    clear = [make_entry(f"{SECRET} {number}", key=f"{number}") for number in range(700)]
    store.put_many([NewEntry(entry) for entry in clear])
    store.close()
    store = open_store(path, cipher=OLD)
    store.put(ENTRY, np.ones(3, np.float32), "e")
    store.close()
    store = open_store(path, cipher=BOTH)
    newest = make_entry("newest")
    store.put(newest)
    assert store.count_by_key_name() == {"": 700, OLD.name: 1, BOTH.name: 1}
    assert SECRET.encode() in content(tmp_path)
    everything = {entry.id: entry for entry in store.entries()}
    assert everything == {entry.id: entry for entry in (*clear, ENTRY, newest)}
    assert store.reencrypt() == 701
    assert store.count_by_key_name() == {BOTH.name: 702}
    assert {entry.id: entry for entry in store.entries()} == everything
    assert list(stored_vectors(store).values()) == [ENTRY.id]
    assert SECRET.encode() not in content(tmp_path), "old pages were left"
    assert store.reencrypt() == 0
    store.close()
    # The old key is no longer needed.
    open_store(path, cipher=NEW).close()


@pytest.mark.parametrize("column", ["prompt", "request", "response"])
def test_exchanged_texts_are_refused(
    tmp_path: Path, open_file: MakeStore, column: str, caplog: pytest.LogCaptureFixture
) -> None:
    """An attacker with write access but no key could exchange the answers of two questions."""
    store = open_file(cipher=NEW)
    one, other, third = (make_entry(name) for name in ("one", "other", "third"))
    for entry in (one, other, third):
        store.put(entry)
    with closing(sqlite3.connect(tmp_path / "r.db")) as connection, connection:
        sql = f"update responses set {column} = (select {column} from responses where id = ?) where id = ?"
        connection.execute(sql, [other.id, one.id])
    connection.close()
    with pytest.raises(CacheStoreError, match=f"{one.id} cannot be decrypted .*kvproxy cache rm {one.id[:12]}"):
        store.find(one.key)
    assert store.find(other.key) == other
    with caplog.at_level(logging.WARNING, "kvproxy"):
        heads = store.questions([one.id, other.id, third.id])
    assert heads.keys() == {other.id, third.id} | ({one.id} if column != "prompt" else set())
    # The fix of the error message.
    store.delete(store.ids_with_prefix(one.id[:12]))
    assert set(store.ids()) == {other.id, third.id}


def test_encrypted_prompts_can_be_filtered(open_file: MakeStore) -> None:
    clear, sealed = open_file("clear.db"), open_file("sealed.db", cipher=NEW)
    puts = [
        NewEntry(make_entry(f"{'Odd' if number % 2 else 'Even'} number {number}", created=1000.0 + number % 7))
        for number in range(600)
    ]
    clear.put_many(puts)
    sealed.put_many(puts)
    for where in (
        EntryFilter(prompt="Odd"),
        EntryFilter(prompt="odd"),
        EntryFilter(search="ODD NUMBER 11"),
        EntryFilter(search=""),
        EntryFilter(prompt="Even", search="number 1", namespace="n"),
        EntryFilter(prompt="Even", model="other"),
        EntryFilter(search="7", tag="none"),
    ):
        assert sealed.list_entries(where) == clear.list_entries(where)
        assert sealed.list_entries(where, limit=3) == clear.list_entries(where, limit=3)
        assert sorted(sealed.ids(where)) == sorted(clear.ids(where))
