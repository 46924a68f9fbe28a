"""An OpenAI-compatible server with one constant response."""

import contextlib
import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

ANSWER = "Open the settings and choose Reset."
WHOLE = {"choices": [{"index": 0, "message": {"role": "assistant", "content": "Hi"}, "finish_reason": "stop"}]}
"""A complete response of any other server."""


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def handle(self) -> None:
        # A proxy that ends may reset idle connections; socketserver prints a traceback into the stderr of any test.
        with contextlib.suppress(ConnectionError):
            super().handle()

    def do_GET(self) -> None:
        self._send({"object": "list", "data": [{"id": "plain", "object": "model", "owned_by": "tests"}]})

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["content-length"]))
        self.server.bodies.append(json.loads(body))  # type: ignore[attr-defined]
        message = {"role": "assistant", "content": ANSWER}
        choices = [{"index": 0, "message": message, "finish_reason": "stop"}]
        usage = {"prompt_tokens": 9, "completion_tokens": 7, "total_tokens": 16}
        head = {"id": "1", "object": "chat.completion", "created": 1, "model": "plain"}
        self._send(head | {"choices": choices, "usage": usage})

    def _send(self, document: object) -> None:
        body = json.dumps(document).encode()
        self.send_response(200)
        self.send_header("content-type", "application/json")
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        """Do not log requests."""


@contextlib.contextmanager
def run_plain_upstream(port: int = 0) -> Iterator[str]:
    """Run the server on a port, or on a free port; yield its URL."""
    with run_recording_upstream(port) as (url, _):
        yield url


@contextlib.contextmanager
def run_recording_upstream(port: int = 0) -> Iterator[tuple[str, list[dict[str, Any]]]]:
    """Run the server; yield its URL and the bodies that it receives."""
    server = ThreadingHTTPServer(("127.0.0.1", port), _Handler)
    server.bodies = []  # type: ignore[attr-defined]
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}", server.bodies  # type: ignore[attr-defined]
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
