"""The journal's file: what kill -9 leaves of it, its bounds, and requests that no one foresaw."""

import csv
import json
import sqlite3
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, get_args

import pytest

from kvproxy.apis.reported_usage import PrefixReuse
from kvproxy.backends.protocol import ServingUpstream
from kvproxy.clients import client_keys
from kvproxy.commands.formatting import local_time
from kvproxy.errors import InvalidRequest, KvproxyError
from kvproxy.exchange import CacheHit, Exchange, ResponseFacts
from kvproxy.flow.cache_keys import cache_key
from kvproxy.index.policies.policy import checked_interval
from kvproxy.journal.bill import BillRow, bill, sum_bill
from kvproxy.journal.cache_history import ResponseRemoved
from kvproxy.journal.completeness import complete_since
from kvproxy.journal.databases.sqlite import open_file, open_to_read
from kvproxy.journal.groups import SavingsGroup
from kvproxy.journal.journal import StoredJournal, open_stored_journal
from kvproxy.journal.saving import Saving
from kvproxy.journal.savings import SavingsReport, savings, savings_report
from kvproxy.journal.schema import ADDED_COLUMNS, FILE
from kvproxy.journal.sessions.session_reader import SessionReader
from kvproxy.journal.sessions.spending_report import spending_report
from kvproxy.journal.spending import recorded_requests, with_costs
from kvproxy.journal.sums_filter import SumsFilter, sums_filter
from kvproxy.journal.wrong_hits import HitVerdicts, WrongHitInterval
from kvproxy.operations.keys import list_clients
from kvproxy.operations.record_query import RecordQuery
from kvproxy.providers.prices import ModelPrices
from kvproxy.settings import Settings
from kvproxy.settings.journal import JournalSettings, PriceSettings
from kvproxy.units import start_of_utc_day, utc_day
from tests.commands.run import kvproxy, result
from tests.index.entries import make_entry
from tests.journal.pruning import prune
from tests.requests import api_request

PRICES = {"m": PriceSettings(input=1000, cached=250, output=10_000)}
HIT = 96 * 0.00025 + 4 * 0.001 + 10 * 0.01
"""The price of a hit whose prompt, of 100 tokens, was sent before."""


def finished(
    question: str,
    request_id: str,
    *,
    hit: bool = False,
    tenant: str = "public",
    tags: str = "",
    warming: bool = False,
    **fields: Any,
) -> Exchange:
    """The exchange of a computed response, or of an exact hit."""
    headers = {"x-kvproxy-tags": tags} if tags else {}
    if warming:
        headers["cache-control"] = "warming"
    request = api_request({"model": "m", "messages": [{"role": "user", "content": question}]}, headers=headers)
    exchange = Exchange("chat", request_id, tenant, request=request, key=cache_key(request, "b"), status=200)
    start, key = exchange.started, exchange.cache_key.exact
    if hit:
        exchange.layer = "exact"
        exchange.hit = CacheHit(key[:32], key, age=1.0, ttl=60.0, prompt_tokens=100, completion_tokens=10)
        exchange.exact_done = exchange.first_byte = start + 0.001
    else:
        exchange.layer = "forward"
        exchange.facts = ResponseFacts(started=start + 2.0, prefix=PrefixReuse(100, 40), usage=(100, 10))
        exchange.first_byte = exchange.ended = start + 2.0
    for name, value in fields.items():
        setattr(exchange.facts if hasattr(exchange.facts, name) else exchange, name, value)
    return exchange


def test_the_oldest_records_go_and_totals_stay(tmp_path: Path) -> None:
    journal = open_stored_journal(tmp_path / "journal.db", JournalSettings(max_rows=10))
    for number in range(25):
        journal.add(finished(f"question {number}", f"r{number}", arrived=time.time() - 100))
    journal.flush()
    with closing(journal.reader()) as reader:
        assert complete_since(reader) is None
    prune(journal)
    kept = journal.latest(100)
    assert [record.request_id for record in kept] == [f"r{number}" for number in range(24, 14, -1)]
    connection = sqlite3.connect(journal.name)
    assert connection.execute("select count(*) from prompts").fetchone() == (10,)
    assert connection.execute("select sum(requests) from totals where tag = ''").fetchone() == (25,)
    connection.close()
    journal.close()
    # A bill has the price of the records that are left.
    bill = kvproxy("sessions", "--by", "model", "--data", tmp_path)
    assert f"since {local_time(kept[-1].time)}; older records were removed (journal.retention" in bill.stderr
    report = result("sessions", "--by", "model", "--data", tmp_path)
    assert (report["complete_since"], report["total"]["requests"]) == (kept[-1].time, 10)
    assert "removed" in kvproxy("log", "top", "--by", "model", "--data", tmp_path).stderr
    assert "removed" not in kvproxy("sessions", "--by", "model", "--since", "1s", "--data", tmp_path).stderr


def test_days_name_their_zone(tmp_path: Path) -> None:
    with closing(open_stored_journal(tmp_path / "journal.db", JournalSettings())) as journal:
        journal.add(finished("question", "r1"))
        journal.flush()
    zone = time.localtime().tm_zone
    for form in ((), ("--csv",)):
        bill = kvproxy("sessions", "--by", "day", "--data", tmp_path, *form)
        assert bill.stderr.startswith(f"local days ({zone}); savings --by day lists UTC days\n")
        saved = kvproxy("savings", "--by", "day", "--data", tmp_path, *form)
        assert "UTC days; sessions --by day lists local days\n" in saved.stderr
    assert result("sessions", "--by", "day", "--data", tmp_path)["zone"] == zone
    assert result("sessions", "--by", "model", "--data", tmp_path)["zone"] is None


