"""What is written many at a time leaves what each alone would have left, in whatever order it comes."""

import sqlite3
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kvproxy.exchange import Exchange
from kvproxy.index.store import RemovalReason
from kvproxy.journal.cache_history import ResponseRemoved, ResponseStored
from kvproxy.journal.event_queue import Event
from kvproxy.journal.record_writer import RecordWriter
from kvproxy.journal.schema import open_file
from kvproxy.settings.journal import JournalSettings
from tests.journal.test_file import finished

NOW = 1_795_000_000.0
WHYS: tuple[RemovalReason, ...] = ("expired", "evicted", "removed", "replaced")
STEPS = st.lists(
    st.tuples(
        st.sampled_from(("miss", "miss", "stored before", "stored after", "stored later", "hit", "gone", "kept")),
        st.sampled_from(("a", "b", "c")),
        st.sampled_from(("public", "client:x")),
        st.sampled_from(WHYS),
        st.integers(1, 4),
    ),
    max_size=40,
)
TABLES = {
    "requests": "number",
    "prompts": "number",
    "tombstones": "key",
    "totals": "day, tenant, model, layer, tag",
    "names": "number",
}


def what_of(steps: list[Any]) -> list[Event]:
    """Requests, and entries that come and go, a second after each other."""
    what: list[Event] = []
    waiting: list[ResponseStored] = []
    for number, (kind, question, tenant, why, _) in enumerate(steps):
        now, request_id = NOW + number, f"r{number}"
        made = finished(question, request_id, hit=kind == "hit", tenant=tenant, arrived=now)
        made.exact_done, made.backend_started = made.started + 0.25, made.started + 0.5
        made.first_byte = made.ended = made.started + 1.0
        kept = ResponseStored(made.cache_key.exact, f"{number:032x}", now + 3, now, request_id)
        if kind == "gone":
            what.append(ResponseRemoved(made.cache_key.exact, why, now))
        elif kind == "kept":
            what.append(kept)
        elif kind == "stored before":
            made.entry_id = kept.id
            what += [kept, made]
        else:
            what += [made, *([kept] if kind == "stored after" else waiting)]
            waiting = [kept] if kind == "stored later" else []
    return what


def left_by(path: Path, batches: list[list[Event]]) -> dict[str, list[Any]]:
    """All that batches leave in a file."""
    connection = open_file(path)
    writer = RecordWriter(connection, JournalSettings(), lambda: NOW)
    for batch in batches:
        writer.write(batch)
    left = {
        table: connection.execute(f"select * from {table} order by {order}").fetchall()
        for table, order in TABLES.items()
    }
    connection.close()
    return left


@settings(max_examples=25, deadline=None)
@given(STEPS)
def test_batches_leave_what_single_ones_leave(tmp_path_factory: pytest.TempPathFactory, steps: list[Any]) -> None:
    folder, what = tmp_path_factory.mktemp("journals"), what_of(steps)
    batches, sizes = list[list[Event]](), [size for *_, size in steps]
    for place, each in enumerate(what):
        if not batches or len(batches[-1]) >= 3 * sizes[place % len(sizes)]:
            batches.append([])
        batches[-1].append(each)
    alone = left_by(folder / "alone.db", [[each] for each in what])
    for name, left in (("all", left_by(folder / "all.db", [what])), ("some", left_by(folder / "some.db", batches))):
        for table, rows in alone.items():
            if table == "names":
                # A word gets its number when it is written first, which for a record is at the end of its batch.
                assert {row[1] for row in left[table]} == {row[1] for row in rows}
                continue
            assert len(left[table]) == len(rows), (name, table)
            for row, other in zip(left[table], rows, strict=True):
                assert list(row) == pytest.approx(list(other)), (name, table)


Opened = tuple[RecordWriter, sqlite3.Connection]


@pytest.fixture
def opened(tmp_path: Path) -> Iterator[Opened]:
    connection = open_file(tmp_path / "journal.db")
    yield RecordWriter(connection, JournalSettings(), lambda: NOW), connection
    connection.close()


def test_prompts_that_went_with_the_oldest_records_are_not_kept(tmp_path: Path) -> None:
    now = NOW
    connection = open_file(tmp_path / "journal.db")
    writer = RecordWriter(connection, JournalSettings(retention=86_400), lambda: now)
    writer.write([finished("q", "first", arrived=NOW)])
    now += 2 * 86_400
    assert writer.prune() == 1
    assert connection.execute("select count(*) from prompts").fetchone() == (0,)
    writer.write([finished("q", "second", arrived=now)])
    assert connection.execute("select number, question is null from prompts").fetchall() == [(1, False)]
    connection.close()


def test_an_entry_that_is_stored_after_a_hit_on_it_is_named_by_its_own_request(opened: Opened) -> None:
    writer, connection = opened
    miss, hit = finished("q", "first"), finished("q", "second", hit=True)
    kept = ResponseStored(miss.cache_key.exact, "e" * 32, NOW + 60, NOW, "first")
    for batches in ([[miss], [hit], [kept]], [[miss, hit, kept]]):
        for batch in batches:
            writer.write(batch)
        rows = connection.execute("select request_id, entry from requests order by number desc limit 2").fetchall()
        assert dict(rows)["first"] == "e" * 32


def test_after_an_error_nothing_of_a_batch_is_held(opened: Opened) -> None:
    writer, connection = opened
    broken: Any = Exchange("chat", "broken")
    broken.arrived = "never"
    with pytest.raises((TypeError, ValueError, sqlite3.Error)):
        writer.write([finished("q", "first"), broken])
    writer.write([finished("q", "second")])
    assert connection.execute("select request_id, prompt from requests").fetchall() == [("second", 1)]
    assert connection.execute("select number, last from prompts").fetchall() == [(1, 1)]


def test_after_a_failed_commit_a_prompt_is_what_it_was(opened: Opened, monkeypatch: pytest.MonkeyPatch) -> None:
    writer, connection = opened
    miss = finished("q", "first")
    writer.write([miss])

    with monkeypatch.context() as patch:
        patch.setattr("kvproxy.journal.record_writer._ADD_TO_TOTALS", "fails")
        with pytest.raises(sqlite3.OperationalError):
            writer.write([ResponseStored(miss.cache_key.exact, "e" * 32, NOW + 60, NOW, "first")])
    writer.write([finished("q", "second", hit=True)])
    assert connection.execute("select entry, expires from prompts").fetchall() == [(None, None)]
