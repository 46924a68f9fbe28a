"""Names of clients fill no table of the journal: models, tags, tenants, and fields of requests."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from kvproxy.exchange import Exchange
from kvproxy.flow.cache_keys import cache_key
from kvproxy.index.search.lookup_result import Candidate, Lookup
from kvproxy.journal import cache_history, daily_sums, late_verdicts, record_writer, schema
from kvproxy.journal import journal as journal_module
from kvproxy.journal.cache_history import ResponseRemoved, ResponseStored
from kvproxy.journal.databases.sqlite import SqliteJournalDatabase, open_file
from kvproxy.journal.journal import StoredJournal, _JournalEventQueue, open_stored_journal
from kvproxy.journal.record_writer import RecordWriter
from kvproxy.journal.request_regions import Regions
from kvproxy.journal.savings import savings
from kvproxy.journal.schema import stored_column
from kvproxy.journal.sessions import session_matching, turn_writer
from kvproxy.journal.sessions.marked_regions import MAX_MARKS
from kvproxy.journal.sessions.session_matching import KnownTurn, SessionIndex, chain_of
from kvproxy.settings.journal import JournalSettings
from tests.journal.pruning import prune
from tests.journal.test_file import finished
from tests.requests import api_request

_DAY = 86_400


def rows(journal: StoredJournal, sql: str) -> list[tuple[Any, ...]]:
    return journal.read(lambda reader: reader.rows(sql, []))


def count(journal: StoredJournal, table: str) -> int:
    return int(rows(journal, f"select count(*) from {table}")[0][0])


def test_models_and_tags_of_a_day_are_folded_and_their_sums_stay(
    journal: StoredJournal, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(daily_sums, "MAX_ROWS_OF_TENANT", 20)
    for number in range(40):
        asked = finished(f"question {number}", f"r{number}", tags=f"tag{number}")
        assert asked.request is not None
        asked.request = replace(asked.request, body=asked.request.body | {"model": f"model {number}"})
        journal.add(asked)
        if number % 10 == 0:
            journal.flush()
    journal.add(finished("another", "last", tenant="second"))
    journal.flush()
    assert count(journal, "totals") <= 20 + 2 + 1
    assert count(journal, "prompt_tokens") <= 20 + 4 + 4
    assert rows(journal, "select sum(requests) from totals where tag = ''") == [(41,)]
    assert rows(journal, "select sum(requests) from totals where tag <> ''") == [(40,)]
    names = [saving.name for saving in journal.read(lambda reader: savings(reader, "model", {}))]
    assert {"model 0", "m", daily_sums.OTHERS} <= set(names)
    # A known row of a full day still counts.
    again = finished("question 0", "again", tags="tag0")
    assert again.request is not None
    again.request = replace(again.request, body=again.request.body | {"model": "model 0"})
    journal.add(again)
    journal.flush()
    assert rows(journal, "select requests from totals where tag = 'tag0'") == [(2,)]


def test_tenants_of_a_day_are_folded(journal: StoredJournal, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(daily_sums, "MAX_ROWS_OF_DAY", 10)
    for number in range(30):
        journal.add(finished(f"question {number}", f"r{number}", tenant=f"tenant{number}"))
    journal.flush()
    assert count(journal, "totals") == 11
    assert rows(journal, f"select requests from totals where tenant = '{daily_sums.OTHERS}'") == [(20,)]


def test_old_days_are_summed(place: str) -> None:
    now = [0.0]
    journal = open_stored_journal(place, JournalSettings(), clock=lambda: now[0])
    for number in range(6):
        journal.add(finished(f"{number}", f"r{number}", tenant=f"t{number}", tags="a", arrived=number % 2 * _DAY))
    journal.flush()
    now[0] = (daily_sums.DETAILED_DAYS + 1) * _DAY + 1
    prune(journal)
    found = rows(journal, "select day, tenant, model, tag, requests from totals order by 1, 2, 4")
    others = daily_sums.OTHERS
    first, second = "1970-01-01", "1970-01-02"
    assert found[:2] == [(first, others, others, "", 3), (first, others, others, others, 3)]
    assert [row[0] for row in found[2:]] == [second] * 6
    journal.close()


def test_names_of_models_and_tags_are_short(journal: StoredJournal) -> None:
    for number, model in enumerate(("x" * 30_000_000, ["a", {"list": 1}], {"an": "object"}, 5, None)):
        asked = finished(f"question {number}", f"r{number}")
        assert asked.request is not None
        asked.request = replace(asked.request, body=asked.request.body | {"model": model})
        journal.add(asked)
    journal.flush()
    names = {record.model for record in journal.latest(10)}
    assert names == {"", "x" * 255 + "…"}


def test_names_are_pruned_and_bounded(journal: StoredJournal, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(schema, "MAX_NAMES", 100)
    for number in range(300):
        asked = finished(f"question {number}", f"r{number}")
        assert asked.request is not None
        asked.request = replace(asked.request, body=asked.request.body | {"model": f"model {number}"})
        journal.add(asked)
    journal.flush()
    assert count(journal, "names") <= 101
    latest = journal.latest(1)[0]
    assert latest.model == daily_sums.OTHERS
    # All names are used; the table is full, and stays so.
    prune(journal)
    assert count(journal, "names") >= 100
    # Nothing refers to the names of deleted records.
    journal._writer._settings = JournalSettings(max_rows=1, retention=1e-9)
    journal._writer._clock = lambda: latest.time + 2 * _DAY
    prune(journal)
    assert count(journal, "names") < 30
    journal.add(finished("new", "new"))
    journal.flush()
    assert (journal.latest(1)[0].model, journal.lost) == ("m", 0)


def test_prompts_in_memory_are_kept_to_the_bounds(journal: StoredJournal, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(record_writer, "_MAX_CACHED_PROMPTS", 10)
    monkeypatch.setattr(record_writer, "_MAX_WITHOUT_ENTRY", 5)
    monkeypatch.setattr(cache_history, "_MAX_CACHED_PROMPTS", 10)
    for number in range(25):
        journal.add(finished(f"question {number}", f"r{number}"))
        journal.flush()
    writer = journal._writer
    assert (len(writer._prompts), len(writer._without_entry)) == (5, 5)
    assert 0 < len(writer._history._regions) <= 10
    # Read from the file again.
    journal.add(finished("question 0", "again"))
    journal.flush()
    assert journal.latest(1)[0].prompt == min(record.prompt for record in journal.latest(30) if record.prompt)


def test_a_request_with_very_many_messages_is_recorded_without_its_regions(journal: StoredJournal) -> None:
    asked = finished("many", "many")
    assert asked.key is not None
    body = {f"field {number}": number for number in range(10_000)}
    asked.key = replace(asked.key, parts=asked.key.parts | {"body": body})
    journal.add(asked)
    journal.add(finished("few", "few"))
    journal.flush()
    assert [record.request_id for record in journal.latest(5)] == ["few", "many"]
    assert max(len(name) for (name,) in rows(journal, "select name from names")) <= schema.MAX_SHAPE
    assert journal.lost == 0


def queued(raw: int = 0) -> Exchange:
    exchange = finished("queued", "q")
    assert exchange.request is not None
    exchange.request = replace(exchange.request, raw=b"x" * raw)
    return exchange


def test_finished_requests_are_queued_to_the_bounds(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(journal_module, "MAX_EXCHANGES", 50)
    queue = _JournalEventQueue()
    assert [queue.put(queued()) for _ in range(60)] == [True] * 50 + [False] * 10
    monkeypatch.setattr(journal_module, "_MAX_QUEUED_BYTES", 1_000)
    queue = _JournalEventQueue()
    assert [queue.put(queued(300)) for _ in range(5)] == [True] * 3 + [False] * 2
    # Written requests make room.
    assert len(queue.take(2)) == 2
    assert [queue.put(queued(300)) for _ in range(3)] == [True, True, False]


def test_changes_of_the_store_are_queued_to_the_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(journal_module, "MAX_CHANGES", 50)
    queue = _JournalEventQueue()
    queue.put_changes(ResponseRemoved(f"{number}", "expired", 1.0) for number in range(80))
    assert len(queue) == 50
    assert queue.put(queued())


@pytest.mark.parametrize("step", [0.0, 1.0])
def test_removed_responses_are_kept_to_the_bound(
    journal: StoredJournal, monkeypatch: pytest.MonkeyPatch, step: float
) -> None:
    monkeypatch.setattr(cache_history, "_MAX_TOMBSTONES", 20)
    removed = (ResponseRemoved(f"{number:02x}" * 32, "expired", step * number) for number in range(100))
    journal.record_removed(removed)
    journal.flush()
    prune(journal)
    assert rows(journal, "select count(*), min(time) from tombstones") == [(20, 80 * step)]


def test_stored_responses_are_kept_to_the_bound_until_their_requests_are_recorded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(record_writer, "_MAX_STORED_RESPONSES", 8)
    database = open_file(tmp_path / "journal.db")
    writer = RecordWriter(database, JournalSettings(), lambda: 1e9)
    responses = [ResponseStored(f"{number:064x}", f"{number:032x}", 2e9, 1e9) for number in range(20)]
    writer.write(responses)
    assert list(writer._stored_responses) == [each.key for each in responses[-8:]]
    database.close()


def test_batches_of_all_sizes_prepare_few_statements(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    database, statements = open_file(tmp_path / "journal.db"), set[str]()
    execute = SqliteJournalDatabase.execute

    def record(self: SqliteJournalDatabase, sql: str, values: Sequence[object]) -> None:
        # Journals of other tests may still be writing.
        if self is database:
            statements.add(sql)
        execute(self, sql, values)

    monkeypatch.setattr(SqliteJournalDatabase, "execute", record)
    numbers = iter(range(10_000))
    for size in range(130):
        columns = [stored_column(name) for name in database.stored]
        rows = [[next(numbers) if name == "number" else 1 for name in columns] for _ in range(size)]
        database.insert("records", columns, rows)
    assert database.rows("select count(*), max(number) from records") == [(8_385, 8_384)]
    # SQLite keeps each of the last 128 statements prepared, with memory for its rows.
    assert len(statements) == 7
    database.close()


def test_prompts_of_sessions_are_kept_to_the_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(session_matching, "_MAX_HASHES", 50)
    index = SessionIndex()
    for number in range(300):
        names = ("messages[0] user", "messages[1] assistant", "messages[2] user")
        digests = tuple(f"{number} {place}".encode() for place in range(3))
        chain = chain_of(Regions(names, digests, None, (1, 1, 1)), "public")
        turn = KnownTurn(number, number, 1, None, number, 1.0, 2.0, 2.0, None, 9, 3, None)
        index.add(turn, chain, f"tenant {number}", f"name {number}", f"resp_{number}")
    sizes = {name: len(kept) for name, kept in vars(index).items()}
    assert set(sizes.values()) == {50}, sizes


def test_first_messages_of_sub_agents_are_kept_to_the_bound(place: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(turn_writer, "_MAX_ROOTS", 20)
    journal = open_stored_journal(place, JournalSettings())
    for number in range(60):
        journal.add(
            finished(f"a prompt of a sub-agent that is long enough to be recognised, number {number}", f"{number}")
        )
    journal.flush()
    assert len(journal._writer._turns._roots) == 20
    journal.close()


def test_turns_that_wait_for_keep_warm_requests_are_kept_to_the_bound(
    place: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(turn_writer, "_MAX_REQUEST_IDS", 20)
    journal = open_stored_journal(place, JournalSettings())
    for number in range(60):
        journal.add(finished(f"question {number}", f"{number}"))
    journal.flush()
    assert len(journal._writer._turns._numbers) == 20
    journal.close()


def test_few_breakpoints_of_a_prompt_are_kept(place: str) -> None:
    journal = open_stored_journal(place, JournalSettings())
    block = {"type": "text", "text": "x", "cache_control": {"type": "ephemeral"}}
    messages: list[Any] = [{"role": "user", "content": [block]} for _ in range(500)]
    request = api_request({"model": "m", "messages": messages}, "messages")
    asked = finished("marks", "marks")
    asked.request, asked.api, asked.key = request, "messages", cache_key(request, "b")
    journal.add(asked)
    journal.flush()
    (turn,) = set(journal._writer._turns._index._prefixes.values())
    assert turn.marked_regions == tuple(range(502 - MAX_MARKS, 502))
    journal.close()


def test_verdicts_without_a_record_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(late_verdicts, "_MAX_WAITING", 5)
    verdicts = late_verdicts.LateVerdicts()
    chosen = Candidate("e", "q", 0.9, "a", "explored")
    for number in range(10):
        assert verdicts.number_of(cache_history.ComparisonEnded(f"verdict {number}", "equal")) is None
        exchange = finished("q", f"request {number}", lookup=Lookup(None, (chosen,), chosen))
        assert verdicts.verdict_of(exchange, number) is None
    assert (len(verdicts._verdicts), len(verdicts._numbers)) == (5, 5)
    assert verdicts.number_of(cache_history.ComparisonEnded("request 9", "equal")) == 9