def test_a_bill_is_incomplete_after_all_records_were_removed(tmp_path: Path) -> None:
    path, now = tmp_path / "journal.db", time.time()
    with closing(open_stored_journal(path, JournalSettings(retention=5_000.0))) as journal:
        journal.add(finished("old", "r1", arrived=now - 10_000))
        journal.flush()
        prune(journal)
        with closing(journal.reader()) as reader:
            assert (reader.newest_number(), complete_since(reader)) == (0, pytest.approx(now, abs=86_400))
        assert "older records were removed" in kvproxy("sessions", "--by", "model", "--data", tmp_path).stderr
        # The number of the removed record is used again.
        journal.add(finished("new", "r2", arrived=now))
        journal.flush()
        with closing(journal.reader()) as reader:
            assert (reader.newest_number(), complete_since(reader)) == (1, now)
        assert result("sessions", "--by", "model", "--data", tmp_path)["complete_since"] == now


def rows_of(journal: StoredJournal, by: Any, prices: dict[str, PriceSettings] | None = None) -> dict[str, Any]:
    """Return the savings by name."""
    journal.flush()
    with closing(journal.reader()) as reader:
        return {row.name: row for row in savings(reader, by, prices or {})}


def _sum_of(journal: StoredJournal, price: PriceSettings) -> Saving:
    journal.flush()
    with closing(journal.reader()) as reader:
        total = savings_report(reader, "layer", JournalSettings(prices={"m*": price}), None).total
    assert total is not None
    return total


def test_savings_select_days_and_a_client_by_each_group(journal: StoredJournal) -> None:
    noon = datetime(2026, 11, 20, 12, tzinfo=UTC).timestamp()
    for day in range(3):
        for tenant in ("client:ann", "client:ann/eu", "client:anna", "public"):
            team = "red" if tenant.startswith("client:ann/") else "anna" if tenant == "client:anna" else None
            time = noon + day * 86_400
            journal.add(finished("a", f"{tenant} {day}", tenant=tenant, tags="project:p", arrived=time, team=team))
    journal.flush()
    with closing(journal.reader()) as reader:
        for selection, count in (
            (sums_filter(noon_of(20), noon_of(21).timestamp()), 8),
            (sums_filter(noon_of(21), start_of_utc_day("2026-11-22")), 4),
            (sums_filter(until=start_of_utc_day("2026-11-20")), 0),
            (sums_filter(tenant="ann"), 6),
            (sums_filter(noon_of(22), tenant="public"), 1),
            (sums_filter(model="m"), 12),
            (sums_filter(tenant="ann", model="other"), 0),
            (sums_filter(noon_of(21), team="red"), 2),
            (sums_filter(tenant="ann", team="anna"), 0),
            (SumsFilter(team="anna", by_members=True), 0),
            (SumsFilter(by_members=True), 3),
        ):
            for by in get_args(SavingsGroup):
                rows = savings(reader, by, PRICES, selection=selection)
                assert sum(row.requests for row in rows) == count, (selection, by)
            tokens = SessionReader(reader, PRICES).ledger("USD", selection).prompt_tokens
            assert tokens == 100 * count
            assert sum(row.input_tokens or 0 for row in bill(reader, PRICES, selection)) == 100 * count


def test_what_a_team_wrote_to_the_providers_cache_is_in_its_bill(journal: StoredJournal) -> None:
    noon = datetime(2026, 11, 20, 12, tzinfo=UTC).timestamp()
    written = PrefixReuse(100, 0, 60, 0)
    for tenant, team, prefix in (("ann", "red", written), ("ann", None, PrefixReuse(100, 40)), ("ben", "red", written)):
        exchange = finished("a", f"{tenant} {team}", tenant=f"client:{tenant}", team=team, arrived=noon, prefix=prefix)
        journal.add(exchange)
    journal.flush()
    prices = {"m": PriceSettings(input=1000, cached=250, write_5m=1250, output=10_000)}
    wrote, reused = 40 * 0.001 + 60 * 0.00125 + 10 * 0.01, 60 * 0.001 + 40 * 0.00025 + 10 * 0.01
    with closing(journal.reader()) as reader:
        by_team = {row.name: (row.requests, row.spent, row.money) for row in savings(reader, "team", prices)}
        rows = bill(reader, prices)
    lost, saved = pytest.approx(-60 * 0.00025), pytest.approx(40 * 0.00075)
    assert by_team == {
        "red": (2, pytest.approx(2 * wrote), pytest.approx(-120 * 0.00025)),
        "": (1, pytest.approx(reused), saved),
    }
    day = "2026-11-20"
    assert rows == [
        BillRow(day, "", "ann", "m", 1, 0, 100, 40, None, None, 10, pytest.approx(reused), saved, 0.0),
        BillRow(day, "red", "ann", "m", 1, 0, 100, 0, 60, 0, 10, pytest.approx(wrote), lost, 0.0),
        BillRow(day, "red", "ben", "m", 1, 0, 100, 0, 60, 0, 10, pytest.approx(wrote), lost, 0.0),
    ]
    assert sum_bill(rows).written_5m == 120


@pytest.mark.parametrize("tier", [None, "flex"])
def test_a_bill_without_reported_tokens_has_no_zero(journal: StoredJournal, tier: str | None) -> None:
    noon = datetime(2026, 11, 20, 12, tzinfo=UTC).timestamp()
    for tenant, usage in (("ann", (None, None)), ("ben", (100, 10))):
        exchange = finished("a", tenant, tenant=f"client:{tenant}", arrived=noon)
        exchange.facts.usage, exchange.facts.service_tier = usage, tier
        exchange.request = api_request({"model": "gpt-5-mini", "messages": [{"role": "user", "content": "a"}]})
        if usage[0] is None:
            # Nothing is estimated, either.
            exchange.facts.prefix, exchange.facts.started = None, 0.0
        journal.add(exchange)
    journal.flush()
    prices = ModelPrices(JournalSettings())
    with closing(journal.reader()) as reader:
        rows = bill(reader, prices)
        ann, ben = sorted(savings(reader, "client", prices), key=lambda saving: saving.name)
    assert [(row.client, row.unreported, row.input_tokens, row.cached_tokens, row.output_tokens) for row in rows] == [
        ("ann", 1, None, None, None),
        ("ben", 0, 100, 40, 10),
    ]
    assert sum_bill(rows).input_tokens == 100
    assert (rows[0].cost, rows[0].saved) == (ann.spent, ann.money) == (None, None)
    assert (rows[1].cost, rows[1].saved) == (ben.spent, ben.money) != (None, None)


