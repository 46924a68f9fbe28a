"""The store: what is put is found, what is damaged is told, and a killed process loses nothing that it acknowledged."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from index.entry import Entry
from index.errors import CacheStoreError, StoreDamaged
from index.store import ResponseStore
from tests.index.entries import make_entry


@pytest.fixture
def store(tmp_path: Path) -> ResponseStore:
    return ResponseStore(tmp_path / "responses.db", clock=lambda: 2000.0)


KEYS = st.sampled_from("abcde")
STEPS = st.lists(st.tuples(st.sampled_from(["put", "delete", "find"]), KEYS, st.booleans()), max_size=30)


@settings(max_examples=30, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(STEPS)
def test_behaves_like_a_dictionary(tmp_path: Path, steps: list[tuple[str, str, bool]]) -> None:
    path = tmp_path / f"{abs(hash(tuple(steps)))}.db"
    store = ResponseStore(path, clock=lambda: 2000.0)
    model: dict[str, Entry] = {}
    for step, key, fresh in steps:
        if step == "put":
            entry = make_entry(key, key=key, expires=3000.0 if fresh else 1500.0)
            replaced = store.put(entry, np.ones(3, np.float32), "e")
            assert replaced == ([model[key].id] if key in model else [])
            model[key] = entry
        elif step == "delete":
            assert store.delete([model[key].id] if key in model else []) == (key in model)
            model.pop(key, None)
        else:
            found = model.get(key)
            assert store.find(key) == (found if found and found.expires > 2000.0 else None)
    assert {entry.id for entry in store.ls()} == {entry.id for entry in model.values()}
    assert {id for id, _, _ in store.vectors("e")} == {entry.id for entry in model.values()}
    store.close()


def test_reopening_finds_everything(store: ResponseStore) -> None:
    entry = make_entry()
    store.put(entry, np.arange(3, dtype=np.float32), "e")
    store.touch(entry.id)
    store.close()
    again = ResponseStore(store.path, clock=lambda: 2000.0)
    found = again.get(entry.id)
    assert found is not None
    assert (found.prompt, found.hits, found.last_hit) == (entry.prompt, 1, 2000.0)
    ((id, namespace, vector),) = again.vectors("e")
    assert (id, namespace, vector.tolist()) == (entry.id, "n", [0.0, 1.0, 2.0])
    assert again.check() == 1
    again.close()


def test_export_and_back(store: ResponseStore, tmp_path: Path) -> None:
    entries = [make_entry(f"question {number}", created=float(number)) for number in range(5)]
    for entry in entries:
        store.put(entry)
    documents = list(store.export())
    assert [Entry.from_document(document).prompt for document in documents] == [entry.prompt for entry in entries]


def test_listing_filters(store: ResponseStore) -> None:
    for number in range(6):
        model = "a" if number % 2 else "b"
        store.put(make_entry(f"question {number}", model=model, created=1000.0 + number, namespace=f"{number % 3}x"))
    assert [entry.prompt for entry in store.ls(model="a", limit=2)] == ["question 5", "question 3"]
    assert len(store.ls(search="QUESTION 4")) == 1
    assert len(store.ls(namespace="1")) == 2
    assert len(store.ls(older_than=998.0)) == 2


@pytest.mark.parametrize("content", [b"this is no database at all, but long enough to be read as one" * 99, None])
def test_a_damaged_file_is_told_and_left_alone(tmp_path: Path, content: bytes | None) -> None:
    path = tmp_path / "responses.db"
    if content is None:
        store = ResponseStore(path)
        for number in range(200):
            store.put(make_entry(f"question {number}"))
        store.close()
        data = bytearray(path.read_bytes())
        data[4096 : len(data)] = os.urandom(len(data) - 4096)
        content = bytes(data)
    path.write_bytes(content)
    with pytest.raises(StoreDamaged, match="move it away"):
        ResponseStore(path).check()
    assert path.read_bytes() == content


def test_a_folder_is_no_store(tmp_path: Path) -> None:
    with pytest.raises(CacheStoreError, match="cannot open"):
        ResponseStore(tmp_path)


WRITER = """
import sys
from pathlib import Path
import numpy as np
from index.store import ResponseStore
from tests.index.entries import make_entry
store = ResponseStore(Path(sys.argv[1]))
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
    store = ResponseStore(path)
    kept = {entry.id for entry in store.ls()}
    assert set(ids) <= kept
    assert {id for id, _, _ in store.vectors("e")} == kept
    store.close()
