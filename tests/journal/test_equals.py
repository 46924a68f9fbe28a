"""What the hits of a transaction share is kept once, beside their records, in files of this version and of earlier ones."""

import sqlite3
import time
from pathlib import Path

from kvproxy.journal.journal import FileJournal
from kvproxy.journal.reader import Query, Reader
from kvproxy.settings.journal import JournalSettings
from tests.index.entries import make_entry
from tests.journal.test_file import draft

EARLIER = Path(__file__).parent / "earlier.sql"
"""A file that the first version wrote: a computed answer, a hit on it, and another computed answer."""


def earlier(path: Path) -> None:
    connection = sqlite3.connect(path)
    connection.executescript(EARLIER.read_text())
    connection.close()


def test_a_file_of_an_earlier_version_is_brought_up_to_date(tmp_path: Path) -> None:
    path = tmp_path / "journal.db"
    earlier(path)
    before = Reader(path)
    there = before.records(Query())
    before.close()
    assert [(each.request_id, each.layer, each.tenant) for each in there] == [
        ("other", "prefix", "public"),
        ("hit", "exact", "client:ann"),
        ("miss", "prefix", "client:ann"),
    ]
    for _ in range(2):
        journal = FileJournal(path, JournalSettings(days=36_500))
        assert journal.latest(10) == there
        journal.close()


def test_an_earlier_file_takes_new_records_and_lets_old_ones_go(tmp_path: Path) -> None:
    path = tmp_path / "journal.db"
    earlier(path)
    journal = FileJournal(path, JournalSettings(rows=2, days=36_500))
    journal.add(draft("a", "again", tenant="client:ann"))
    journal.flush()
    journal.add(draft("a", "hit again", tenant="client:ann", hit=True))
    journal.flush()
    journal._writer.prune()
    kept = journal.latest(10)
    assert [(each.number, each.request_id, each.layer) for each in kept] == [
        (5, "hit again", "exact"),
        (4, "again", "prefix"),
    ]
    assert kept[0].prompt == kept[1].prompt
    journal.close()


def test_hits_keep_what_they_share_when_others_of_them_are_too_old(tmp_path: Path) -> None:
    now = time.time()
    journal = FileJournal(tmp_path / "journal.db", JournalSettings(days=1), lambda: now)
    journal.add(draft("a", "miss", time=now))
    journal.flush()
    with journal._writing:
        for id, came in (("old", now - 90_000), ("new", now), ("odd", now - 90_000), ("newer", now)):
            journal.add(draft("a", id, hit=True, tags="x", time=came))
    before = journal.latest(10)
    assert journal._writer.prune() == 2
    assert journal.latest(10) == [each for each in before if each.request_id in ("miss", "new", "newer")]
    journal.close()


def test_a_hit_is_never_taken_for_the_request_that_made_an_entry(tmp_path: Path) -> None:
    """Not even where a client gives all of its requests one id."""
    journal = FileJournal(tmp_path / "journal.db", JournalSettings())
    made, hit = draft("a", "id"), draft("a", "id", hit=True)
    assert hit.hit is not None
    journal.add(made)
    journal.flush()
    journal.add(hit)
    journal.kept(make_entry("a", id="cd" * 16, key=made.key or "", request_id="id"))
    assert [each.entry for each in journal.latest(2)] == [hit.hit.id, "cd" * 16]
    journal.close()