def test_a_long_prompt_of_an_earlier_price_is_summed_at_its_own_price(journal: StoredJournal) -> None:
    # Until 2026-03-13, prompts of this model above 200,000 tokens cost twice as much.
    exchange = finished("a", "1", arrived=datetime(2026, 2, 1, 9, tzinfo=UTC).timestamp(), usage=(300_000, 10))
    exchange.facts.prefix = PrefixReuse(300_000, 0)
    exchange.request = api_request({"model": "claude-sonnet-4-6", "messages": [{"role": "user", "content": "a"}]})
    journal.add(exchange)
    journal.flush()
    prices = ModelPrices(JournalSettings())
    with closing(journal.reader()) as reader:
        (row,) = savings(reader, "model", prices)
        bill = spending_report(recorded_requests(reader), "model", prices, "USD")
    assert row.spent == bill.total.cost == pytest.approx(300_000 * 6e-6 + 10 * 22.5e-6)


def test_a_bill_says_what_it_does_not_count(tmp_path: Path) -> None:
    """Also requests of models without a price, and refused ones; a table ends with the sum, and CSV has only rows."""
    noon = noon_of(20).timestamp()
    with closing(open_stored_journal(tmp_path / "journal.db", JournalSettings())) as journal:
        for number, (tenant, fields) in enumerate(
            [
                ("client:ann", {}),
                ("client:ann", {"layer": "refused", "status": 429, "prefix": None}),
                ("client:ben", {"estimated_usage": (50, 5), "prefix": None, "usage": (None, None)}),
            ]
        ):
            journal.add(finished("a", f"{number}", tenant=tenant, arrived=noon, **fields))
        journal.flush()
    arguments = ("savings", "--bill", "--data", tmp_path)
    priced = {"KVPROXY_JOURNAL__PRICES": json.dumps({"m": {"input": 1000, "output": 1000}})}
    done = kvproxy(*arguments, "--csv", **priced)
    rows = list(csv.DictReader(done.stdout.splitlines()))
    counts = [(row["client"], row["requests"], row["refused"], row["estimated"], row["currency"]) for row in rows]
    assert counts == [("ann", "1", "1", "0", "USD"), ("ben", "1", "0", "1", "USD")]
    notes = "not in the requests: 1 refused request\nestimated: tokens and money of 1 request without reported usage\n"
    assert done.stderr == notes
    shown = kvproxy(*arguments, columns=160, **priced)
    assert (shown.stdout.splitlines()[-1].split()[:4], shown.stderr) == (["all", "-", "-", "2"], notes)
    unpriced = kvproxy(*arguments, "--csv")
    assert [row["unpriced"] for row in csv.DictReader(unpriced.stdout.splitlines())] == ["1", "1"]
    assert "not in the money: 2 requests of models without a price" in unpriced.stderr


def test_unpriced_are_requests_that_a_model_without_a_price_answered(tmp_path: Path) -> None:
    """Neither failed requests, which cost nothing, nor hits."""
    settings = Settings(data=tmp_path)
    client_keys.add_client(settings, "ann")
    with closing(open_stored_journal(tmp_path / "journal.db", settings.journal)) as journal:
        failed = {"status": 400, "usage": (None, None), "prefix": None}
        for number, fields in enumerate(({}, {"hit": True}, failed, {"failure": "error-upstream", **failed})):
            journal.add(finished("a", f"{number}", tenant="client:ann", arrived=time.time(), **fields))
        # It is no request of the bill.
        warms = finished("b", "warms", tenant="client:ann", arrived=time.time(), warming=True)
        journal.add(warms)
        journal.flush()
        with closing(journal.reader()) as reader:
            (row,) = bill(reader, {})
            (group,) = with_costs(
                reader,
                RecordQuery(),
                "client",
                reader.groups(RecordQuery(), "client", order="requests", limit=None),
                {},
            )
    (listed,) = list_clients(settings)
    assert (row.requests, row.unpriced, row.unpriced_hits, listed.requests) == (4, 1, 1, 4)
    assert (listed.unpriced, group.unpriced, group.unreported) == (1, 1, 0)
    note = kvproxy("savings", "--bill", "--data", tmp_path).stderr
    assert note.splitlines() == [
        'not in the money: 1 request of models without a price, or without one of audio tokens; set [journal.prices."MODEL"]',
        "not in the saved money: 1 hit on models without a price",
    ]
    unknown = kvproxy("log", "--client", "nobody", "--data", tmp_path, columns=120)
    assert "no request has the client or tenant 'nobody': there are ann" in unknown.stderr


def test_requests_keep_the_price_of_the_settings_on_their_day(journal: StoredJournal) -> None:
    for day in (20, 21, 22):
        journal.add(finished("a", f"{day}", arrived=noon_of(day).timestamp(), prefix=PrefixReuse(100, 0)))
    journal.flush()
    dated = {"input": 1000, "output": 10_000, "changes": {"2026-11-21": {"input": 500}, "2026-11-22": {"output": 1000}}}
    prices = ModelPrices(JournalSettings.model_validate({"prices": {"m": dated}}))
    with closing(journal.reader()) as reader:
        spent = [row.spent for row in savings(reader, "day", prices)]
        bills = spending_report(recorded_requests(reader), "day", prices, "USD").rows
        costs = [session.cost for session in SessionReader(reader, prices).sessions(None)]
    assert spent == [row.cost for row in bills] == costs[::-1] == pytest.approx([0.2, 0.15, 0.06])


def noon_of(day: int) -> datetime:
    return datetime(2026, 11, day, 12, tzinfo=UTC)


