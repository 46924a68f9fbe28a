"""Names of clients fill no table of the journal: models, tags, tenants, and fields of requests."""

from dataclasses import replace
from typing import Any

import pytest

from kvproxy.journal import daily_sums, schema
from kvproxy.journal.journal import StoredJournal, open_stored_journal
from kvproxy.journal.savings import savings
from kvproxy.settings.journal import JournalSettings
from tests.journal.test_file import finished

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
    journal._writer.prune()
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
    journal._writer.prune()
    assert count(journal, "names") >= 100
    # Nothing refers to the names of deleted records.
    journal._writer._settings = JournalSettings(max_rows=1, retention=1e-9)
    journal._writer._clock = lambda: latest.time + 2 * _DAY
    while journal._writer.prune():
        pass
    assert count(journal, "names") < 30
    journal.add(finished("new", "new"))
    journal.flush()
    assert (journal.latest(1)[0].model, journal.lost) == ("m", 0)


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
