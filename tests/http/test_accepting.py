"""A burst of new connections does not wait for as many turns of the event loop."""

import asyncio
import contextlib
import socket
from pathlib import Path
from typing import Any

import uvloop

from kvproxy.http.proxy_server import ACCEPTS_PER_TURN
from kvproxy.http.serve import make_server
from kvproxy.http.services import build_services
from kvproxy.settings import load_settings

_BURST = 4 * ACCEPTS_PER_TURN


def test_each_turn_of_the_event_loop_accepts_several_connections(tmp_path: Path) -> None:
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
            counts = []
            while not counts or (counts[-1] < _BURST and len(counts) < 2 * _BURST):
                await asyncio.sleep(0)
                counts.append(len(server.server_state.connections))
            await server.shutdown([listener])
            return counts

    counts = uvloop.run(accepted_by_turn())
    assert counts[-1] == _BURST
    assert len(counts) <= 2 + _BURST // ACCEPTS_PER_TURN * 2