def test_savings_count_answers_reuse_and_what_hits_took(journal: StoredJournal) -> None:
    journal.add(finished("a", "1", tags="x, y"))
    for number in range(3):
        journal.add(finished("a", f"hit{number}", hit=True, tags="x"))
    journal.add(finished("b", "2", tenant="client:ann"))
    journal.add(finished("c", "3", layer="refused", status=404, prefix=None))
    rows = rows_of(journal, "layer", {"m*": PriceSettings(input=1000, cached=250, output=10_000)})
    # The prompt of a hit was sent before: it saves its six blocks at 250 for a million, the other 4 tokens at 1,000, and 10
    # tokens at 10,000; reuse saves three quarters of 40.
    assert (rows.keys(), rows["exact"].answered) == ({"exact", "prefix"}, 3)
    assert (rows["exact"].prompt_tokens, rows["exact"].completion_tokens) == (300, 30)
    assert rows["exact"].money == rows["exact"].least_money == pytest.approx(3 * HIT)
    assert (rows["exact"].cached_tokens, rows["exact"].uncertain_tokens) == (3 * 96, 0)
    assert rows["exact"].seconds == pytest.approx(3 * (2.0 - 0.001))
    assert rows["prefix"].reused_tokens == 80
    assert rows["prefix"].money == pytest.approx(2 * 0.03)
    # Hits, which are the proxy's own, and the backend's reuse are apart.
    total = _sum_of(journal, PriceSettings(input=1000, cached=250, output=10_000))
    assert (total.hit_money, total.money) == (pytest.approx(3 * HIT), pytest.approx(3 * HIT + 2 * 0.03))
    assert total.hit_seconds == pytest.approx(3 * (2.0 - 0.001))
    # Two requests show no time per token.
    assert (rows["prefix"].seconds, rows["prefix"].unmeasured_tokens) == (None, 80)
    assert {name: row.requests for name, row in rows_of(journal, "tag").items()} == {"x": 4, "y": 1}
    with closing(journal.reader()) as reader:
        groups = reader.groups(RecordQuery(), "tag", order="requests", limit=9)
    assert [(each.name, each.requests) for each in groups] == [("x", 4), ("y", 1)]
    assert {name: row.requests for name, row in rows_of(journal, "tenant").items()} == {"public": 4, "client:ann": 1}


def test_a_hit_saves_at_most_the_whole_price_if_the_reuse_is_unknown(journal: StoredJournal) -> None:
    # The second request repeats the first message, and the backend reports nothing.
    for number, question in enumerate(("a", "a")):
        journal.add(finished(question, f"{number}", prefix=None))
    journal.add(finished("a", "hit", hit=True))
    row = rows_of(journal, "layer", PRICES)["exact"]
    assert (row.money, row.uncertain_tokens, row.cached_tokens) == (pytest.approx(0.2), 100, 0)
    assert row.least_money == pytest.approx(HIT)
    # Without a price of cached tokens, the price of a hit is a bound, too.
    journal.add(finished("b", "other", tenant="client:ann"))
    journal.add(finished("b", "hit b", tenant="client:ann", hit=True))
    row = rows_of(journal, "tenant", {"m": PriceSettings(input=1000, output=10_000)})["client:ann"]
    assert row.least_money == pytest.approx(4 * 0.001 + 10 * 0.01)
    assert (row.money, row.uncertain_tokens, row.cached_tokens) == (pytest.approx(0.2), 100, 0)


@pytest.mark.parametrize(
    ("tokens", "minimum", "upstream", "cached"),
    [
        (900, None, ServingUpstream("https://api.example"), 0),
        (900, 512, ServingUpstream("https://api.example"), 896),
        (900, None, ServingUpstream("http://engine", is_engine=True), 896),
        # In steps of the provider, and not of an engine's blocks.
        (1_100, None, ServingUpstream("https://api.example"), 1_024),
    ],
)
def test_a_provider_reuses_no_prefix_below_its_minimum(
    tokens: int, minimum: int | None, upstream: ServingUpstream, cached: int, tmp_path: Path
) -> None:
    def exchange(question: str, request_id: str, tokens: int, *, hit: bool = False, reused: int = 0) -> Exchange:
        found = finished(question, request_id, hit=hit, prefix=PrefixReuse(tokens, reused), usage=(tokens, 10))
        body = {"model": "gpt-4o", "messages": [{"role": "user", "content": question}]}
        found.request = api_request(body)
        found.key = cache_key(found.request, "b")
        if found.hit is None:
            found.facts.served_by = upstream
        else:
            found.hit = replace(found.hit, prompt_tokens=tokens)
        return found

    prices = {"gpt-4o": PriceSettings(input=2.5, cached=1.25, output=10, least_cached_tokens=minimum)}
    journal = open_stored_journal(tmp_path / "journal.db", JournalSettings(prices=prices))
    with closing(journal):
        journal.add(exchange("a", "first", tokens))
        journal.add(exchange("a", "hit", tokens, hit=True))
        row = rows_of(journal, "layer", prices)["exact"]
        assert (row.cached_tokens, row.uncertain_tokens) == (cached, 0)
        assert row.money == pytest.approx(((tokens - cached) * 2.5 + cached * 1.25 + 10 * 10) / 1e6)
        if minimum is None and not upstream.is_engine:
            # A short prefix that is not reused does not show that the provider drops long ones.
            journal.add(exchange("b", "short", 400))
            journal.add(exchange("b", "short again", 400))
            assert rows_of(journal, "layer", prices)["exact"].cached_tokens == cached


def test_hits_without_reported_tokens_are_counted_and_not_priced(journal: StoredJournal) -> None:
    journal.add(finished("a", "first", prefix=None))
    hit = finished("a", "hit", hit=True)
    assert hit.hit is not None
    hit.hit = replace(hit.hit, prompt_tokens=None, completion_tokens=None)
    journal.add(hit)
    row = rows_of(journal, "layer", PRICES)["exact"]
    assert (row.answered, row.unreported_hits, row.money) == (1, 1, None)
    with closing(journal.reader()) as reader:
        report = savings_report(reader, "layer", JournalSettings(), None)
    for row in (report.total, next(row for row in report.rows if row.name == "exact")):
        assert row is not None
        assert (row.answered, row.prompt_tokens, row.completion_tokens) == (1, None, None)
    journal.add(finished("a", "another hit", hit=True))
    row = rows_of(journal, "layer", PRICES)["exact"]
    assert (row.answered, row.unreported_hits, row.prompt_tokens) == (2, 1, 100)
    with closing(journal.reader()) as reader:
        total = sum_bill(bill(reader, PRICES))
    assert (total.requests, total.unreported, total.unreported_hits) == (3, 0, 1)


