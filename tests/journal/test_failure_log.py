"""A journal that cannot be written: it is said once, and once more when it works again."""

from pathlib import Path

import pytest

from kvproxy.journal.journal import open_stored_journal
from kvproxy.settings.journal import JournalSettings
from tests.faults.test_disks import on_small_disk
from tests.journal.test_file import finished


def told(caplog: pytest.LogCaptureFixture) -> list[str]:
    """The lines about the journal."""
    return [record.getMessage() for record in caplog.records if record.getMessage().startswith("the journal")]


def test_a_full_disk_is_told_once_and_that_there_is_room_again(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with on_small_disk(tmp_path, 1_000_000) as disk:
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
        disk.grow()
        journal.add(finished("with room", "again"))
        journal.flush()
        assert told(caplog)[1:] == [f"the journal {journal.name} can be written again; {lost} records were lost"]
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
