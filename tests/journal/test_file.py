"""The journal's file: what kill -9 leaves of it, its bounds, and requests that no one foresaw."""

import contextlib
import signal
import sqlite3
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from kvproxy.errors import InvalidRequest
from kvproxy.flow.keys import cache_key
from kvproxy.journal.draft import Draft
from kvproxy.journal.journal import FileJournal
from kvproxy.journal.past import Gone
from kvproxy.journal.reader import Query, Reader
from kvproxy.journal.savings import savings
from kvproxy.settings.journal import JournalSettings, PriceSettings
from tests.index.entries import make_entry
from tests.requests import api_request

WRITER = """
import sys, time
from pathlib import Path
from kvproxy.journal.journal import FileJournal
from kvproxy.settings.journal import JournalSettings
from tests.journal.test_file import draft

journal = FileJournal(Path(sys.argv[1]), JournalSettings())
print("ready", flush=True)
number = 0
while True:
    number += 1
    journal.add(draft(f"question {number % 50}", f"r{number}", hit=number > 50))
    print(number, time.time(), flush=True)
    time.sleep(0.0005)
"""


def draft(
    question: str, request_id: str, *, hit: bool = False, tenant: str = "public", tags: str = "", **fields: Any
) -> Draft:
    """A request that was computed, or answered from the cache."""
    headers = {"x-kvproxy-tags": tags} if tags else {}
    request = api_request({"model": "m", "messages": [{"role": "user", "content": question}]}, headers=headers)
    key = cache_key(request, "b")
    made = Draft("chat", request_id, tenant, request, time.time())
    made.key, made.parts, made.status, made.layer = key.exact, key.parts, 200, "forward"
    made.prompt_tokens, made.completion_tokens, made.reused_tokens = 100, 10, 40
    made.opened = made.first = made.ended = made.began + 2.0
    if hit:
        made.layer = "exact"
        tokens = {"prompt_tokens": 100, "completion_tokens": 10}
        made.hit = make_entry(question, id=key.exact[:32], model="m", key=key.exact, **tokens)
        made.looked, made.first, made.ended = made.began + 0.001, made.began + 0.001, 0.0
    for name, value in fields.items():
        setattr(made, name, value)
    return made


@pytest.fixture
def journal(tmp_path: Path) -> Any:
    opened = FileJournal(tmp_path / "journal.db", JournalSettings())
    yield opened
    opened.close()


def test_kill_loses_at_most_the_last_second(tmp_path: Path) -> None:
    path = tmp_path / "journal.db"
    for round_ in range(2):
        with subprocess.Popen([sys.executable, "-c", WRITER, str(path)], stdout=subprocess.PIPE, text=True) as writer:
            assert writer.stdout is not None
            assert writer.stdout.readline() == "ready\n"
            time.sleep(1.2 + 0.37 * round_)
            killed = time.time()
            writer.send_signal(signal.SIGKILL)
            added = [line.split() for line in writer.stdout if line.endswith("\n")]
        reader = Reader(path)
        kept = {record.request_id for record in reader.records(Query(limit=len(added)))}
        reader.close()
        # A machine that is busy elsewhere may write late; it never loses what was there a second before that.
        must = {f"r{number}" for number, at in added if float(at) < killed - 1.0}
        assert must
        assert must <= kept
        connection = sqlite3.connect(path)
        assert connection.execute("pragma integrity_check").fetchone() == ("ok",)
        # Totals and records are of one transaction.
        counts = connection.execute(
            "select (select count(*) from records), (select sum(requests) from totals where tag = '')"
        )
        assert len(set(counts.fetchone())) == 1
        connection.close()


def test_the_oldest_records_go_and_totals_stay(tmp_path: Path) -> None:
    journal = FileJournal(tmp_path / "journal.db", JournalSettings(rows=10))
    for number in range(25):
        journal.add(draft(f"question {number}", f"r{number}"))
    journal.flush()
    while journal._writer.prune():
        pass
    kept = journal.latest(100)
    assert [record.request_id for record in kept] == [f"r{number}" for number in range(24, 14, -1)]
    connection = sqlite3.connect(journal.path)
    assert connection.execute("select count(*) from prompts").fetchone() == (10,)
    assert connection.execute("select sum(requests) from totals where tag = ''").fetchone() == (25,)
    connection.close()
    journal.close()


def test_a_hit_whose_prompt_was_forgotten_while_it_waited_leaves_a_record(tmp_path: Path) -> None:
    journal = FileJournal(tmp_path / "journal.db", JournalSettings())
    journal.add(draft("question", "first"))
    journal.flush()
    with journal._writing:
        journal.add(draft("question", "hit", hit=True))
        with contextlib.closing(sqlite3.connect(journal.path)) as other, other:
            other.execute("delete from prompts")
        journal._writer._known.clear()
    assert [(each.request_id, each.reason, each.prompt) for each in journal.latest(1)] == [("hit", "hit-exact", None)]
    journal.close()


def test_old_records_go(tmp_path: Path) -> None:
    now = time.time()
    journal = FileJournal(tmp_path / "journal.db", JournalSettings(days=1), lambda: now)
    journal.add(draft("old", "old", time=now - 90_000))
    journal.add(draft("new", "new", time=now))
    journal.flush()
    assert journal._writer.prune() == 1
    assert [record.request_id for record in journal.latest(10)] == ["new"]
    journal.close()


