"""Real servers on free ports, each on a thread of its own."""

import contextlib
import socket
import threading
import time
from collections.abc import Iterator
from typing import Any

import uvicorn

from kvproxy.http.app import create_app
from kvproxy.http.services import Services, build
from kvproxy.settings import Settings


@contextlib.contextmanager
def run_app(app: Any) -> Iterator[str]:
    """Serve an ASGI app; its URL."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen(512)
        server = uvicorn.Server(
            uvicorn.Config(
                app, log_level="warning", timeout_graceful_shutdown=1, date_header=False, server_header=False
            )
        )
        thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]}, daemon=True)
        thread.start()
        while not server.started:
            assert thread.is_alive(), "the server did not start"
            time.sleep(0.01)
        try:
            yield f"http://127.0.0.1:{listener.getsockname()[1]}"
        finally:
            server.should_exit = True
            thread.join(timeout=20)


@contextlib.contextmanager
def run_proxy(settings: Settings) -> Iterator[tuple[str, Services]]:
    """Serve a proxy; its URL and its parts."""
    services = build(settings)
    with run_app(create_app(services)) as url:
        yield url, services
