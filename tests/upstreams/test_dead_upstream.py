"""An upstream that does not respond is visible from the start: in the banner, the log, and /ready."""

import logging
import os
import shlex
import subprocess
import sys
from pathlib import Path

import httpx
import pytest

from kvproxy.settings import load_settings
from tests.commands.run import kvproxy
from tests.plain_upstream import run_plain_upstream
from tests.polling import until
from tests.ports import free_port
from tests.servers import run_front, run_proxy


def test_the_log_and_ready_report_an_outage_once_per_change(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    port = free_port()
    url = f"http://127.0.0.1:{port}"
    routing = {"health_interval": 0.05, "health_timeout": 1.0}

    def lines(text: str) -> int:
        return sum(text in message for message in caplog.messages)

    with caplog.at_level(logging.INFO, "kvproxy"), run_front(tmp_path, url, routing=routing) as (proxy, services):
        until(lambda: httpx.get(f"{proxy}/ready").status_code == 503)
        assert url in httpx.get(f"{proxy}/ready").json()["error"]
        found = httpx.get(f"{proxy}/health").json()
        assert url in found["outage"]
        (upstream,) = found["upstreams"]
        assert (found["status"], upstream["url"], upstream["state"]) == ("degraded", url, "ejected")
        assert "Connection refused" in upstream["error"]
        (engine,) = services.built.fleet.engines.values()  # type: ignore[union-attr]
        until(lambda: engine.health.failures > 4)
        assert lines(f"the upstream {url} does not respond") == 1
        with run_plain_upstream(port):
            until(lambda: httpx.get(f"{proxy}/ready").status_code == 200)
            found = httpx.get(f"{proxy}/health").json()
            assert "outage" not in found
            assert (found["status"], found["upstreams"][0]["state"]) == ("ok", "up")
        assert lines(f"the upstream {url} responds again") == 1
        until(lambda: lines(f"the upstream {url} does not respond") == 2)


def test_the_banner_names_a_dead_upstream_the_dashboard_and_a_request_that_works(tmp_path: Path) -> None:
    dead = f"http://127.0.0.1:{free_port()}"
    with run_plain_upstream() as alive:
        command = [sys.executable, "-m", "kvproxy", "serve", "--port", "0", "--no-semantic"]
        command += ["--data", str(tmp_path), "--upstream", dead, "--upstream", alive]
        # The upstream is a thread of this process, and slow where the machine is busy.
        environment = os.environ | {"NO_COLOR": "1", "KVPROXY_ROUTING__HEALTH_TIMEOUT": "60"}
        process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment)
        try:
            assert process.stdout is not None
            lines = [process.stdout.readline() for _ in range(8)]
            url = next(line for line in lines if "dashboard" in line).split()[1]
            page = httpx.get(url.removesuffix("/ui"), headers={"accept": "text/html"}, follow_redirects=True)
            answer = subprocess.run(shlex.split(lines[-1]), capture_output=True, text=True).stdout
        finally:
            process.terminate()
            process.wait()
            process.stdout.close()  # type: ignore[union-attr]
    banner = "".join(lines)
    assert f"DOWN: nothing answers at {dead}" in banner
    assert f"{alive} answers, and serves plain" in banner
    assert "<title>kvproxy</title>" in page.text
    assert "HTTP/1.1 200 OK" in answer


def test_blocks_names_an_engine_that_does_not_respond(tmp_path: Path) -> None:
    dead = f"http://127.0.0.1:{free_port()}"
    events = f"tcp://127.0.0.1:{free_port()}"
    routing = {"health_interval": 0.05}
    for number, upstream in enumerate(({"url": dead, "kv_events": events}, {"url": dead})):
        settings = load_settings(data=tmp_path / str(number), upstreams=[upstream], routing=routing)
        with run_proxy(settings) as (url, _):
            until(lambda: httpx.get(f"{url}/ready").status_code == 503)
            shown = kvproxy("blocks", url=url)
            assert f"{dead} does not respond" in (shown.stdout if "kv_events" in upstream else shown.stderr)
