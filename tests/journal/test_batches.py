"""A batch of records leaves the same rows as single records in any order."""

import asyncio
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kvproxy.exchange import Exchange
from kvproxy.index.store import RemovalReason
from kvproxy.index.store_location import is_url
from kvproxy.journal.cache_history import Event, ResponseRemoved, ResponseStored
from kvproxy.journal.databases.database import JournalDatabase, JournalFailed
from kvproxy.journal.databases.postgres import PostgresJournalDatabase
from kvproxy.journal.databases.sqlite import open_file
from kvproxy.journal.journal import open_stored_journal
from kvproxy.journal.record_writer import RecordWriter
from kvproxy.journal.schema import COLUMNS
from kvproxy.settings.journal import JournalSettings
from tests.journal.test_file import finished
from tests.postgres_server import empty

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
    "requests": (", ".join(COLUMNS[:-1]), "number"),
    "prompts": ("*", "number"),
    "tombstones": ("*", "key"),
    "totals": ("*", "day, tenant, model, layer, tag"),
    "names": ("*", "number"),
}


def open_database(place: str) -> JournalDatabase:
    """Open the database of a journal for writing."""
    if not is_url(place):
        return open_file(Path(place))
    database = PostgresJournalDatabase(place, writable=True)
    database.connect()
    return database


def what_of(steps: list[Any]) -> list[Event]:
    """Requests, and entries that come and go, a second after each other."""
    what: list[Event] = []
    waiting: list[ResponseStored] = []
    for number, (kind, question, tenant, why, _) in enumerate(steps):
        now, request_id = NOW + number, f"r{number}"
        made = finished(question, request_id, hit=kind == "hit", tenant=tenant, arrived=now)
        made.exact_done, made.facts.started = made.started + 0.25, made.started + 0.5
        made.first_byte = made.ended = made.started + 1.0
        kept = ResponseStored(made.cache_key.exact, f"{number:032x}", now + 3, now, request_id)
        if kind == "gone":
            what.append(ResponseRemoved(made.cache_key.exact, why, now))
        elif kind == "kept":
            what.append(kept)
        elif kind == "stored before":
            made.facts.entry_id = kept.id
            what += [kept, made]
        else:
            what += [made, *([kept] if kind == "stored after" else waiting)]
            waiting = [kept] if kind == "stored later" else []
    return what


def left_by(place: str, batches: list[list[Event]]) -> dict[str, list[Any]]:
    """All that batches leave in a journal."""
    database = open_database(place)
    writer = RecordWriter(database, JournalSettings(), lambda: NOW)
    for batch in batches:
        writer.write(batch)
    left = {
        table: database.rows(f"select {columns} from {table} order by {order}")
        for table, (columns, order) in TABLES.items()
    }
    database.close()
    return left


@settings(max_examples=25, deadline=None)
@given(STEPS)
def test_batches_leave_what_single_ones_leave(
    tmp_path_factory: pytest.TempPathFactory, postgres: str, steps: list[Any]
) -> None:
    folder, what = tmp_path_factory.mktemp("journals"), what_of(steps)
    batches, sizes = list[list[Event]](), [size for *_, size in steps]
    for place, each in enumerate(what):
        if not batches or len(batches[-1]) >= 3 * sizes[place % len(sizes)]:
            batches.append([])
        batches[-1].append(each)
    alone = left_by(str(folder / "alone.db"), [[each] for each in what])
    empty(postgres)
    for name, left in (
        ("all", left_by(str(folder / "all.db"), [what])),
        ("some", left_by(str(folder / "some.db"), batches)),
        ("postgres", left_by(postgres, batches)),
    ):
        for table, rows in alone.items():
            if table == "names":
                # A word gets its number when it is written first, which for a record is at the end of its batch.
                assert {row[1] for row in left[table]} == {row[1] for row in rows}
                continue
            assert len(left[table]) == len(rows), (name, table)
            for row, other in zip(left[table], rows, strict=True):
                assert list(row) == pytest.approx(list(other)), (name, table)