def test_a_bill_has_the_part_of_the_saved_money_that_hits_saved(journal: StoredJournal) -> None:
    journal.add(finished("a", "first", prefix=PrefixReuse(100, 40)))
    journal.flush()
    with closing(journal.reader()) as reader:
        (reused,) = bill(reader, PRICES)
    journal.add(finished("a", "first", hit=True))
    journal.flush()
    with closing(journal.reader()) as reader:
        (row,) = bill(reader, PRICES)
    assert reused.saved is not None
    assert reused.saved > 0
    assert row.saved is not None
    assert row.hit_saved is not None
    assert (reused.hit_saved, row.saved) == (0.0, pytest.approx(reused.saved + row.hit_saved))
    assert row.hit_saved > 0


def test_the_beginning_of_several_request_ids_names_no_record(journal: StoredJournal) -> None:
    for id in ("a1", "a2", "a2", "b1"):
        exchange = finished("a", "first")
        exchange.request_id = id
        journal.add(exchange)
    journal.flush()
    with closing(journal.reader()) as reader:
        with pytest.raises(InvalidRequest, match="several ids begin with 'a': give more digits"):
            reader.find("a")
        assert [reader.find(id).request_id for id in ("a2", "b", "1")] == ["a2", "b1", "a1"]


def test_a_journal_of_an_older_version_gets_new_columns(tmp_path: Path) -> None:
    path = tmp_path / FILE
    open_file(path).close()
    with closing(sqlite3.connect(path)) as connection:
        connection.execute("drop view requests")
        for table, column in ADDED_COLUMNS:
            connection.execute(f"alter table {table} drop column {column.partition(' ')[0]}")
        connection.execute("create view requests as select number from records")
        connection.execute("drop table team_totals")
    with pytest.raises(KvproxyError, match="start kvproxy serve once"):
        open_to_read(path)
    open_file(path).close()
    with closing(open_to_read(path)) as database:
        assert database.rows("select not_stored from requests") == []
        assert database.rows("select unreported from totals") == []
        assert database.rows("select team, unreported from team_totals") == []


def test_hits_and_reuse_of_models_without_a_price_are_counted(journal: StoredJournal) -> None:
    def exchange(request_id: str, **fields: Any) -> Exchange:
        found = finished("a", request_id, **fields)
        found.request = api_request({"model": "free", "messages": [{"role": "user", "content": "a"}]})
        found.key = cache_key(found.request, "b")
        return found

    journal.add(finished("a", "priced"))
    journal.add(finished("a", "priced hit", hit=True))
    journal.add(exchange("first", tenant="client:ann"))
    for number in range(2):
        journal.add(exchange(f"hit {number}", tenant="client:ann", hit=True))
    rows = rows_of(journal, "layer", PRICES)
    assert (rows["exact"].unpriced_hits, rows["exact"].unpriced_reused_tokens) == (2, 0)
    assert (rows["prefix"].unpriced_hits, rows["prefix"].unpriced_reused_tokens) == (0, 40)
    assert rows["exact"].money == pytest.approx(HIT)
    assert rows_of(journal, "tenant", PRICES)["client:ann"].money is None
    with closing(journal.reader()) as reader:
        total = savings_report(reader, "layer", JournalSettings(prices=PRICES), None).total
    assert total is not None
    assert (total.unpriced_hits, total.unpriced_reused_tokens) == (2, 40)


def test_the_prompt_of_a_semantic_hit_is_cached_as_far_as_an_earlier_prompt_had_it(journal: StoredJournal) -> None:
    def messages(question: str) -> list[dict[str, str]]:
        return [{"role": "system", "content": "You are a shop. " * 40}, {"role": "user", "content": question}]

    def exchange(question: str, request_id: str, **fields: Any) -> Exchange:
        found = finished(question, request_id, **fields)
        request = api_request({"model": "m", "messages": messages(question)})
        found.request, found.key = request, cache_key(request, "b")
        return found

    journal.add(exchange("When do you open?", "first", prefix=PrefixReuse(100, 0)))
    journal.add(exchange("When does the shop open?", "hit", hit=True, layer="semantic"))
    row = rows_of(journal, "layer", PRICES)["semantic"]
    # The system prompt is about nine tenths of the prompt; whole blocks are reused.
    assert (row.priced_tokens, row.cached_tokens, row.uncertain_tokens) == (100, 80, 0)
    # An evicted prefix shows that the backend reuses less.
    later = exchange("Where are you?", "evicted", prefix=PrefixReuse(100, 0))
    later.arrived += 9.0
    journal.add(later)
    assert rows_of(journal, "layer", PRICES)["semantic"].cached_tokens == 0


def test_an_interrupted_response_counts_in_each_sum_of_prompt_tokens(journal: StoredJournal) -> None:
    now = time.time()
    journal.add(finished("a", "whole", arrived=now))
    journal.add(finished("b", "left", client_disconnected=True, arrived=now))
    journal.add(finished("c", "waits", layer="disconnected", status=499, failure="disconnected-waiting", arrived=now))
    saved = rows_of(journal, "layer")
    with closing(journal.reader()) as reader:
        (group,) = reader.groups(RecordQuery(), "tenant", order="requests", limit=9)
        ledger = {row.result: row.tokens for row in SessionReader(reader, {}).ledger("USD").rows}
        series = reader.series("layer", now - 60, 60, 2)
    assert ledger == {"reused": 80, "new": 120}
    assert sum(row.reused_tokens for row in saved.values()) == sum(series.reused_tokens) == ledger["reused"]
    assert (group.computed, sum(series.prompt_tokens)) == (ledger["new"], 200)