def test_savings_count_answers_reuse_and_what_hits_took(journal: FileJournal) -> None:
    journal.add(draft("a", "1", tags="x, y"))
    for number in range(3):
        journal.add(draft("a", f"hit{number}", hit=True, tags="x"))
    journal.add(draft("b", "2", tenant="client:ann"))
    journal.flush()
    prices = {"m*": PriceSettings(input=1000, cached=250, output=10_000)}
    reader = Reader(journal.path)
    rows = {row.name: row for row in savings(reader, "layer", prices)}
    # A hit saves 100 tokens at 1,000 for a million and 10 at 10,000; reuse saves three quarters of 40.
    assert rows["exact"].answered == 3
    assert (rows["exact"].prompt_tokens, rows["exact"].completion_tokens) == (300, 30)
    assert rows["exact"].money == pytest.approx(3 * (0.1 + 0.1))
    assert rows["exact"].seconds == pytest.approx(3 * (2.0 - 0.001))
    assert rows["prefix"].reused_tokens == 80
    assert rows["prefix"].money == pytest.approx(2 * 0.03)
    # 2 s for 60 computed tokens, so that 40 reused ones saved two thirds of that.
    assert rows["prefix"].seconds == pytest.approx(2 * 2.0 * 40 / 60)
    tags = {row.name: row.requests for row in savings(reader, "tag", prices)}
    tenants = {row.name: row.requests for row in savings(reader, "tenant", prices)}
    reader.close()
    assert tags == {"x": 4, "y": 1}
    assert tenants == {"public": 4, "client:ann": 1}


def test_an_entry_that_is_stored_behind_the_answer_is_named_in_its_record(journal: FileJournal) -> None:
    failed, made = draft("a", "failed"), draft("a", "made")
    failed.status = 500
    key = made.key or ""
    journal.add(failed)
    journal.add(made)
    journal.kept(make_entry("a", id="ab" * 16, key=key, request_id="made"))
    assert [record.entry for record in journal.latest(2)] == ["ab" * 16, None]
    # One whose record is not written yet.
    journal.kept(make_entry("a", id="cd" * 16, key=key, request_id="next"))
    assert [record.entry for record in journal.latest(2)] == ["ab" * 16, None]


def test_a_condition_can_look_and_nothing_else(journal: FileJournal) -> None:
    journal.add(draft("a", "1"))
    journal.flush()
    reader = Reader(journal.path)
    assert len(reader.records(Query(where="total_ms > 1000 and reason like 'prefix%'"))) == 1
    for where in ("1) union select load_extension('x'", "no_such_column = 1", "1; drop table records", "pragma_x()"):
        with pytest.raises(InvalidRequest):
            reader.records(Query(where=where))
    reader.close()


def test_one_odd_request_does_not_harm_the_others(journal: FileJournal) -> None:
    odd = draft("odd", "odd")
    odd.parts = {"body": {"messages": object()}}  # type: ignore[dict-item]
    imported = draft("imported", "imported", hit=True)
    imported.hit = make_entry("imported", id="an id of somebody's own", key="a key of somebody's own")
    for each in (draft("a", "1"), odd, imported, draft("b", "2")):
        journal.add(each)
    journal.gone([Gone("a key of somebody's own", "removed", time.time())])
    assert [record.request_id for record in journal.latest(10)] == ["2", "imported", "1"]
    assert journal.latest(10)[1].entry == "an id of somebody's own"
    assert journal.lost == 1


def test_a_file_that_is_no_journal_is_set_aside(tmp_path: Path) -> None:
    path, text = tmp_path / "journal.db", b"something else, and long enough to be looked at" * 30
    path.write_bytes(text)
    FileJournal(path, JournalSettings()).close()
    (aside,) = tmp_path.glob("journal.db.damaged-*")
    assert aside.read_bytes() == text


def test_two_proxies_may_share_a_file(tmp_path: Path) -> None:
    one, other = (FileJournal(tmp_path / "journal.db", JournalSettings()) for _ in range(2))
    for number in range(40):
        (one if number % 2 else other).add(draft(f"question {number % 7}", f"r{number}"))
    one.flush()
    other.flush()
    found = one.latest(100)
    assert {record.request_id for record in found} == {f"r{number}" for number in range(40)}
    assert len({record.number for record in found}) == 40
    one.close()
    other.close()


def test_what_comes_while_others_are_written_waits_for_the_next_time(
    journal: FileJournal, monkeypatch: pytest.MonkeyPatch
) -> None:
    write, batches = journal._writer.write, 0

    def busy(what: Any) -> None:
        nonlocal batches
        batches += 1
        write(what)
        if batches < 50:
            journal.add(draft("again", f"{batches}"))

    journal.add(draft("first", "0"))
    with journal._writing:
        monkeypatch.setattr(journal._writer, "write", busy)
    journal.flush()
    # The journal's own thread may have been writing too.
    assert batches < 25


def test_of_hits_that_wait_together_only_those_that_cannot_be_written_are_lost(journal: FileJournal) -> None:
    journal.add(draft("a", "miss"))
    journal.flush()
    for id in ("one", "\ud800", "two"):
        journal.add(draft("a", id, hit=True))
    assert {record.request_id for record in journal.latest(10)} == {"miss", "one", "two"}
    assert journal.lost == 1
