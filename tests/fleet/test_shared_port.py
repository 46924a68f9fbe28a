"""Proxies in processes of their own serve one port of the machine, and one store."""

import os
import signal
import sys
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import httpx
import pytest

from kvproxy.errors import SettingsError
from kvproxy.settings import load_settings
from tests.plain_upstream import run_recording_upstream
from tests.polling import until
from tests.ports import free_port
from tests.processes import Serving, answers, is_listening, serve

STORE = "postgresql://127.0.0.1/kvproxy"


def ask(port: int, question: str) -> httpx.Response:
    """Send a chat request on a new connection."""
    body = {"model": "m", "messages": [{"role": "user", "content": question}]}
    return httpx.post(f"http://127.0.0.1:{port}/v1/chat/completions", json=body, timeout=300)


@contextmanager
def run(data: Path, shared: int, store: str, upstream: str) -> Iterator[Serving]:
    port = free_port()
    data.mkdir()
    command = [sys.executable, "-m", "kvproxy", "serve", "--port", str(port), "--data", str(data), "--no-semantic"]
    environment = os.environ | {"KVPROXY_SHARED_PORT": str(shared), "KVPROXY_STORE": store}
    with serve([*command, "--upstream", upstream], port, data / "log", env=environment) as server:
        yield server


def test_two_processes_serve_one_port_and_one_of_them_may_stop(empty_postgres: str, tmp_path: Path) -> None:
    shared = free_port()
    with ExitStack() as stack:
        upstream, bodies = stack.enter_context(run_recording_upstream())
        servers = [stack.enter_context(run(tmp_path / name, shared, empty_postgres, upstream)) for name in ("a", "b")]
        responses = [ask(shared, "Hi") for _ in range(40)]
        assert {response.status_code for response in responses} == {200}
        # A response that one process stored is a hit of the other.
        assert len(bodies) == 1

        def served() -> Counter[str]:
            rows = httpx.get(f"{servers[0].url}/admin/log?limit=100").json()
            return Counter(row["proxy"] for row in rows)

        until(lambda: served().total() == 40)
        assert len(served()) == 2, served()

        servers[0].process.send_signal(signal.SIGTERM)
        assert servers[0].process.wait(300) == 0
        assert {ask(shared, "Hi").status_code for _ in range(10)} == {200}
        assert answers(f"{servers[1].url}/ready")
    assert not is_listening(shared)


def test_a_shared_port_needs_a_shared_store(tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match="shared_port: requires a store in PostgreSQL, which the proxies share"):
        load_settings(data=tmp_path, shared_port=8485)
    with pytest.raises(SettingsError, match="shared_port: must differ from port"):
        load_settings(data=tmp_path, shared_port=8484, store=STORE)
    assert load_settings(data=tmp_path, shared_port=8485, store=STORE).shared_port == 8485
