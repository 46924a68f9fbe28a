"""Two proxies write one journal in PostgreSQL: commits of unknown outcome, old days, and each other's prompts."""

import contextlib
import os
import signal
import socket
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import get_args

import psycopg
import pytest

from kvproxy.errors import SettingsError, StoreUnavailable
from kvproxy.journal.databases import postgres
from kvproxy.journal.databases.computed_fields import NumberedRecords
from kvproxy.journal.databases.database import JournalFailed
from kvproxy.journal.groups import SavingsGroup
from kvproxy.journal.journal import StoredJournal, open_stored_journal
from kvproxy.journal.reader import JournalReader
from kvproxy.journal.savings import savings
from kvproxy.journal.sessions.session_reader import SessionReader
from kvproxy.journal.sums_filter import sums_filter
from kvproxy.operations.record_query import RecordQuery
from kvproxy.providers.prices import ModelPrices
from kvproxy.settings import load_settings
from kvproxy.settings.journal import JournalSettings, PriceSettings
from tests.journal.pruning import prune
from tests.journal.sessions.requests import START, assistant, request, user
from tests.journal.test_file import finished

DAY = 86_400.0
Open = Callable[..., StoredJournal]


@pytest.fixture
def open_journal(empty_postgres: str) -> Iterator[Open]:
    """Return a function that opens the journal for another proxy."""
    with contextlib.ExitStack() as stack:

        def open(clock: Callable[[], float] = time.time, **settings: float) -> StoredJournal:
            journal = open_stored_journal(empty_postgres, JournalSettings.model_validate(settings), clock)
            stack.callback(journal.close)
            return journal

        yield open


def test_reads_share_a_connection_which_is_replaced_if_the_server_closed_it(
    open_journal: Open, monkeypatch: pytest.MonkeyPatch
) -> None:
    journal = open_journal()

    def backend() -> int:
        return int(journal.read(lambda reader: reader.rows("select pg_backend_pid()", []))[0][0])

    process = backend()
    assert backend() == process
    monkeypatch.setattr(postgres, "_IDLE_SECONDS", 0.0)
    assert backend() == process
    with contextlib.closing(journal.reader()) as other:
        other.rows("select pg_terminate_backend(?)", [process])
    new = backend()
    assert new != process
    os.kill(new, signal.SIGSTOP)
    try:
        began = time.monotonic()
        with pytest.raises(StoreUnavailable, match="does not answer"):
            backend()
        assert 1.9 < time.monotonic() - began < 30
    finally:
        os.kill(new, signal.SIGCONT)


def test_an_unreachable_server_is_reported() -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        began = time.monotonic()
        with pytest.raises(StoreUnavailable, match="cannot read the journal"):
            JournalReader(f"postgresql://user@127.0.0.1:{silent.getsockname()[1]}/database")
        # The system itself would try for minutes.
        assert time.monotonic() - began < 30


def test_a_batch_whose_commit_was_not_confirmed_is_written_once(
    open_journal: Open, monkeypatch: pytest.MonkeyPatch
) -> None:
    journal = open_journal()
    transaction, failures = journal._database.transaction, 0

    @contextlib.contextmanager
    def unconfirmed() -> Iterator[int]:
        nonlocal failures
        with transaction() as version:
            yield version
        if failures < 1:
            failures += 1
            raise JournalFailed("the connection broke during the commit")

    monkeypatch.setattr(journal._database, "transaction", unconfirmed)
    journal.add(finished("a", "one"))
    journal.add(finished("b", "two"))
    journal.flush()
    assert failures == 1
    journal.add(finished("c", "three"))
    assert [record.request_id for record in journal.latest(10)] == ["three", "two", "one"]
    assert sum(row.requests for row in journal.read(lambda reader: reader.totals("layer"))) == 3
    assert journal.lost == 0


def test_a_journal_of_an_older_version_gets_new_columns_while_it_is_open(
    open_journal: Open, empty_postgres: str
) -> None:
    older = open_journal()
    older.add(finished("a", "one"))
    older.flush()
    with psycopg.connect(empty_postgres) as connection:
        connection.execute("set search_path = kvproxy_journal")
        connection.execute("drop view requests")
        connection.execute("drop table team_totals, team_prompt_tokens")
        connection.execute("alter table records drop column team")
        connection.execute("create view requests as select number from records")
    newer = open_journal()
    for journal, name in ((newer, "two"), (older, "three")):
        journal.add(finished(name, name, team="red"))
        journal.flush()
    assert [record.team for record in older.latest(10)] == ["red", "red", None]
    for sums, count in (("requests) from team_totals where tag = ''", 2), ("tokens) from team_prompt_tokens", 200)):
        assert older.read(lambda reader, sums=sums: reader.rows(f"select sum({sums}", []))[0][0] == count


