"""The journal of a proxy on another machine is read over HTTP, with the same results as from its file."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from kvproxy.errors import InvalidRequest, NotFound
from kvproxy.operations import journal
from kvproxy.operations.client import ProxyClient
from kvproxy.operations.journal import DirectJournal, RemoteJournal, journal_query, open_journal
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
    monkeypatch.setattr(journal, "_PAGE", 3)
    query = journal_query(**options)
    found = RemoteJournal(ProxyClient(url)).records(query)
    assert found == DirectJournal(data).records(query)
    assert len(found) == count


def test_http_and_the_file_give_the_same_explanation_and_savings(running: Running) -> None:
    url, data = running
    remote, file = RemoteJournal(ProxyClient(url)), DirectJournal(data)
    assert remote.record("1") == file.record("1")
    local, explained = file.explain("2", str), remote.explain("2", str)
    assert explained.record == local.record
    assert explained.document["cause"] == local.document["cause"]
    assert explained.sentences[0] == local.sentences[0]
    assert remote.savings("model", None) == file.savings("model", None)
    with pytest.raises(NotFound):
        remote.record("99")


@pytest.mark.parametrize("limit", [None, 1, 2, 9])
def test_http_and_the_file_give_the_same_sessions(
    running: Running, limit: int | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    url, data = running
    monkeypatch.setattr(journal, "_PAGE", 1)
    every = DirectJournal(data).sessions(None, None, 1)
    assert len(every) > 1
    found = RemoteJournal(ProxyClient(url)).sessions(limit, None, 1)
    assert found == DirectJournal(data).sessions(limit, None, 1) == every[:limit]


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


def test_an_unknown_layer_names_the_valid_ones() -> None:
    with pytest.raises(InvalidRequest, match="use one of exact"):
        journal_query(layer="none")
