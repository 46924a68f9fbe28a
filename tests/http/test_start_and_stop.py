"""A proxy accepts connections when it is ready, and serves the last request of each connection when it stops."""

import asyncio
import socket
import threading
from pathlib import Path
from typing import Any

import httpx
import pytest

from kvproxy.errors import SettingsError
from kvproxy.http import proxy_server
from kvproxy.http.serve import bind_port, make_server
from kvproxy.http.services import Services, build_services
from kvproxy.settings import load_settings
from tests.polling import until
from tests.servers import run_server


def _services(folder: Path) -> Services:
    settings: Any = {"data": folder, "upstream": "http://127.0.0.1:9", "cache": {"semantic": False}}
    return build_services(load_settings(**settings))


def test_a_proxy_listens_and_systemd_is_notified_when_it_is_ready(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    services, ready, errors = _services(tmp_path), threading.Event(), list[int]()
    start = services.start
    with bind_port("127.0.0.1", 0) as listener, socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as manager:
        manager.bind(str(tmp_path / "notify"))
        monkeypatch.setenv("NOTIFY_SOCKET", str(tmp_path / "notify"))

        async def start_later() -> None:
            with socket.socket() as client:
                errors.append(client.connect_ex(listener.getsockname()))
            manager.setblocking(False)
            with pytest.raises(BlockingIOError):
                manager.recv(100)
            await start()

        monkeypatch.setattr(services, "start", start_later)
        server = make_server(services, ready.set)
        thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]})
        thread.start()
        until(lambda: ready.is_set() or not thread.is_alive())
        assert errors != [0]
        assert manager.recv(100) == b"READY=1"
        assert httpx.get(f"http://127.0.0.1:{listener.getsockname()[1]}/health").status_code == 200
        server.should_exit = True
        thread.join(300)
        assert manager.recv(100) == b"STOPPING=1"


def test_a_failed_start_closes_what_it_has_opened(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object, **named: object) -> None:
        raise SettingsError("no path")

    monkeypatch.setattr("kvproxy.http.services.RequestPath", fail)
    before = set(threading.enumerate())
    with pytest.raises(SettingsError, match="no path"):
        _services(tmp_path)
    assert set(threading.enumerate()) <= before


def test_a_port_that_another_process_opens_during_the_start_is_named(tmp_path: Path) -> None:
    with bind_port("127.0.0.1", 0) as listener, socket.socket() as other:
        other.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        other.bind(listener.getsockname())
        other.listen()
        with pytest.raises(SettingsError, match="cannot listen: another process has opened the port"):
            make_server(_services(tmp_path)).run(sockets=[listener])


def test_a_proxy_that_stops_serves_the_last_request_of_a_connection(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(proxy_server, "_LAST_REQUEST_SECONDS", 300.0)
    services = _services(tmp_path)
    server = make_server(services)
    server._limits = server._limits.model_copy(update={"drain_seconds": 300.0})
    with run_server(server) as url, httpx.Client() as client:
        assert "connection" not in client.get(f"{url}/health").headers
        server.should_exit = True
        until(lambda: services.deadlines.stopping)
        last = client.get(f"{url}/health")
        assert (last.status_code, last.headers["connection"]) == (200, "close")
        with pytest.raises(httpx.ConnectError):
            httpx.get(f"{url}/health")


async def test_the_store_stays_open_for_threads_of_cancelled_tasks(tmp_path: Path) -> None:
    services, begun, go, events = _services(tmp_path), threading.Event(), threading.Event(), list[str]()
    close = services.cache.close

    def work() -> None:
        begun.set()
        go.wait()
        events.append(f"{services.cache.store.count()} responses")

    def closed() -> None:
        events.append("closed")
        close()

    services.cache.close = closed  # type: ignore[method-assign]
    await services.start()
    task = asyncio.create_task(asyncio.to_thread(work))
    await asyncio.to_thread(begun.wait)
    task.cancel()
    closing = asyncio.create_task(services.close())
    await asyncio.wait([closing], timeout=0.2)
    go.set()
    await closing
    assert events == ["0 responses", "closed"]
