"""A damaged journal is set aside, and the proxy starts with a new one."""

import logging
import sqlite3
from collections.abc import Callable
from pathlib import Path

import httpx
import pytest

from kvproxy.errors import SettingsError
from kvproxy.journal.journal import open_stored_journal
from kvproxy.settings.journal import JournalSettings
from tests.journal.test_file import finished
from tests.plain_upstream import run_plain_upstream
from tests.polling import until
from tests.servers import run_front

BODY = {"model": "m", "messages": [{"role": "user", "content": "hi"}]}
DAMAGES: dict[str, Callable[[bytes], bytes]] = {
    "truncated": lambda whole: whole[: len(whole) // 3],
    "overwritten header": lambda whole: bytes(100) + whole[100:],
    "no database": lambda whole: b"this is a text\n" * 1000,
    "damaged schema": lambda whole: whole[:100] + b"\xff" * 3900 + whole[4000:],
    "damaged pages": lambda whole: whole[:4096] + b"\xff" * (len(whole) - 4096),
}


def damage(path: Path, name: str) -> bytes:
    """Damage a closed file and return its content."""
    damaged = DAMAGES[name](path.read_bytes())
    path.write_bytes(damaged)
    return damaged


@pytest.mark.parametrize("name", DAMAGES)
def test_a_damaged_journal_is_set_aside(tmp_path: Path, caplog: pytest.LogCaptureFixture, name: str) -> None:
    path = tmp_path / "journal.db"
    journal = open_stored_journal(path, JournalSettings())
    journal.add(finished("one", "before"))
    journal.close()
    damaged = damage(path, name)
    with caplog.at_level(logging.WARNING, "kvproxy"):
        journal = open_stored_journal(path, JournalSettings())
    journal.add(finished("one", "after"))
    assert [record.request_id for record in journal.latest(5)] == ["after"]
    journal.close()
    (aside,) = (each for each in tmp_path.glob("journal.db.damaged-*") if each.name.split("-")[-1].isdigit())
    assert aside.read_bytes() == damaged
    assert sum("journal.db.damaged-" in line for line in caplog.messages) == 1


def test_a_proxy_starts_with_a_damaged_journal(tmp_path: Path) -> None:
    with run_plain_upstream() as upstream:
        with run_front(tmp_path, upstream) as (url, _):
            assert httpx.post(f"{url}/v1/chat/completions", json=BODY).status_code == 200
        damage(tmp_path / "journal.db", "damaged pages")
        with run_front(tmp_path, upstream) as (url, services):
            assert "hit" in httpx.post(f"{url}/v1/chat/completions", json=BODY).headers["cache-status"]
            # A client may have its response a moment before the exchange ends.
            until(lambda: [record.layer for record in services.answerer.journal.latest(5)] == ["exact"])


def test_a_journal_of_another_schema_is_refused_and_kept(tmp_path: Path) -> None:
    path = tmp_path / "journal.db"
    with sqlite3.connect(path) as connection:
        connection.execute("create table records (number integer)")
    connection.close()
    with pytest.raises(SettingsError, match=r"schema version 0\): move it away, or set journal.enabled = false"):
        open_stored_journal(path, JournalSettings())
    assert [file.name for file in tmp_path.iterdir() if file.suffix == ".db"] == ["journal.db"]
