"""All proxies on one PostgreSQL write and read one journal."""

import json
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from typer.testing import CliRunner

from kvproxy.commands import app
from kvproxy.journal import journal
from tests.fleet.proxies import Proxy, run_proxies
from tests.plain_upstream import run_plain_upstream
from tests.polling import until
from tests.ports import free_port
from tests.postgres_server import run_postgres


@pytest.fixture
def proxies(empty_postgres: str, tmp_path: Path) -> Iterator[list[Proxy]]:
    with run_plain_upstream() as upstream, run_proxies(tmp_path, empty_postgres, upstream) as found:
        yield found


def log_of(proxy: Proxy, **query: Any) -> list[dict[str, Any]]:
    response = httpx.get(f"{proxy.url}/admin/log", params=query)
    rows: list[dict[str, Any]] = response.raise_for_status().json()
    return rows


def run(*arguments: str) -> Any:
    result = CliRunner().invoke(app, [*arguments, "--json"])
    assert result.exit_code == 0, result.output
    return json.loads(result.stdout)


def test_each_proxy_shows_the_requests_of_all(proxies: list[Proxy], empty_postgres: str, tmp_path: Path) -> None:
    ids = [proxies[number % 3].ask(question=f"question {number // 2}").headers["x-request-id"] for number in range(12)]
    for proxy in proxies:
        until(lambda proxy=proxy: len(log_of(proxy)) == 12)
    logs = [log_of(proxy) for proxy in proxies]
    assert logs[0] == logs[1] == logs[2]
    assert {row["request_id"] for row in logs[0]} == set(ids)
    assert len({row["number"] for row in logs[0]}) == 12
    assert sorted(row["layer"] for row in logs[0]) == ["exact"] * 6 + ["forward"] * 6
    # The equal requests have the same prompt, although other proxies answered them.
    assert len({row["prompt"] for row in logs[0]}) == 6
    series = [httpx.get(f"{proxy.url}/admin/log/series").json()["counts"] for proxy in proxies]
    assert all(sum(map(sum, found.values())) == 12 for found in series)
    for proxy in proxies:
        savings = httpx.get(f"{proxy.url}/admin/savings").json()
        assert (savings["total"]["requests"], savings["total"]["answered"]) == (12, 6)
        explained = httpx.get(f"{proxy.url}/admin/log/{ids[0]}").json()
        assert explained["explained"]["record"]["request_id"] == ids[0]


def test_a_conversation_on_several_proxies_is_one_session(proxies: list[Proxy]) -> None:
    messages: list[dict[str, str]] = []
    for turn in range(6):
        messages.append({"role": "user", "content": f"message {turn}"})
        answer = proxies[turn % 3].ask(messages=messages).json()["choices"][0]["message"]["content"]
        messages.append({"role": "assistant", "content": answer})
        until(lambda turn=turn: len(log_of(proxies[0])) == turn + 1)
    for proxy in proxies:
        (session,) = httpx.get(f"{proxy.url}/admin/sessions").json()
        assert session["turns"] == 6
        tree = httpx.get(f"{proxy.url}/admin/sessions/{session['id']}").json()
        assert [row["turn"]["turn"] for row in tree] == [1, 2, 3, 4, 5, 6]


def test_commands_read_the_journal_of_all_proxies(
    empty_postgres: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    port = free_port()
    with (
        run_plain_upstream() as upstream,
        run_proxies(tmp_path, empty_postgres, upstream, count=2, port=port) as proxies,
    ):
        for number in range(4):
            proxies[number % 2].ask(question=f"question {number // 2}")
        until(lambda: len(log_of(proxies[0])) == 4)
    monkeypatch.setenv("KVPROXY_STORE", empty_postgres)
    data = ["--data", str(tmp_path / "p1")]
    result = CliRunner().invoke(app, ["log", "--where", f"proxy like '%:{port}'", "--json", *data])
    rows = [json.loads(line) for line in result.output.splitlines()]
    assert len(rows) == 4
    assert run("log", "show", rows[0]["request_id"][:8], *data)["number"] == rows[0]["number"]
    assert [row["requests"] for row in run("log", "top", *data)] == [2, 2]
    assert run("explain", "--request", rows[0]["request_id"], *data)["record"]["request_id"] == rows[0]["request_id"]
    assert run("savings", *data)["total"]["requests"] == 4
    assert len(run("sessions", *data)) == 2
    # A machine without settings has other prices than the proxies.
    laptop = tmp_path / "laptop"
    commands = (("savings",), ("savings", "--bill"), ("sessions", "--by", "day"), ("keys", "ls"))
    for command in commands:
        assert "--url PROXY" in CliRunner().invoke(app, [*command, "--data", str(laptop)]).stderr, command
    laptop.mkdir(exist_ok=True)
    (laptop / "kvproxy.toml").write_text("")
    for command in commands:
        assert "--url PROXY" not in CliRunner().invoke(app, [*command, "--data", str(laptop)]).stderr, command


def test_records_wait_while_the_database_is_away(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(journal, "MAX_EXCHANGES", 8)
    with (
        run_postgres() as server,
        run_plain_upstream() as upstream,
        run_proxies(tmp_path, server.url, upstream, count=2) as proxies,
    ):
        assert all(proxy.ask(question=f"{number}").is_success for number, proxy in enumerate(proxies))
        until(lambda: len(log_of(proxies[0])) == 2)
        server.kill()
        began = time.monotonic()
        assert proxies[0].ask(question="away").is_success
        # Later records do not join the batch that failed.
        until(lambda: any("records wait in memory" in record.getMessage() for record in caplog.records))
        for number in range(14):
            assert proxies[0].ask(question=f"away {number}").is_success
        assert time.monotonic() - began < 30
        assert httpx.get(f"{proxies[0].url}/admin/log").status_code == 503
        lost = proxies[0].services.journal.lost
        assert 0 < lost <= 7
        server.restart()
        until(lambda: proxies[1].ask(question="back").is_success)

        def all_written() -> bool:
            response = httpx.get(f"{proxies[1].url}/admin/log", params={"limit": 100})
            return response.is_success and len(response.json()) == 2 + 15 - lost + 1

        until(all_written)
        assert f"kvproxy_journal_lost_records_total {float(lost)}" in httpx.get(f"{proxies[0].url}/metrics").text
    lines = [record.getMessage() for record in caplog.records if record.getMessage().startswith("the journal")]
    assert sum("records wait in memory" in line for line in lines) <= 2
    assert any(f"{lost} records were lost" in line for line in lines)
