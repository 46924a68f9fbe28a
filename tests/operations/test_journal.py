"""The journal of a proxy on another machine is read over HTTP, with the same results as from its file."""

import sys
from collections.abc import Iterator
from pathlib import Path
from types import FrameType
from typing import Any

import httpx
import pytest

from kvproxy.commands.formatting import amount_text
from kvproxy.errors import InvalidRequest, NotFound
from kvproxy.journal.record import RecordWithQuestions
from kvproxy.operations import journal, journal_reports
from kvproxy.operations.client import ProxyClient
from kvproxy.operations.journal import DirectJournal, RemoteJournal, open_journal
from kvproxy.operations.journal_parameters import LedgerQuery, RecordName, SavingsQuery, SessionName, SessionQuery
from kvproxy.operations.journal_reports import (
    explain_record,
    find_record,
    find_sessions,
    report_ledger,
    report_savings,
    show_session,
)
from kvproxy.operations.record_query import RecordQuery
from kvproxy.settings import load_settings
from tests.commands.run import kvproxy, result
from tests.plain_upstream import run_plain_upstream
from tests.polling import until
from tests.servers import run_proxy

Running = tuple[str, Path]


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    data: Path = tmp_path_factory.mktemp("journal")
    (data / "kvproxy.toml").write_text("[cache]\nsemantic = false\n[journal.prices.m]\ninput = 2.0\noutput = 4.0\n")
    with run_plain_upstream() as upstream:
        settings = load_settings(data=data, upstream=upstream)
        with run_proxy(settings) as (url, services), httpx.Client(base_url=url) as client:
            for question in ("one", "two", "one", "one"):
                body = {"model": "m", "messages": [{"role": "user", "content": question}]}
                headers = {"cache-control": "confirm", "x-request-id": f"request {question}"}
                assert client.post("/v1/chat/completions", json=body, headers=headers).is_success
            until(lambda: len(services.journal.latest(4)) == 4)
            yield url, data