Opened = tuple[RecordWriter, JournalDatabase]


@pytest.fixture
def opened(place: str) -> Iterator[Opened]:
    database = open_database(place)
    yield RecordWriter(database, JournalSettings(), lambda: NOW), database
    database.close()


def test_prompts_that_went_with_the_oldest_records_are_not_kept(place: str) -> None:
    now = NOW
    database = open_database(place)
    writer = RecordWriter(database, JournalSettings(retention=86_400), lambda: now)
    writer.write([finished("q", "first", arrived=NOW)])
    now += 2 * 86_400
    assert writer.prune() == 1
    assert database.rows("select count(*) from prompts") == [(0,)]
    writer.write([finished("q", "second", arrived=now)])
    assert database.rows("select count(*), count(question) from prompts") == [(1, 1)]
    database.close()


def test_an_entry_that_is_stored_after_a_hit_on_it_is_named_by_its_own_request(opened: Opened) -> None:
    writer, database = opened
    miss, hit = finished("q", "first"), finished("q", "second", hit=True)
    kept = ResponseStored(miss.cache_key.exact, "e" * 32, NOW + 60, NOW, "first")
    for batches in ([[miss], [hit], [kept]], [[miss, hit, kept]]):
        for batch in batches:
            writer.write(batch)
        rows = database.rows("select request_id, entry from requests order by number desc limit 2")
        assert dict(rows)["first"] == "e" * 32


def test_after_an_error_nothing_of_a_batch_is_held(opened: Opened) -> None:
    writer, database = opened
    broken: Any = Exchange("chat", "broken")
    broken.arrived = "never"
    with pytest.raises((TypeError, ValueError, JournalFailed)):
        writer.write([finished("q", "first"), broken])
    writer.write([finished("q", "second")])
    ((id, number, prompt),) = database.rows("select request_id, number, prompt from requests")
    assert id == "second"
    assert database.rows("select number, last from prompts") == [(prompt, number)]


def test_after_a_failed_commit_a_prompt_is_what_it_was(opened: Opened, monkeypatch: pytest.MonkeyPatch) -> None:
    writer, database = opened
    miss = finished("q", "first")
    writer.write([miss])

    with monkeypatch.context() as patch:
        patch.setattr(writer._totals._all, "_table", "fails")
        stored = ResponseStored(miss.cache_key.exact, "e" * 32, NOW + 60, NOW, "first")
        with pytest.raises(JournalFailed):
            writer.write([stored, finished("q", "second")])
    writer.write([finished("q", "third", hit=True)])
    assert database.rows("select entry, expires from prompts") == [(None, None)]


async def test_misses_wait_while_many_records_wait_to_be_written_and_hits_while_three_times_as_many_wait(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("kvproxy.journal.journal._LONG_QUEUE", 3)
    monkeypatch.setattr("kvproxy.journal.journal._VERY_LONG_QUEUE", 9)
    monkeypatch.setattr("kvproxy.journal.journal._MAX_WAIT", 300.0)
    monkeypatch.setattr("kvproxy.journal.journal._STALLED_SECONDS", 300.0)
    journal = open_stored_journal(tmp_path / "journal.db", JournalSettings())
    with journal._writing:
        assert not journal.is_behind
        for number in range(5):
            journal.add(finished(f"{number}", f"r{number}"))
        assert journal.is_behind
        await journal.wait_for_space()
        for number in range(5, 10):
            journal.add(finished(f"{number}", f"r{number}"))
        waiting = asyncio.create_task(journal.wait_for_space())
        await asyncio.sleep(0.1)
        assert not waiting.done()
        # No request waits for a journal that writes nothing.
        monkeypatch.setattr("kvproxy.journal.journal._STALLED_SECONDS", 0.0)
        assert not journal.is_behind
        await waiting
    assert len(journal.latest(20)) == 10
    journal.close()
