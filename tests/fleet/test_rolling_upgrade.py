"""Proxies of two versions on one database: a new version migrates the schema while the previous one serves."""

import shutil
from contextlib import closing
from pathlib import Path

import psycopg
import pytest

from kvproxy.index.errors import CacheStoreError, SchemaVersionError
from kvproxy.index.store import NewEntry, Store, open_store
from kvproxy.index.store.postgres import schema
from kvproxy.index.store.postgres.schema import Migration
from tests.faults import fleet
from tests.faults.harness import passed
from tests.fleet.upgrade import upgrade
from tests.index.entries import make_entry
from tests.nginx_server import needs_nginx

EXPAND = Migration(
    (
        "alter table responses add column note text not null default 'none'",
        "create table notes (id text primary key references responses (id) on delete cascade)",
    )
)
CONTRACT = Migration(("drop table notes", "alter table responses drop column note"), compatible_since=2)


def _versions(url: str) -> tuple[int, int]:
    with psycopg.connect(url) as connection:
        found = connection.execute("select version, compatible_since from kvproxy.schema_version").fetchone()
    assert found is not None
    return found


def _open(url: str, monkeypatch: pytest.MonkeyPatch, *migrations: Migration) -> Store:
    """Open the store as the version with some migrations."""
    monkeypatch.setattr(schema, "MIGRATIONS", migrations)
    return open_store(url, clock=lambda: 1000.0)


def test_an_older_version_refuses_only_a_contracted_schema(
    empty_postgres: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    entries = [make_entry(prompt) for prompt in "abc"]
    with closing(_open(empty_postgres, monkeypatch)) as first:
        first.put_many([NewEntry(entries[0])])
        with closing(_open(empty_postgres, monkeypatch, EXPAND)) as second:
            assert _versions(empty_postgres) == (2, 1)
            first.put_many([NewEntry(entries[1])])
            assert all(second.find(entry.key) for entry in entries[:2])
    # A proxy of the first version restarts.
    with closing(_open(empty_postgres, monkeypatch)) as restarted:
        restarted.put_many([NewEntry(entries[2])])
        assert _versions(empty_postgres) == (2, 1)
    with closing(_open(empty_postgres, monkeypatch, EXPAND, CONTRACT)) as third:
        assert all(third.find(entry.key) for entry in entries)
        assert _versions(empty_postgres) == (3, 2)
    with pytest.raises(SchemaVersionError, match=r"has schema version 3, .* requires 1: upgrade kvproxy"):
        _open(empty_postgres, monkeypatch)
    _open(empty_postgres, monkeypatch, EXPAND).close()


def test_a_failed_migration_changes_nothing(empty_postgres: str, monkeypatch: pytest.MonkeyPatch) -> None:
    _open(empty_postgres, monkeypatch).close()
    broken = Migration((*EXPAND.statements, "alter table absent add column note text"))
    with pytest.raises(CacheStoreError, match="absent"):
        _open(empty_postgres, monkeypatch, broken)
    assert _versions(empty_postgres) == (1, 1)
    _open(empty_postgres, monkeypatch, EXPAND).close()


@needs_nginx
def test_proxies_are_replaced_one_by_one_under_load(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fleet, "_PAUSE_SECONDS", 0.25)
    # No request may fail, however busy the machine is.
    for name in ("TIMEOUT", "DELIVERY_SECONDS", "DRAINED_SECONDS"):
        monkeypatch.setattr(fleet, f"_{name}", 300.0)
    for name in ("kvproxy", "index", "commands"):
        shutil.copytree(fleet.ROOT / name, tmp_path / name, symlinks=True, ignore=shutil.ignore_patterns("model"))
    file = tmp_path / "index/store/postgres/schema.py"
    text, empty = file.read_text(), "MIGRATIONS: tuple[Migration, ...] = ()\n"
    assert empty in text
    file.write_text(text.replace(empty, f"MIGRATIONS = (Migration({EXPAND.statements!r}),)\n"))
    finding = upgrade(fleet.ROOT, tmp_path, 0.2, proxies=2)
    assert passed([finding])
    assert finding.counts["acknowledged"] > 20
