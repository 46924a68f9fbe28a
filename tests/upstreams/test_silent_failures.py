"""Upstreams that take requests and send no byte, or break off their responses, while their probes succeed."""

import contextlib
import json
from http.client import HTTPConnection
from pathlib import Path
from typing import Any

import httpx
import pytest

from kvproxy.operations.client import ProxyClient
from kvproxy.operations.proxy_statistics import take_snapshot
from kvproxy.settings import UpstreamServer, UpstreamSettings
from kvproxy.upstreams import health
from kvproxy.upstreams.client import UpstreamClient
from kvproxy.upstreams.health import HANG_SECONDS, Health
from tests.polling import until
from tests.upstreams.fleets import MALFORMED, Fleet, chat, fleet


def records(running: Fleet, count: int, **filters: str) -> list[dict[str, Any]]:
    def read() -> list[dict[str, Any]]:
        found = httpx.get(f"{running.url}/admin/log", params=filters).raise_for_status().json()
        return list(found)

    until(lambda: len(read()) >= count)
    return read()


def test_requests_that_hang_are_counted_attributed_and_eject_their_upstream(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(health, "EJECTION_SECONDS", 300.0)
    monkeypatch.setattr(health, "HANG_SECONDS", 0.1)
    with fleet(tmp_path, 2, eject_after=1) as running:
        own = running.engine_for("hello")
        (other,) = (url for url in running.engines if url != own)
        sent, engine = running.status(own)["sent"], running.engines[own]
        engine.mood = "computes"
        answer = httpx.post(
            f"{running.url}/v1/chat/completions", json=chat("hello"), headers={"x-kvproxy-timeout": "1"}, timeout=300
        )
        assert answer.status_code == 504
        until(lambda: running.status(own)["errors"] == 1)
        status = running.status(own)
        assert status["sent"] - sent == 1
        assert (status["state"], status["ejections"]) == ("ejected", 1)
        assert "sent no byte of a response" in status["error"]
        (row,) = records(running, 1, reason="disconnected-timeout")
        assert row["upstream"] == own
        assert running.ask("hello").status_code == 200
        assert running.engines[other].got[-1] == "hello"
        metrics = httpx.get(f"{running.url}/metrics").text
        assert f'kvproxy_upstream_errors_total{{upstream="{own}"}} 1.0' in metrics
        engine.mood = "well"


def test_deadlines_of_clients_are_no_failures_of_a_busy_upstream(tmp_path: Path) -> None:
    with fleet(tmp_path, 2, eject_after=1) as running:
        own = running.engine_for("hello")
        engine = running.engines[own]
        engine.mood = "computes"
        for _ in range(2):
            answer = httpx.post(
                f"{running.url}/v1/chat/completions", json=chat("hello"), headers={"x-kvproxy-timeout": "0.6"}
            )
            assert (answer.status_code, answer.json()["error"]["code"]) == (504, "deadline_exceeded")
        engine.mood = "well"
        assert {row["layer"] for row in records(running, 2, reason="disconnected-timeout")} == {"disconnected"}
        status = running.status(own)
        assert (status["state"], status["failures"], status["errors"], status["ejections"]) == ("up", 0, 0, 0)
        metrics = httpx.get(f"{running.url}/metrics").text
        assert 'kvproxy_requests_total{endpoint="chat",layer="disconnected",status="504"} 2.0' in metrics
        assert not take_snapshot(ProxyClient(running.url)).errors


def test_a_client_that_leaves_early_is_counted_and_attributed_but_ejects_no_upstream(tmp_path: Path) -> None:
    with fleet(tmp_path, 1, eject_after=1) as running:
        ((url, engine),) = running.engines.items()
        engine.mood = "computes"
        with contextlib.closing(HTTPConnection(running.url.removeprefix("http://"))) as connection:
            body = json.dumps(chat("hello"))
            connection.request("POST", "/v1/chat/completions", body, {"content-type": "application/json"})
            until(lambda: engine.got == ["hello"])
        until(lambda: running.status(url)["sent"] == 1)
        (row,) = records(running, 1, layer="disconnected")
        assert row["upstream"] == url
        status = running.status(url)
        assert (status["state"], status["failures"], status["errors"], status["error"]) == ("up", 0, 0, None)
        engine.mood = "well"


def test_a_cancelled_request_is_a_failure_if_its_upstream_was_silent_for_long() -> None:
    now = 1000.0
    client = UpstreamClient(UpstreamServer(url="http://127.0.0.1:9"), UpstreamSettings())
    checked = Health(client, 3, 1.0, 1.0, lambda: now)
    assert not checked.record_cancelled_request(now - HANG_SECONDS + 1)
    assert checked.record_cancelled_request(now - HANG_SECONDS)
    # It answers another request in the meantime, which takes as long as its responses usually do.
    checked.record_success(now - HANG_SECONDS)
    assert not checked.record_cancelled_request(now - 2 * HANG_SECONDS)
    now += 3 * HANG_SECONDS
    assert not checked.record_cancelled_request(now - 2 * HANG_SECONDS + 1)
    assert checked.failures == 0
    assert checked.record_cancelled_request(now - 2 * HANG_SECONDS)


def test_the_operator_sets_the_time_after_which_a_silent_upstream_fails() -> None:
    server = UpstreamServer(url="http://127.0.0.1:9", first_byte_timeout=120.0)
    checked = Health(UpstreamClient(server, UpstreamSettings()), 3, 1.0, 1.0, lambda: 1000.0)
    assert not checked.record_cancelled_request(1000.0 - 119)
    assert checked.record_cancelled_request(1000.0 - 120)


def test_responses_that_break_off_in_a_row_eject_their_upstream(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(health, "EJECTION_SECONDS", 300.0)
    with fleet(tmp_path, 2, eject_after=3) as running:
        own = running.engine_for("hello")
        engine = running.engines[own]

        def cut() -> None:
            before = running.status(own)["errors"]
            with pytest.raises(httpx.RemoteProtocolError):
                running.ask("hello", stream=True)
            until(lambda: running.status(own)["errors"] == before + 1)

        engine.mood = "cut"
        cut()
        cut()
        # A complete response between them.
        engine.mood = "well"
        assert "[DONE]" in running.ask("hello", stream=True).text
        until(lambda: running.status(own)["failures"] == 0)
        assert (running.status(own)["state"], running.status(own)["error"]) == ("up", None)
        engine.mood = "cut"
        for _ in range(3):
            cut()
        status = running.status(own)
        assert (status["state"], status["ejections"], status["errors"]) == ("ejected", 1, 5)
        assert "broke off a response" in status["error"]
        assert "[DONE]" in running.ask("hello", stream=True).text
        metrics = httpx.get(f"{running.url}/metrics").text
        assert f'kvproxy_upstream_errors_total{{upstream="{own}"}} 5.0' in metrics


def test_failed_requests_of_uncached_apis_are_counted_and_attributed(tmp_path: Path) -> None:
    """Also requests to a cached API whose body is not JSON."""
    with fleet(tmp_path, 1) as running:
        ((url, engine),) = running.engines.items()

        def ask() -> int:
            return httpx.post(f"{running.url}/v1/chat/completions", content=MALFORMED, timeout=300).status_code

        assert ask() == 400
        assert running.status(url)["errors"] == 0
        engine.mood = "broken"
        assert ask() == 500
        assert running.status(url)["errors"] == 1
        engine.mood = "cut"
        with pytest.raises(httpx.RemoteProtocolError):
            ask()
        until(lambda: running.status(url)["errors"] == 2)
        status = running.status(url)
        assert (status["sent"], status["failures"]) == (3, 1)
        assert "broke off a response" in status["error"]
        assert {row["upstream"] for row in records(running, 3)} == {url}
        engine.mood = "well"
