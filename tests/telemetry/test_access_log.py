"""The access log has one line per request; the log of the process has a format and a level."""

import asyncio
import json
import logging
import os
import subprocess
import sys
import threading
import time
from datetime import datetime
from pathlib import Path
from typing import Any

import httpx
import pytest

from kvproxy.http.serve import make_server
from kvproxy.http.services import build_services
from kvproxy.settings import Settings, load_settings
from kvproxy.settings.telemetry import LogSettings
from kvproxy.telemetry.process_log import JsonFormatter, TextFormatter, log_to_stderr
from tests.commands.upstream import proxied, said
from tests.ports import free_port


@pytest.fixture(autouse=True)
def restore_loggers() -> Any:
    own, access = logging.getLogger("kvproxy"), logging.getLogger("kvproxy.access")
    before = own.level
    yield
    own.setLevel(before)
    access.setLevel(logging.NOTSET)


def test_each_request_of_a_client_is_one_line(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO, "kvproxy"), proxied(tmp_path) as url:
        for _ in range(2):
            httpx.post(f"{url}/v1/chat/completions?key=SECRET", json=said("q"), headers={"x-request-id": "mine"})
        httpx.get(f"{url}/v1/nothing%C2%9Bhere")
        httpx.post(f"{url}/v1/chat/completions", json=said("q"), headers={"x-kvproxy-priority": "high"})
        httpx.get(f"{url}/health")
    records = [record for record in caplog.records if record.name == "kvproxy.access"]
    # A response may arrive before its request is reported.
    order = ("prefix", "exact", " 404 ", " 400 ")
    records.sort(key=lambda record: next(place for place, word in enumerate(order) if word in record.getMessage()))
    miss, hit, missing, invalid = [json.loads(JsonFormatter().format(record)) for record in records]
    assert [line["level"] for line in (miss, hit)] == ["info", "info"]
    assert (miss["method"], miss["path"], miss["status"]) == ("POST", "/v1/chat/completions", 200)
    assert (miss["layer"], miss["reason"], miss["model"], miss["tenant"]) == ("prefix", "prefix-100%", "m", "public")
    assert (hit["layer"], hit["reason"], hit["request_id"]) == ("exact", "hit-exact", "mine")
    assert miss["ms"] > 0
    assert (missing["path"], missing["status"], "layer" in missing) == ("/v1/nothing\\x9bhere", 404, False)
    assert (invalid["layer"], invalid["status"]) == ("refused", 400)
    text = [record.getMessage() for record in records]
    assert text[1].startswith("POST /v1/chat/completions 200 exact hit-exact ")
    assert text[2].startswith("GET /v1/nothing\\x9bhere 404 - - ")
    assert not any("\x9b" in line or "SECRET" in line for line in text)


@pytest.mark.parametrize("settings", [LogSettings(access=False), LogSettings(level="warning")])
def test_the_access_log_can_be_turned_off(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, settings: LogSettings
) -> None:
    log_to_stderr(settings)
    with proxied(tmp_path) as url:
        httpx.post(f"{url}/v1/chat/completions", json=said("q"))
    assert [record for record in caplog.records if record.name == "kvproxy.access"] == []


def test_each_line_is_a_json_object(tmp_path: Path) -> None:
    dead = f"http://127.0.0.1:{free_port()}"
    command = [sys.executable, "-m", "kvproxy", "serve", "--port", "0", "--no-semantic", "--upstream", dead]
    command += ["--data", str(tmp_path), "--log-format", "json", "--log-level", "info"]
    process = subprocess.Popen(command, stderr=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=os.environ)
    assert process.stderr is not None
    assert process.stdout is not None
    lines = [json.loads(process.stderr.readline())]
    process.send_signal(1)  # SIGHUP reloads the rules, and logs their number.
    while lines[-1]["level"] != "info":
        lines.append(json.loads(process.stderr.readline()))
    process.terminate()
    lines += [json.loads(line) for line in process.stderr]
    process.wait()
    process.stderr.close()
    ready = [json.loads(line) for line in process.stdout]
    process.stdout.close()
    assert [each["upstreams"] for each in ready] == [[dead]]
    assert {line["level"] for line in lines} == {"info", "warning"}
    for line in lines:
        assert set(line) == {"time", "level", "logger", "message"}
        assert datetime.fromisoformat(line["time"]).tzinfo is not None
    assert dead in lines[0]["message"]
    assert [line["message"] for line in lines].count("stopping; requests in flight: 0") == 1


HOSTILE = "ok\x9b31m\x85FAKE\x9d \u202eevil\u2066 \x1b[2J\x07\nFAKE"


@pytest.mark.parametrize("formatter", [TextFormatter(), JsonFormatter()])
def test_no_line_of_the_log_holds_a_control(formatter: logging.Formatter) -> None:
    """Texts of clients and upstreams: ids, models, names, and messages of errors."""
    record = logging.LogRecord("kvproxy", logging.INFO, "", 0, "id %s", (HOSTILE,), None)
    record.fields = {"request_id": HOSTILE}
    line = formatter.format(record)
    assert not [letter for letter in line.replace("\n  FAKE", "") if not letter.isprintable()]
    assert "\nFAKE" not in line


async def test_reloads_by_signals_run_in_a_thread_and_are_merged(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    services = build_services(load_settings(data=tmp_path, upstream="http://127.0.0.1:9", cache={"semantic": False}))
    server = make_server(services)
    threads: list[int] = []

    def read_slowly(settings: Settings) -> Settings:
        threads.append(threading.get_ident())
        time.sleep(0.1)
        return settings

    monkeypatch.setattr(Settings, "reloaded", read_slowly)
    for _ in range(100):
        server._request_reload()
        await asyncio.sleep(0)
    assert server._reloading is not None
    await server._reloading
    assert 1 <= len(threads) <= 2
    assert threading.get_ident() not in threads
    await services.close()