@pytest.mark.parametrize(
    ("options", "count"),
    [
        ({}, 4),
        ({"since": 3_600.0}, 4),
        ({"layer": "exact"}, 2),
        ({"reason": "miss"}, 2),
        ({"model": "x"}, 0),
        ({"limit": 3}, 3),
    ],
)
def test_http_and_the_file_give_the_same_records(
    running: Running, options: dict[str, Any], count: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    url, data = running
    monkeypatch.setattr(journal, "PAGE", 3)
    query = RecordQuery(**options)
    found = RemoteJournal(ProxyClient(url)).records(query)
    assert found == DirectJournal(data).records(query)
    assert len(found) == count


def test_a_condition_may_name_costs_and_questions(running: Running, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(journal, "_SCANNED", 3)
    reader = DirectJournal(running[1])
    every = reader.records(RecordQuery())
    paid = [record for record in every if record.cost]
    assert 0 < len(paid) < len(every)

    def selected(where: str, **options: Any) -> list[RecordWithQuestions]:
        return reader.records(RecordQuery(where=where, **options))

    dearest = max(record.cost for record in paid if record.cost)
    assert selected("cost > 0") == paid
    assert selected(f"cost > {dearest} and status = 200") == []
    assert selected("cost = 0 and layer = 'exact'", limit=1) == [r for r in every if r.layer == "exact"][:1]
    assert {record.question for record in selected("question like 't%'")} == {"two"}
    groups = reader.groups(RecordQuery(where="cost > 0"), "prompt", order="cost", limit=None)
    assert sum(group.requests for group in groups) == len(paid)
    assert sum(map(sum, reader.layer_counts(RecordQuery(where="cost > 0")).counts.values())) == len(paid)
    for wrong in ("cost > 0 and price > 0", "price > 0", "cost >"):
        with pytest.raises(InvalidRequest, match=r"over the fields number, .*, question, stored_question, cost"):
            selected(wrong)


def test_a_condition_on_costs_without_a_match_explains_null(running: Running) -> None:
    done = kvproxy("log", "--where", "cost > 1000", "--data", running[1])
    assert (done.returncode, "a cost is null if the price or the usage is unknown" in done.stderr) == (0, True)


def test_top_shows_the_money_of_the_journal(running: Running) -> None:
    spent = sum(row["spent"] for row in result("savings", "--data", running[1])["rows"])
    assert spent > 0
    page = kvproxy("top", "--once", "--interval", 0.1, url=running[0]).stdout
    assert f"Money\t{amount_text(spent)} spent" in page


def test_http_and_the_file_give_the_same_explanation_and_savings(running: Running) -> None:
    url, data = running
    remote, file = RemoteJournal(ProxyClient(url)), DirectJournal(data)
    assert find_record(remote, "1") == find_record(file, "1")
    local, explained = (each.perform(explain_record, RecordName("2")) for each in (file, remote))
    assert explained.explained == local.explained
    assert explained.sentences[0] == local.sentences[0]
    by_model = SavingsQuery(by="model")
    assert remote.perform(report_savings, by_model) == file.perform(report_savings, by_model)
    assert remote.perform(report_ledger, LedgerQuery()) == file.perform(report_ledger, LedgerQuery())
    assert remote.perform(show_session, SessionName("1")) == file.perform(show_session, SessionName("1"))
    with pytest.raises(NotFound):
        find_record(remote, "99")


@pytest.mark.parametrize("limit", [None, 1, 2, 9])
def test_http_and_the_file_give_the_same_sessions(
    running: Running, limit: int | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    url, data = running
    monkeypatch.setattr(journal_reports, "PAGE", 1)
    every = find_sessions(DirectJournal(data), SessionQuery())
    assert len(every) > 1
    query = SessionQuery(limit=limit)
    remote = find_sessions(RemoteJournal(ProxyClient(url)), query)
    assert remote == find_sessions(DirectJournal(data), query) == every[:limit]


def test_a_proxy_on_another_machine_is_read_over_http(running: Running, monkeypatch: pytest.MonkeyPatch) -> None:
    url, _ = running
    assert isinstance(open_journal(url, None, None), DirectJournal)
    monkeypatch.setattr(journal, "_has_journal", lambda data, name: False)
    remote = open_journal(url, None, None)
    assert isinstance(remote, RemoteJournal)
    assert kvproxy("log", url=url).stdout.count("hit-exact") == 2
    assert result("savings", url=url)["total"]["requests"] == 4
    for arguments in (("log", "top"), ("log", "--where", "status = 200")):
        done = kvproxy(*arguments, url=url)
        assert (done.returncode, "run it on the machine of" in done.stderr) == (2, True)


def test_groups_that_the_journal_cannot_have_are_explained(running: Running) -> None:
    _, data = running
    assert kvproxy("log", "top", "--by", "team", "--data", data).stderr.startswith("no request of a team matches")
    done = kvproxy("log", "top", "--by", "proxy", "--data", data)
    assert (done.returncode, "in a PostgreSQL store only" in done.stderr) == (2, True)


def test_an_unknown_layer_names_the_valid_ones(running: Running) -> None:
    url, data = running
    done = kvproxy("log", "--layer", "none", "--data", data)
    assert (done.returncode, "use one of exact" in done.stderr) == (2, True)
    answer = httpx.get(f"{url}/admin/log", params={"layer": "none"})
    assert (answer.status_code, answer.json()["error"]["param"]) == (400, "layer")
    assert "use one of exact" in answer.json()["error"]["message"]


def test_a_condition_in_sql_is_not_sent_to_another_machine(running: Running) -> None:
    with pytest.raises(InvalidRequest, match="where is not available over HTTP"):
        RemoteJournal(ProxyClient(running[0])).records(RecordQuery(where="status = 200"))


def test_the_filters_of_the_log_enter_four_files(running: Running) -> None:
    """Follows the filters from the command to SQL: the functions that receive them."""
    entered: set[str] = set()

    def follow(frame: FrameType, event: str, argument: object) -> None:
        if event == "call" and any(isinstance(value, RecordQuery) for value in frame.f_locals.values()):
            entered.add(Path(frame.f_code.co_filename).resolve().name)

    sys.setprofile(follow)
    try:
        done = kvproxy("log", "--layer", "exact", "--data", running[1])
    finally:
        sys.setprofile(None)
    assert done.stdout.count("hit-exact") == 2
    assert entered - {"dataclasses.py", "<string>"} == {"log.py", "journal.py", "record_query.py", "reader.py"}
