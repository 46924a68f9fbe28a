"""A damaged journal is set aside, and the proxy starts with a new one."""

import logging
import sqlite3
from collections.abc import Callable
from pathlib import Path

import httpx
import pytest

from kvproxy.errors import SettingsError
from kvproxy.journal.journal import FileJournal
from kvproxy.settings import load_settings
from kvproxy.settings.journal import JournalSettings
from tests.plain_upstream import run_plain_upstream
from tests.servers import run_proxy

BODY = {"model": "m", "messages": [{"role": "user", "content": "hi"}]}


def truncated(path: Path) -> None:
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 3])


def overwritten_header(path: Path) -> None:
    path.write_bytes(b"\x00" * 100 + path.read_bytes()[100:])


def no_database(path: Path) -> None:
    path.write_text("this is a text\n" * 1000)


def damaged_schema(path: Path) -> None:
    whole = path.read_bytes()
    path.write_bytes(whole[:100] + b"\xff" * 3900 + whole[4000:])


def damaged_pages(path: Path) -> None:
    whole = path.read_bytes()
    path.write_bytes(whole[:4096] + b"\xff" * (len(whole) - 4096))


@pytest.mark.parametrize("damage", [truncated, overwritten_header, no_database, damaged_schema, damaged_pages])
def test_a_damaged_journal_is_set_aside(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, damage: Callable[[Path], None]
) -> None:
    path = tmp_path / "journal.db"
    with run_plain_upstream() as upstream:
        settings = load_settings(data=tmp_path, upstream=upstream, cache={"semantic": False})
        with run_proxy(settings) as (url, _):
            assert httpx.post(f"{url}/v1/chat/completions", json=BODY).status_code == 200
        with sqlite3.connect(path) as connection:
            connection.execute("pragma wal_checkpoint(truncate)")
        damage(path)
        damaged = path.read_bytes()
        with caplog.at_level(logging.WARNING, "kvproxy"), run_proxy(settings) as (url, services):
            assert "hit" in httpx.post(f"{url}/v1/chat/completions", json=BODY).headers["cache-status"]
            assert [record.layer for record in services.answerer.journal.latest(5)] == ["exact"]
    (aside,) = (each for each in tmp_path.glob("journal.db.damaged-*") if each.name.split("-")[-1].isdigit())
    assert aside.read_bytes() == damaged
    assert sum("journal.db.damaged-" in line for line in caplog.messages) == 1


def test_a_journal_of_another_schema_is_refused_and_kept(tmp_path: Path) -> None:
    path = tmp_path / "journal.db"
    with sqlite3.connect(path) as connection:
        connection.execute("create table records (number integer)")
    connection.close()
    with pytest.raises(SettingsError, match=r"schema version 0\): move it away, or set journal.enabled = false"):
        FileJournal(path, JournalSettings())
    assert [file.name for file in tmp_path.iterdir() if file.suffix == ".db"] == ["journal.db"]
