"""A journal that cannot be written, or is damaged: the log names the failure once, and the recovery."""

import logging
import sqlite3
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import pytest

from kvproxy.errors import SettingsError
from kvproxy.journal.journal import open_stored_journal
from kvproxy.settings.journal import JournalSettings
from tests.faults.disks import grow
from tests.faults.test_disks import on_small_disk
from tests.journal.test_file import finished


def told(caplog: pytest.LogCaptureFixture) -> list[str]:
    """The lines about the journal."""
    return [record.getMessage() for record in caplog.records if record.getMessage().startswith("the journal")]


def test_a_full_disk_is_told_once_and_that_there_is_room_again(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with on_small_disk(tmp_path, 1_000_000):
        journal = open_stored_journal(tmp_path / "journal.db", JournalSettings())
        number = 0
        while journal.lost < 40:
            assert number < 5_000
            for _ in range(20):
                number += 1
                journal.add(finished(f"question {number} {'x' * 500}", f"r{number}"))
            journal.flush()
        lost = journal.lost
        (line,) = told(caplog)
        assert "failed" in line
        # A change of the store needs less room than a record.
        journal.record_keep_warm("unknown", "ended")
        journal.flush()
        assert journal.failure == "database or disk is full"
        assert len(told(caplog)) == 1
        grow(tmp_path)
        journal.add(finished("with room", "again"))
        journal.flush()
        assert told(caplog)[1:] == [f"the journal {journal.name} can be written again; {lost} records were lost"]
        assert journal.failure is None
        assert journal.latest(1)[0].request_id == "again"
        assert len(journal.latest(10_000)) == number - lost + 1
        journal.close()


@pytest.mark.parametrize("replaced", [False, True])
def test_a_file_that_was_taken_away_is_told_once(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, replaced: bool
) -> None:
    path, moved = tmp_path / "journal.db", tmp_path / "moved.db"
    journal = open_stored_journal(path, JournalSettings())
    journal.add(finished("one", "r1"))
    journal.flush()
    path.rename(moved)
    if replaced:
        open_stored_journal(tmp_path / "other.db", JournalSettings()).close()
        (tmp_path / "other.db").rename(path)
    for number in range(3):
        journal.add(finished("two", f"lost {number}"))
        journal.flush()
    assert journal.lost == 3
    (line,) = told(caplog)
    assert "was deleted or replaced: restart to use what is there now" in line
    again = open_stored_journal(moved, JournalSettings())
    assert [record.request_id for record in again.latest(10)] == ["r1"]
    again.close()
    if replaced:
        # The log of the old file still stood there, and SQLite would have written it over the new one.
        there = open_stored_journal(path, JournalSettings())
        assert there.latest(10) == []
        there.close()
    journal.close()


DAMAGES: dict[str, Callable[[bytes], bytes]] = {
    "truncated": lambda whole: whole[: len(whole) // 3],
    "overwritten header": lambda whole: bytes(100) + whole[100:],
    "no database": lambda whole: b"this is a text\n" * 1000,
    "damaged schema": lambda whole: whole[:100] + b"\xff" * 3900 + whole[4000:],
    "damaged pages": lambda whole: whole[:4096] + b"\xff" * (len(whole) - 4096),
}


@pytest.mark.parametrize("name", DAMAGES)
def test_a_damaged_journal_is_set_aside(tmp_path: Path, caplog: pytest.LogCaptureFixture, name: str) -> None:
    path = tmp_path / "journal.db"
    journal = open_stored_journal(path, JournalSettings())
    journal.add(finished("one", "before"))
    journal.close()
    damaged = DAMAGES[name](path.read_bytes())
    path.write_bytes(damaged)
    with caplog.at_level(logging.WARNING, "kvproxy"):
        journal = open_stored_journal(path, JournalSettings())
    journal.add(finished("one", "after"))
    assert [record.request_id for record in journal.latest(5)] == ["after"]
    journal.close()
    (aside,) = (each for each in tmp_path.glob("journal.db.damaged-*") if each.name.split("-")[-1].isdigit())
    assert aside.read_bytes() == damaged
    assert sum("journal.db.damaged-" in line for line in caplog.messages) == 1


def test_a_journal_of_another_schema_is_refused_and_kept(tmp_path: Path) -> None:
    path = tmp_path / "journal.db"
    with closing(sqlite3.connect(path)) as connection, connection:
        connection.execute("create table records (number integer)")
    connection.close()
    with pytest.raises(
        SettingsError, match=r"the journal .* another program, .*: give another path, or set journal.enabled = false"
    ):
        open_stored_journal(path, JournalSettings())
    assert [file.name for file in tmp_path.iterdir() if file.suffix == ".db"] == ["journal.db"]