def test_the_filters_of_reports_select_rows_of_postgresql(open_journal: Open) -> None:
    journal = open_journal()
    for tenant in ("client:ann", "client:ann/eu", "public"):
        ids = {"upstream_request_id": f"req_{tenant}", "response_id": f"id_{tenant}"}
        team, tags = ("red", "x") if tenant == "client:ann" else (None, "")
        journal.add(finished("a", tenant, tenant=tenant, team=team, tags=tags, **ids))
    journal.flush()
    selection = sums_filter(2 * DAY, time.time() + DAY, tenant="ann", model="m")
    prices = ModelPrices(JournalSettings(prices={"m": PriceSettings(input=1)}))
    for by in get_args(SavingsGroup):
        rows = journal.read(lambda reader, by=by: savings(reader, by, prices, selection=selection, rejected=["x"]))
        assert sum(row.requests for row in rows) == (1 if by == "tag" else 2)
        for values in ({"team": "red"}, {"by_members": True}, {"tag": "x"}):
            rows = journal.read(
                lambda reader, by=by, of=replace(selection, **values): savings(
                    reader, by, prices, selection=of, rejected=["x"]
                )
            )
            assert sum(row.requests for row in rows) == 1
    ledger = journal.read(lambda reader: SessionReader(reader, prices).ledger("USD", selection))
    assert ledger.prompt_tokens == 200
    assert journal.read(lambda reader: SessionReader(reader, prices).sessions(9, tag="y")) == []
    assert list(journal.read(lambda reader: reader.last_uses("team"))) == ["red"]
    assert len(journal.read(lambda reader: SessionReader(reader, prices).sessions(None, team="red"))) == 1
    found = journal.read(lambda reader: SessionReader(reader, prices).sessions(None, tenant="ann", model="m"))
    assert len(found) == 2
    groups = journal.read(lambda reader: reader.groups(RecordQuery(), "client", order="requests", limit=None))
    assert {group.name: group.requests for group in groups} == {"ann": 2, "public": 1}
    paid = journal.read(lambda reader: list(reader.paid_rows(RecordQuery(), "client", ["ann", "public"])))
    assert sorted(row[0] for row in paid) == ["ann", "ann", "public"]
    chosen = NumberedRecords([1, 2], None, None)
    assert [record.number for record in journal.read(lambda reader: reader.records(chosen))] == [2, 1]
    assert journal.read(lambda reader: reader.layer_counts(chosen)).counts == {"prefix": [2]}
    for id in ("req_public", "id_public"):
        assert journal.read(lambda reader, id=id: reader.find(id)).tenant == "public"


def test_old_days_are_dropped_and_no_proxy_keeps_their_prompts(open_journal: Open, empty_postgres: str) -> None:
    now = START
    one, other = (open_journal(lambda: now, retention=2 * DAY) for _ in range(2))
    for day in range(4):
        one.add(finished(f"only on day {day}", f"{day}", arrived=START + day * DAY))
        one.flush()
        if day == 0:
            # The other proxy knows the prompt of the first day from its own request.
            other.add(finished("only on day 0", "again", hit=True, arrived=START))
            other.flush()
    now = START + 3.9 * DAY
    prune(one)
    other.add(finished("only on day 0", "hit", hit=True, arrived=now))
    found = {record.request_id: record for record in other.latest(10)}
    assert found.keys() == {"2", "3", "hit"}
    with psycopg.connect(empty_postgres) as database:
        prompts = {row[0] for row in database.execute("select number from kvproxy_journal.prompts")}
    assert {record.prompt for record in found.values()} == prompts
    assert sum(row.requests for row in other.read(lambda reader: reader.totals("layer"))) == 6


def test_whole_days_beyond_the_most_records_are_dropped(open_journal: Open) -> None:
    journal = open_journal(lambda: START, max_rows=3)
    for number in range(9):
        journal.add(finished(f"{number}", f"{number}", arrived=START + number // 3 * DAY))
    journal.flush()
    prune(journal)
    assert [record.request_id for record in journal.latest(10)] == ["8", "7", "6"]


def test_a_conversation_continues_on_another_proxy(open_journal: Open) -> None:
    one, other = open_journal(), open_journal()
    messages = [user("a question that begins a conversation")]
    for turn in range(4):
        journal = (one, other)[turn % 2]
        journal.add(request(messages, 100 + 50 * turn, 90 + 50 * turn if turn else 0, 10.0 * turn))
        journal.flush()
        messages = [*messages, assistant(f"answer {turn}"), user(f"message {turn}")]
    rows = one.read(lambda reader: reader.rows("select session, turn, parent from turns order by number", []))
    numbers = [record.number for record in reversed(one.latest(10))]
    assert rows == [(numbers[0], turn + 1, None if not turn else numbers[turn - 1]) for turn in range(4)]


def test_the_journal_of_another_version_is_refused(open_journal: Open, empty_postgres: str) -> None:
    open_journal()
    with psycopg.connect(empty_postgres, autocommit=True) as database:
        database.execute("update kvproxy_journal.schema_version set version = 9")
    with pytest.raises(SettingsError, match="another version"):
        open_journal()


def test_the_store_decides_where_the_journal_is(tmp_path: Path) -> None:
    url = "postgresql://one@host/database"
    assert load_settings(data=tmp_path, store=url).journal_location == url
    file = str(tmp_path / "journal.db")
    assert load_settings(data=tmp_path, store=url, journal={"store": "file"}).journal_location == file
    assert load_settings(data=tmp_path).journal_location == file
    with pytest.raises(SettingsError, match="requires a store in PostgreSQL"):
        load_settings(data=tmp_path, journal={"store": "postgres"})
