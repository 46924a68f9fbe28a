"""The HTTP client of commands, in front of a server that records requests and breaks responses."""

import base64
import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest

from kvproxy.operations.http_client import ConnectionBroken, HttpClient, InvalidUrl, NotConnected
from tests.ports import free_port

SEEN: list[dict[str, Any]] = []


class Handler(BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        self._answer()

    def do_POST(self) -> None:
        self._answer()

    def do_DELETE(self) -> None:
        self._answer()

    def _answer(self) -> None:
        body = self.rfile.read(int(self.headers.get("content-length") or 0))
        SEEN.append({"method": self.command, "path": self.path, "headers": self.headers, "body": body})
        status = {"/moved": 302, "/refused": 409}.get(self.path, 200)
        text = json.dumps({"status": status}).encode()
        self.send_response(status)
        if status == 302:
            self.send_header("location", "/elsewhere")
        self.send_header("X-Total-Count", "7")
        self.send_header("content-length", str(len(text) + (100 if self.path == "/short" else 0)))
        self.end_headers()
        self.wfile.write(text)

    def log_message(self, format: str, *arguments: object) -> None:
        pass


@pytest.fixture
def address() -> Iterator[str]:
    SEEN.clear()
    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, args=(0.05,))
    thread.start()
    yield f"127.0.0.1:{server.server_port}"
    server.shutdown()
    thread.join()
    server.server_close()


def test_requests_have_the_prefix_the_query_and_the_body(address: str) -> None:
    client = HttpClient(f"http://ann:p%40ss@{address}/prefix", 60.0)
    found = client.request("POST", "/a?x=1", {"q": "ü &"}, {"x-one": "1"}, json={"text": "ü"})
    assert (found.status_code, found.json(), found.headers["x-total-count"]) == (200, {"status": 200}, "7")
    client.request("POST", "/raw", content=b"lines")
    client.request("DELETE", "/id")
    first, second, third = SEEN
    assert (first["method"], first["path"]) == ("POST", "/prefix/a?x=1&q=%C3%BC+%26")
    assert json.loads(first["body"]) == {"text": "ü"}
    assert (first["headers"]["content-type"], first["headers"]["x-one"]) == ("application/json", "1")
    assert first["headers"]["authorization"] == f"Basic {base64.b64encode(b'ann:p@ss').decode()}"
    assert (second["body"], third["method"]) == (b"lines", "DELETE")


@pytest.mark.parametrize(("path", "status"), [("/refused", 409), ("/moved", 302)])
def test_a_response_of_any_status_is_returned_and_no_redirection_followed(address: str, path: str, status: int) -> None:
    found = HttpClient(f"http://{address}", 60.0).request("GET", path)
    assert (found.status_code, found.is_success, found.json()) == (status, False, {"status": status})
    with HttpClient(f"http://{address}", 60.0).stream(path, {}) as (refusal, chunks):
        assert refusal is not None
        assert (refusal.status_code, list(chunks)) == (status, [])


def test_a_stream_yields_the_body(address: str) -> None:
    with HttpClient(f"http://{address}", 60.0).stream("/lines", {}) as (refusal, chunks):
        assert (refusal, b"".join(chunks)) == (None, b'{"status": 200}')


def test_failures_are_told_apart(address: str) -> None:
    with pytest.raises(ConnectionBroken, match="ended within the response"):
        HttpClient(f"http://{address}", 60.0).request("GET", "/short")
    with pytest.raises(NotConnected, match="refused"):
        HttpClient(f"http://127.0.0.1:{free_port()}", 60.0).request("GET", "/")
    for url in ("ftp://host", "host:8484", "http://", "http://host:port", "http://[::1"):
        with pytest.raises(InvalidUrl):
            HttpClient(url, 60.0).request("GET", "/")
    with pytest.raises(InvalidUrl):
        HttpClient(f"http://{address}", 60.0).request("GET", "/", headers={"x-token": "two\nlines"})