def test_a_broken_response_without_usage_counts_its_estimate(journal: StoredJournal) -> None:
    facts = ResponseFacts(estimated_usage=(16, 1))
    journal.add(finished("a", "broken", layer="error", failure="error-broken", facts=facts, arrived=time.time()))
    journal.flush()
    with closing(journal.reader()) as reader:
        (group,) = reader.groups(RecordQuery(), "reason", order="requests", limit=9)
    assert (group.name, group.computed, group.generated) == ("error-broken", 16, 1)


def test_spent_money_counts_estimates_of_priced_models_only(journal: StoredJournal) -> None:
    facts = {"usage": (None, None), "prefix": None, "received_tokens": 3}
    now = time.time()
    journal.add(finished("a", "priced", arrived=now))
    broken = finished("b", "broken", layer="error", failure="error-broken", arrived=now, **facts)
    assert broken.request is not None
    broken.request = replace(broken.request, body=broken.request.body | {"model": "unpriced"})
    journal.add(broken)
    saved = rows_of(journal, "layer", PRICES)
    assert (saved["error"].estimated_requests, saved["error"].unpriced_requests, saved["error"].spent) == (0, 1, None)
    journal.add(finished("c", "counted", layer="error", failure="error-broken", arrived=now, **facts))
    assert rows_of(journal, "layer", PRICES)["error"].estimated_requests == 1


def test_requests_are_grouped_by_utc_day(journal: StoredJournal) -> None:
    start = time.time() // 86_400 * 86_400
    for number, arrived in enumerate((start - 1.0, start, start + 1.0)):
        journal.add(finished(f"question {number}", f"r{number}", arrived=arrived))
    journal.flush()
    with closing(journal.reader()) as reader:
        groups = reader.groups(RecordQuery(), "day", order="requests", limit=9)
        priced = with_costs(reader, RecordQuery(), "day", groups, {"m": PriceSettings(input=1e6)})
    assert [(group.name, group.requests) for group in groups] == [(utc_day(start), 2), (utc_day(start - 1), 1)]
    assert priced[0].cost == pytest.approx(2 * (priced[1].cost or 0.0))


def test_requests_are_grouped_by_service_tier(journal: StoredJournal) -> None:
    for number, tier in enumerate((None, "flex", "flex")):
        exchange = finished(f"question {number}", f"r{number}")
        exchange.facts.service_tier = tier
        journal.add(exchange)
    journal.flush()
    with closing(journal.reader()) as reader:
        groups = reader.groups(RecordQuery(), "service_tier", order="requests", limit=9)
        priced = with_costs(reader, RecordQuery(), "service_tier", groups, {"m": PriceSettings(input=1e6)})
        spent = spending_report(recorded_requests(reader), "service_tier", {"m": PriceSettings(input=1e6)}, "USD")
    assert [(group.name, group.requests) for group in priced] == [("flex", 2), ("standard", 1)]
    assert {group.name: group.cost for group in priced} == {row.name: row.cost for row in spent.rows}
    assert priced[0].cost == pytest.approx(2 * (priced[1].cost or 0.0))


def test_requests_are_grouped_by_client(journal: StoredJournal) -> None:
    for number, tenant in enumerate(("client:team", "client:team/ann", "public")):
        journal.add(finished(f"question {number}", f"r{number}", tenant=tenant))
    journal.flush()
    with closing(journal.reader()) as reader:
        groups = reader.groups(RecordQuery(), "client", order="requests", limit=9)
        saved = savings(reader, "client", PRICES)
    named = {group.name: group.requests for group in groups}
    assert named == {saving.name: saving.requests for saving in saved} == {"team": 2, "public": 1}


def test_the_reuse_of_a_shared_response_counts_once(journal: StoredJournal) -> None:
    journal.add(finished("a", "first"))
    journal.add(finished("a", "second", was_collapsed=True))
    rows = rows_of(journal, "layer", PRICES)
    assert (rows["prefix"].reused_tokens, rows["shared"].reused_tokens) == (40, 0)
    assert [record.reused_tokens for record in journal.latest(2)] == [None, 40]
    assert rows["shared"].money == pytest.approx(HIT)


def test_the_savings_of_a_tenant_count_its_own_rejected_responses(journal: StoredJournal) -> None:
    journal.add(finished("a", "of ann", hit=True, layer="semantic", tenant="client:ann"))
    journal.add(finished("a", "of ben", hit=True, layer="semantic", tenant="client:ben"))
    journal.add(finished("a", "of ben, exact", hit=True, tenant="client:ben"))
    journal.add(finished("b", "also of ben", hit=True, layer="semantic", tenant="client:ben"))
    journal.flush()
    ids = [record.entry for record in journal.latest(4)]
    counts = {"accepted": 13, "accepted_wrong": 0, "accepted_undecided": 0}

    def report(tenant: str | None, rejected: str | None) -> SavingsReport:
        verdicts = HitVerdicts(counts, [str(rejected), "without a hit"])
        with closing(journal.reader()) as reader:
            return savings_report(reader, "layer", JournalSettings(), verdicts, SumsFilter(tenant=tenant))

    for tenant, numbers in (("ann", (1, 0)), ("ben", (1, 1)), ("carl", (0, 0)), (None, (1, 1))):
        assert tuple(report(tenant, id).marked_wrong for id in (ids[3], ids[0])) == numbers
    sources = [report(tenant, None).wrong for tenant in ("ann", None)]
    assert [
        each is not None and each.source.endswith("; of all requests, not only the selected ones") for each in sources
    ] == [True, False]


