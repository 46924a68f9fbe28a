"""Damaged files: a served response equals the stored one, and damaged rows do not hide the intact ones."""

import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

from kvproxy.index.errors import StoreDamaged
from kvproxy.index.store import Store, open_store
from kvproxy.privacy.encryption import Cipher
from tests.faults import damage
from tests.faults.harness import passed
from tests.index.entries import make_entry


def test_nothing_damaged_is_served() -> None:
    findings = damage.run(24, 0, lambda: None)
    assert passed(findings)
    by_name = {finding.fault.removeprefix("damaged: "): finding.counts for finding in findings}
    assert by_name["chunks"]["skipped"]
    assert by_name["pages of the database"]["all served"]
    assert by_name["log of the database"]["some served"]


def test_an_index_that_leads_to_another_entry_serves_nothing(tmp_path: Path) -> None:
    store = open_store(tmp_path / "r.db")
    store.put(make_entry("one", key="1" * 40))
    store.put(make_entry("two", key="2" * 40))
    store.close()
    path = tmp_path / "r.db"
    # The index of keys holds them a second time, in another order than the table: exchange them there.
    with closing(sqlite3.connect(path)) as connection, connection:
        connection.execute("pragma writable_schema = on")
        (page,) = connection.execute(
            "select rootpage from sqlite_master where name = 'sqlite_autoindex_responses_2'"
        ).fetchone()
        (size,) = connection.execute("pragma page_size").fetchone()
    connection.close()
    data = path.read_bytes()
    start = (page - 1) * size
    one, two = b"1" * 40, b"2" * 40
    index = two.join(part.replace(two, one) for part in data[start : start + size].split(one))
    path.write_bytes(data[:start] + index + data[start + size :])
    store = open_store(path)
    assert store.find("1" * 40) is None
    store.close()


CASES = [
    (column, *harm)
    for column in ("prompt", "tenant", "tags", "response", "sealed", "checksum", "model")
    for harm in (
        ("cast(x'fffe80' as text)", False),
        ("cast(x'fffe80' as text)", True),
        ("'é~'", False),
        ("7", True),
        ("x'ff'", False),
    )
]
CASES += [
    (column, f"replace({column}, substr({column}, 2, 1), '-')", False)
    for column in ("response", "request", "prompt", "tenant", "namespace", "tags")
]


@pytest.mark.parametrize(("column", "harm", "encrypted"), [*CASES, ("expires", "expires + 1", False)])
def test_a_changed_entry_is_damaged_and_not_served(tmp_path: Path, column: str, harm: str, encrypted: bool) -> None:
    """SQLite reads a changed page as if nothing were wrong, unless its text cannot be decoded."""

    def opened() -> Store:
        return open_store(tmp_path / "r.db", cipher=Cipher([bytes(32)]) if encrypted else None)

    store = opened()
    for name in ("one", "two"):
        store.put(make_entry(name, id=name, key=name, namespace="nn", tenant="nn", tags=("t",)))
    store.close()
    with closing(sqlite3.connect(tmp_path / "r.db")) as damaging, damaging:
        damaging.execute(f"update responses set {column} = {harm} where id = 'one'")
    damaging.close()
    store = opened()
    for read in (store.find, store.get):
        with pytest.raises(StoreDamaged, match="one"):
            read("one")
    assert "one" in (store.database.health.failure or "")
    assert [entry.id for entry in (*store.entries(), *store.list_entries(), *store.missing_vectors("e", 9))] == [
        "two"
    ] * 3
    heads = store.questions(["one", "two"])
    assert heads["two"].prompt == "two"
    assert all(isinstance(head.prompt, str) for head in heads.values())
    assert {usage.entries for usage in store.usage("tenant")} <= {1, 2}
    store.put(make_entry("one", id="new", key="one"))
    found = store.find("one")
    assert found is not None
    assert found.id == "new"
    store.close()


def test_a_damaged_schema_whose_error_cannot_be_decoded_is_reported(tmp_path: Path) -> None:
    path = tmp_path / "r.db"
    open_store(path).close()
    path.write_bytes(path.read_bytes().replace(b"CREATE INDEX", b"CR\xdfATE INDEX"))
    with pytest.raises(StoreDamaged, match="damaged"):
        open_store(path)
