"""An upstream for the outage: `python -m tests.faults.upstream PORT`."""

import json
import sys
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

_DELAY = 0.01
"""Seconds before an answer, and between its events."""


def answer(question: str) -> str:
    """Return the answer to a question; it depends on the number in the question."""
    digits = "".join(filter(str.isdigit, question))
    return f"It is kept in drawer {digits} of the archive."


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_GET(self) -> None:
        self._send("application/json", b"{}")

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["content-length"])))
        text = answer(body["messages"][-1]["content"])
        time.sleep(_DELAY)
        head: dict[str, Any] = {"id": "1", "model": body["model"], "created": 1}
        if not body.get("stream"):
            choice = {"index": 0, "message": {"role": "assistant", "content": text}, "finish_reason": "stop"}
            self._send(
                "application/json", json.dumps(head | {"object": "chat.completion", "choices": [choice]}).encode()
            )
            return
        self.send_response(200)
        self.send_header("content-type", "text/event-stream")
        self.send_header("transfer-encoding", "chunked")
        self.end_headers()
        words = [{"delta": {"content": f"{word} "}} for word in text.split()]
        for part in [*words, {"delta": {}, "finish_reason": "stop"}]:
            chunk = head | {"object": "chat.completion.chunk", "choices": [{"index": 0} | part]}
            self._part(f"data: {json.dumps(chunk)}\n\n")
            time.sleep(_DELAY)
        self._part("data: [DONE]\n\n")
        self.wfile.write(b"0\r\n\r\n")

    def _part(self, text: str) -> None:
        self.wfile.write(f"{len(text):x}\r\n{text}\r\n".encode())
        self.wfile.flush()

    def _send(self, kind: str, body: bytes) -> None:
        self.send_response(200)
        self.send_header("content-type", kind)
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        """Do not log requests."""


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    allow_reuse_address = True
    # With Python's 5, Linux drops connections while this process waits for a core, and each takes a second more.
    request_queue_size = 128


if __name__ == "__main__":
    _Server(("127.0.0.1", int(sys.argv[1])), _Handler).serve_forever()