def test_semantic_hits_without_a_comparison_are_not_certain(journal: StoredJournal) -> None:
    journal.add(finished("a", "first"))
    journal.add(finished("a", "hit", hit=True, layer="semantic"))
    journal.flush()
    settings, counts = JournalSettings(prices=PRICES), {"accepted": 100, "accepted_wrong": 1, "accepted_undecided": 0}
    with closing(journal.reader()) as reader:
        unknown, known = (savings_report(reader, "layer", settings, each) for each in (None, HitVerdicts(counts)))
    assert (unknown.semantic, unknown.wrong, unknown.marked_wrong) == (1, None, None)
    assert known.marked_wrong == 0
    (row,) = (row for row in unknown.rows if row.name == "semantic")
    assert (row.money, row.least_money) == (pytest.approx(HIT), 0.0)
    assert known.wrong is not None
    assert known.wrong.source.startswith(
        "95% interval; 1 of 100 semantic hits compared with a fresh response were wrong; "
    )
    assert known.wrong.source.endswith("without the first hits of each namespace")
    assert known.wrong.sentence == f"Wrong semantic hits: 0.2% to 5.4% ({known.wrong.source})."
    (row,) = (row for row in known.rows if row.name == "semantic")
    assert row.least_money == pytest.approx(HIT * (1 - known.wrong.most))


def test_undecided_comparisons_of_semantic_hits_may_be_wrong(journal: StoredJournal) -> None:
    def wrong(accepted: int, wrong: int, undecided: int) -> WrongHitInterval | None:
        counts = {"accepted": accepted, "accepted_wrong": wrong, "accepted_undecided": undecided, "rejected": 0}
        with closing(journal.reader()) as reader:
            return savings_report(reader, "layer", JournalSettings(), HitVerdicts(counts)).wrong

    found = wrong(53, 0, 100)
    assert found is not None
    assert (found.least, found.most) == checked_interval(53, 0, 100)
    assert "0 of 53 semantic hits compared with a fresh response were wrong, and 100 undecided" in found.source
    assert found.source.endswith('most are undecided: set cache.judge = "model"')
    assert wrong(0, 0, 0) is None
    assert (only := wrong(0, 0, 7)) is not None
    assert only.most == 1.0
    few = "Wrong semantic hits: not known yet, because of too few comparisons (7): 0 wrong, 7 undecided."
    assert only.sentence == few


def test_requests_that_warm_a_cache_are_those_of_no_client(journal: StoredJournal) -> None:
    journal.add(finished("a", "computed", warming=True))
    journal.add(finished("a", "again", hit=True, warming=True))
    journal.add(finished("b", "failed", warming=True, layer="error", status=502, failure="error-upstream", prefix=None))
    # The price of the computed response: 60 tokens of the prompt, 40 reused ones, and 10 of the response.
    cost = 60 * 0.001 + 40 * 0.00025 + 10 * 0.01
    row = rows_of(journal, "layer", PRICES)["warming"]
    assert (row.requests, row.answered, row.seconds, row.money) == (0, 0, 0.0, pytest.approx(-cost))
    assert rows_of(journal, "layer") == {}
    journal.add(finished("a", "client", hit=True))
    total = rows_of(journal, "tenant", PRICES)["public"]
    # The client's hit saves the seconds of the response that was computed for it in advance.
    assert (total.requests, total.answered, total.seconds) == (1, 1, pytest.approx(2.0 - 0.001))
    assert total.money == pytest.approx(HIT - cost)
    assert [(each.layer, each.reason) for each in journal.latest(9)] == [
        ("exact", "hit-exact"),
        ("warming", "error-upstream"),
        ("warming", "hit-exact"),
        ("warming", "prefix-40%"),
    ]
    reader = journal.reader()
    for by in ("prompt", "tenant", "model", "layer", "reason"):
        found = reader.groups(RecordQuery(), by, order="requests", limit=9)
        assert [(each.requests, each.cached, each.computed) for each in found] == [(1, 1, 0)], by
    found = reader.groups(RecordQuery(layer="warming"), "tenant", order="backend", limit=9)
    assert [(each.requests, each.cached, each.computed, each.generated) for each in found] == [(3, 1, 60, 10)]
    assert [each.requests for each in reader.prompt_counts()] == [1]
    assert SessionReader(reader, {}).sessions(9) == []
    assert sum(map(sum, reader.layer_counts(RecordQuery()).counts.values())) == 1
    assert reader.layer_counts(RecordQuery(layer="warming")).counts.keys() == {"warming"}
    # The first span has the given start, but not one before the first record.
    exact, first = RecordQuery(layer="exact"), reader.layer_counts(RecordQuery(layer="warming")).start
    assert reader.layer_counts(exact, time.time() - 10**6).start == first
    assert reader.series("layer", time.time() - 60, 60.0, 2).counts.keys() == {"exact"}
    reader.close()


def test_reused_tokens_save_the_slope_of_measured_prefills(journal: StoredJournal) -> None:
    for number in range(30):
        prompt, reused = 100 + 40 * number, 20 * number
        exchange = finished(f"question {number}", f"r{number}", prefix=PrefixReuse(prompt, reused))
        exchange.facts.prefill_seconds = 0.3 + 0.002 * (prompt - reused)
        journal.add(exchange)
    row = rows_of(journal, "layer")["prefix"]
    assert row.unmeasured_tokens == 0
    assert row.seconds == pytest.approx(0.002 * row.reused_tokens, rel=0.01)
    assert row.least_seconds <= row.seconds <= row.most_seconds


def test_hits_that_took_longer_than_the_response_lower_the_saved_seconds(journal: StoredJournal) -> None:
    journal.add(finished("a", "computed", seconds=0.04))
    for number, seconds in enumerate((0.0632, 0.1453, 0.008)):
        exchange = finished("a", f"hit{number}", hit=True, layer="semantic")
        exchange.exact_done = exchange.first_byte = exchange.ended = exchange.started + seconds
        journal.add(exchange)
    row = rows_of(journal, "layer")["semantic"]
    assert row.seconds == row.hit_seconds == pytest.approx(3 * 0.04 - 0.0632 - 0.1453 - 0.008)


