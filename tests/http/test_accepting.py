"""A burst of new connections does not wait for as many turns of the event loop."""

import asyncio
import contextlib
import socket
from pathlib import Path
from typing import Any

import uvloop
from starlette.applications import Starlette

from kvproxy.http.deadlines_and_disconnects import Deadlines
from kvproxy.http.proxy_server import ProxyServer
from kvproxy.http.serve import make_server
from kvproxy.http.services import build_services
from kvproxy.settings import load_settings
from kvproxy.settings.limits import LimitSettings

_BURST = 64


def test_a_turn_of_the_event_loop_accepts_all_connections_that_wait(tmp_path: Path) -> None:
    settings: Any = {"data": tmp_path, "upstream": "http://127.0.0.1:9", "cache": {"semantic": False}}
    server = make_server(build_services(load_settings(**settings)))
    server.config.load()
    server.lifespan = server.config.lifespan_class(server.config)

    async def accepted_by_turn() -> list[int]:
        with socket.create_server(("127.0.0.1", 0), backlog=_BURST) as listener, contextlib.ExitStack() as clients:
            await server.startup([listener])
            for _ in range(_BURST):
                # The kernel completes the connection without the server.
                clients.enter_context(socket.create_connection(listener.getsockname()))
            counts = list[int]()
            while not counts or (counts[-1] < _BURST and len(counts) < 2 * _BURST):
                await asyncio.sleep(0)
                counts.append(len(server.server_state.connections))
            await server.shutdown([listener])
            return counts

    counts = uvloop.run(accepted_by_turn())
    assert counts[-1] == _BURST
    # One turn waits for the sockets, one accepts, and the tasks of the connections take a few more.
    assert len(counts) <= 8


def test_a_stop_closes_an_accepted_connection_that_is_not_yet_served() -> None:
    async def refuse(*_: object) -> None: ...

    server = ProxyServer(Starlette(), LimitSettings(), Deadlines(300.0, print), print, refuse)

    async def stop() -> bytes:
        with (
            socket.create_server(("127.0.0.1", 0)) as listener,
            socket.create_connection(listener.getsockname()) as client,
        ):
            listener.setblocking(False)
            server._accept_waiting(listener)
            connecting = list(server._connecting)
            for task in connecting:
                task.cancel()
            await asyncio.wait(connecting)
            return await asyncio.to_thread(client.recv, 1)

    assert uvloop.run(stop()) == b""
    assert not server._connecting