def test_cached_requests_of_a_group_are_a_number_at_a_terminal_and_in_a_pipe(tmp_path: Path) -> None:
    with closing(open_stored_journal(tmp_path / "journal.db", JournalSettings())) as journal:
        for name, hit in (("1", False), ("2", True), ("3", True), ("4", True)):
            journal.add(finished("a", name, hit=hit))
        journal.flush()
    given = ("log", "top", "--by", "model", "--data", tmp_path)
    assert "3 (75.0%)" in kvproxy(*given, columns=160).stdout
    head, row = (line.split("\t") for line in kvproxy(*given).stdout.splitlines()[:2])
    assert row[head.index("cached")] == "3"


def test_unknown_seconds_are_none_in_every_format(tmp_path: Path) -> None:
    with closing(open_stored_journal(tmp_path / "journal.db", JournalSettings())) as journal:
        # Two requests show no time per token, and no record has the time in which an imported response was computed.
        journal.add(finished("a", "1"))
        journal.add(finished("b", "2"))
        journal.add(finished("imported", "3", hit=True))
        journal.flush()
    report = result("savings", "--data", tmp_path)
    for row in (*report["rows"], report["total"]):
        assert [row[name] for name in ("seconds", "least_seconds", "most_seconds")] == [None] * 3
    assert {row["name"]: row["hit_seconds"] for row in report["rows"]} == {"prefix": 0.0, "exact": None}
    for form in ((), ("--csv",)):
        lines = kvproxy("savings", "--data", tmp_path, *form).stdout.splitlines()
        head, *rows = (line.split("," if form else "\t") for line in lines[:3])
        assert [row[head.index("seconds")] for row in rows] == ["", ""]


def test_the_shortest_computation_of_a_response_counts(journal: StoredJournal) -> None:
    for seconds in (9.0, 3.0, 6.0):
        journal.add(finished("a", f"computed {seconds}", seconds=seconds))
        journal.flush()
    journal.add(finished("a", "hit", hit=True))
    assert rows_of(journal, "layer")["exact"].seconds == pytest.approx(3.0 - 0.001)


def test_an_entry_that_is_stored_behind_the_answer_is_named_in_its_record(journal: StoredJournal) -> None:
    failed, made = finished("a", "failed"), finished("a", "made")
    failed.status = 500
    key = made.cache_key.exact
    journal.add(failed)
    journal.add(made)
    journal.record_stored(make_entry("a", id="ab" * 16, key=key, request_id="made"))
    assert [record.entry for record in journal.latest(2)] == ["ab" * 16, None]
    # One whose record is not written yet.
    journal.record_stored(make_entry("a", id="cd" * 16, key=key, request_id="next"))
    assert [record.entry for record in journal.latest(2)] == ["ab" * 16, None]


def test_a_condition_can_look_and_nothing_else(journal: StoredJournal) -> None:
    journal.add(finished("a", "1"))
    journal.flush()
    with closing(journal.reader()) as reader:
        assert len(reader.records(RecordQuery(where="total_ms > 1000 and reason like 'prefix%'"))) == 1
        for where in (
            "1) union select load_extension('x'",
            "no_such_column = 1",
            "1; drop table records",
            "pragma_x()",
        ):
            with pytest.raises(InvalidRequest):
                reader.records(RecordQuery(where=where))


def test_conditions_over_every_listed_field_are_valid(tmp_path: Path) -> None:
    with closing(open_stored_journal(tmp_path / "journal.db", JournalSettings())) as journal:
        journal.add(finished("a", "1"))
        journal.flush()
    listed = [kvproxy("log", "--where", where, "--data", tmp_path).stderr for where in ("cost >", "status >")]
    names = [text.partition("condition over the fields ")[2].strip().split(", ") for text in listed]
    assert names[0] == names[1]
    (found,) = [json.loads(line) for line in kvproxy("log", "--json", "--data", tmp_path).stdout.splitlines()]
    assert set(names[0]) == found.keys()
    every = " and ".join(f"({name} is null or {name} is not null)" for name in names[0])
    for where in ("proxy is null", every):
        assert len(kvproxy("log", "--where", where, "--json", "--data", tmp_path).stdout.splitlines()) == 1


def test_a_reader_can_be_closed_by_another_thread(journal: StoredJournal) -> None:
    reader = journal.reader()
    with ThreadPoolExecutor() as pool:
        pool.submit(reader.close).result()


def test_one_odd_request_does_not_harm_the_others(journal: StoredJournal) -> None:
    odd = finished("odd", "odd")
    odd.key = replace(odd.cache_key, parts={"body": {"messages": object()}})  # type: ignore[dict-item]
    imported = finished("imported", "imported", hit=True)
    imported.hit = CacheHit("an id of somebody's own", "a key of somebody's own", 1.0, 60.0, 1, 1)
    for each in (finished("a", "1"), odd, imported, finished("b", "2")):
        journal.add(each)
    journal.record_removed([ResponseRemoved("a key of somebody's own", "removed", time.time())])
    assert [record.request_id for record in journal.latest(10)] == ["2", "imported", "1"]
    assert journal.latest(10)[1].entry == "an id of somebody's own"
    assert journal.lost == 1


def test_what_comes_while_others_are_written_waits_for_the_next_time(
    journal: StoredJournal, monkeypatch: pytest.MonkeyPatch
) -> None:
    write, batches = journal._writer.write, 0

    def busy(what: Any) -> None:
        nonlocal batches
        batches += 1
        write(what)
        if batches < 50:
            journal.add(finished("again", f"{batches}"))

    journal.add(finished("first", "0"))
    with journal._writing:
        monkeypatch.setattr(journal._writer, "write", busy)
    journal.flush()
    # The journal's own thread may have been writing too.
    assert batches < 25


def test_of_hits_that_wait_together_only_those_that_cannot_be_written_are_lost(journal: StoredJournal) -> None:
    journal.add(finished("a", "miss"))
    journal.flush()
    for id in ("one", "\ud800", "two"):
        journal.add(finished("a", id, hit=True))
    ids = {record.request_id for record in journal.latest(10)}
    assert ids - {"?"} == {"miss", "one", "two"}
    # PostgreSQL stores a replacement character.
    assert len(ids) + journal.lost == 4
