"""Two proxies on one PostgreSQL behind a real nginx with deploy/nginx.conf: what one stores the other gives, and one may die.

A second nginx forwards everything with one kept connection to one proxy, and buffers no request: the harder case for smuggling.
"""

import contextlib
import json
import random
import socket
import ssl
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import httpx
import pytest
from starlette.requests import Request
from starlette.responses import JSONResponse, Response, StreamingResponse

from kvproxy.apis.sse import encode_event
from tests.commands.run import ROOT
from tests.http.conftest import PROBES
from tests.http.test_request_heads import statuses
from tests.nginx_server import needs_nginx, run_nginx
from tests.polling import until
from tests.ports import free_port
from tests.postgres_server import empty
from tests.processes import Serving, answers, serve
from tests.servers import run_upstream

pytestmark = needs_nginx


class Upstream:
    """Records its requests."""

    def __init__(self) -> None:
        self.asked: list[str] = []
        self.others: list[tuple[str, bytes]] = []

    async def answer(self, request: Request) -> Response:
        if request.url.path == "/v1/chat/completions":
            return await self.chat(request)
        body = await request.body()
        if request.url.path not in PROBES:
            self.others.append((request.url.path, body))
        return JSONResponse({})

    async def chat(self, request: Request) -> Response:
        body = json.loads(await request.body())
        self.asked.append(body["messages"][-1]["content"])
        if body.get("stream"):
            parts = [part("Ye"), part("s.", "stop"), encode_event(b"[DONE]")]
            return StreamingResponse(iter(parts), media_type="text/event-stream")
        choice = {"index": 0, "message": {"role": "assistant", "content": "Yes."}, "finish_reason": "stop"}
        return JSONResponse({"id": "1", "object": "chat.completion", "created": 1, "model": "m", "choices": [choice]})


def part(text: str, reason: str | None = None) -> bytes:
    choice = {"index": 0, "delta": {"content": text}, "finish_reason": reason}
    return encode_event({"id": "1", "object": "chat.completion.chunk", "choices": [choice]})


@dataclass(frozen=True, slots=True)
class Site:
    """What runs: nginx's URL, the proxies behind it, their upstream, and a client that trusts the certificate."""

    url: str
    proxies: list[Serving]
    upstream: Upstream
    client: httpx.Client


@pytest.fixture(scope="module")
def site(postgres: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    empty(postgres)
    folder, upstream, key = tmp_path_factory.mktemp("nginx"), Upstream(), Path("key.pem")
    subject = ["-subj", "/CN=localhost", "-addext", "subjectAltName=DNS:localhost"]
    made = ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", *subject]
    subprocess.run([*made, "-keyout", str(key), "-out", "cert.pem"], cwd=folder, check=True, capture_output=True)
    with contextlib.ExitStack() as opened:
        address = opened.enter_context(run_upstream(upstream.answer))
        proxies = []
        for name in ("a", "b"):
            port = free_port()
            command = [sys.executable, "-m", "kvproxy", "serve", "--port", str(port), "--upstream", address]
            command += ["--store", postgres, "--data", str(folder / name), "--no-semantic"]
            # One name for both, whatever each is called.
            proxies.append(opened.enter_context(serve(command, port, folder / f"{name}.log")))
        port = free_port()
        opened.enter_context(run_nginx(folder, site_text(folder, proxies, port)))
        trusting = ssl.create_default_context(cafile=str(folder / "cert.pem"))
        client = opened.enter_context(httpx.Client(verify=trusting, timeout=60))
        url = f"https://localhost:{port}"
        until(lambda: is_up(client, url))
        yield Site(url, proxies, upstream, client)


def site_text(folder: Path, proxies: list[Serving], port: int) -> str:
    """The configuration as it is, with the addresses of this test."""
    text = (ROOT / "deploy/nginx.conf").read_text()
    for old, serving in zip(("127.0.0.1:8484", "127.0.0.1:8485"), proxies, strict=True):
        assert old in text
        text = text.replace(old, serving.url.removeprefix("http://"))
    text = text.replace("listen 443 ssl;", f"listen 127.0.0.1:{port} ssl;").replace("listen [::]:443 ssl;", "")
    text = text.replace("/etc/ssl/certs/llm.example.org.pem", str(folder / "cert.pem"))
    return text.replace("/etc/ssl/private/llm.example.org.key", str(folder / "key.pem"))


def is_up(client: httpx.Client, url: str) -> bool:
    with contextlib.suppress(httpx.TransportError):
        return client.get(f"{url}/health").is_success
    return False


def ask(site: Site, url: str, question: str, **more: object) -> httpx.Response:
    body = {"model": "m", "messages": [{"role": "user", "content": question}], **more}
    return site.client.post(f"{url}/v1/chat/completions", json=body, headers={"cache-control": "confirm"})


def test_what_one_stores_the_other_gives(site: Site) -> None:
    first, second = site.proxies
    assert "; stored" in ask(site, first.url, "Shared?").headers["cache-status"]
    assert "; hit" in ask(site, second.url, "Shared?").headers["cache-status"]
    assert "; hit" in ask(site, site.url, "Shared?").headers["cache-status"]
    assert site.upstream.asked.count("Shared?") == 1


def test_restarts_in_quick_succession_leave_a_server(tmp_path: Path) -> None:
    ports, front = [free_port(), free_port()], free_port()
    servers = (ROOT / "deploy/nginx.conf").read_text().partition("server {")[0]
    for old, port in zip((8484, 8485), ports, strict=True):
        servers = servers.replace(f"127.0.0.1:{old}", f"127.0.0.1:{port}")
    proxying = "proxy_pass http://kvproxy; proxy_next_upstream error timeout; proxy_next_upstream_tries 2;"
    site = f"{servers}\nserver {{ listen 127.0.0.1:{front}; location / {{ {proxying} }} }}\n"

    async def answer(request: Request) -> Response:
        return JSONResponse({})

    with run_nginx(tmp_path, site), httpx.Client(base_url=f"http://127.0.0.1:{front}", timeout=60) as client:
        with run_upstream(answer, ports[1]), contextlib.ExitStack() as later:
            until(lambda: is_up(client, ""))
            # The first server is down.
            assert {client.get("/health").status_code for _ in range(4)} == {200}
            later.enter_context(run_upstream(answer, ports[0]))
            restarted = later.pop_all()
        with restarted:
            # The second one stopped just after the start of the first.
            assert {client.get("/health").status_code for _ in range(4)} == {200}


def test_streams_come_through_as_they_are(site: Site) -> None:
    for _ in range(2):
        answer = ask(site, site.url, "Streamed?", stream=True)
        assert answer.headers["content-type"].startswith("text/event-stream")
        assert answer.text.endswith("[DONE]\n\n")


def test_the_operators_routes_are_not_for_everybody(site: Site) -> None:
    for path in ("/admin/cache", "/metrics", "/ui", "/openapi.json"):
        assert site.client.get(f"{site.url}{path}").status_code == 404
    # A proxy that has received one forwarded request keeps them closed, also for requests without the header.
    for headers in ({"x-forwarded-for": "203.0.113.7"}, {}):
        assert site.client.get(f"{site.proxies[0].url}/admin/cache", headers=headers).status_code in (401, 403)


@pytest.fixture(scope="module")
def bare(site: Site, tmp_path_factory: pytest.TempPathFactory) -> Iterator[int]:
    """The port of an nginx that buffers no request, and forwards Upgrade and Connection as clients send them."""
    folder, port = tmp_path_factory.mktemp("bare"), free_port()
    one = site.proxies[1].url.removeprefix("http://")
    text = (
        f"upstream one {{ server {one}; keepalive 1; }}\n"
        f"server {{\nlisten 127.0.0.1:{port};\nlocation / {{\nproxy_pass http://one;\nproxy_http_version 1.1;\n"
        "proxy_request_buffering off;\nproxy_set_header Upgrade $http_upgrade;\nproxy_set_header Connection $offer;\n"
        "}\n}\nmap $http_upgrade $offer { default Upgrade; '' ''; }\n"
    )
    with run_nginx(folder, text):
        until(lambda: answers(f"http://127.0.0.1:{port}/health"))
        yield port


OFFER = b"Connection: Upgrade\r\nUpgrade: h2c\r\n"


@pytest.mark.parametrize("offer", [b"", OFFER, OFFER.replace(b"h2c", b"websocket")], ids=["plain", "h2c", "websocket"])
@pytest.mark.parametrize("chunked", [False, True], ids=["length", "chunked"])
def test_no_body_becomes_a_request_behind_nginx(site: Site, bare: int, offer: bytes, chunked: bool) -> None:
    """The body arrives in segments, and the next client's request follows on nginx's connection to the proxy."""
    inner = b"GET /v1/smuggled HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n"
    framing = b"Transfer-Encoding: chunked\r\n" if chunked else b"Content-Length: %d\r\n" % len(inner)
    body = b"%x\r\n%s\r\n0\r\n\r\n" % (len(inner), inner) if chunked else inner
    before = len(site.upstream.others)
    answer = b""
    with socket.create_connection(("127.0.0.1", bare), timeout=30) as client:
        client.sendall(b"POST /v1/other HTTP/1.1\r\nHost: 127.0.0.1\r\n" + offer + framing + b"\r\n")
        time.sleep(0.1)
        client.sendall(body[:10])
        time.sleep(0.1)
        with contextlib.suppress(ConnectionError):
            client.sendall(body[10:])
        # nginx keeps the connection open.
        client.settimeout(1.0)
        with contextlib.suppress(TimeoutError):
            while part := client.recv(65_536):
                answer += part
    for number in range(3):
        assert httpx.get(f"http://127.0.0.1:{bare}/v1/next/{number}").json() == {}
    refused = b"websocket" in offer
    assert statuses(answer) == [b"426" if refused else b"200"]
    seen = [] if refused else [("/v1/other", inner)]
    assert site.upstream.others[before:] == [*seen, *((f"/v1/next/{number}", b"") for number in range(3))]


def test_no_broken_upload_becomes_a_request_behind_nginx(site: Site, bare: int) -> None:
    generator = random.Random(3)
    inner = b"POST /v1/smuggled HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: 0\r\n\r\n"
    before = len(site.upstream.others)
    for number in range(60):
        offer = generator.choice((b"", OFFER, b"Expect: 100-continue\r\n"))
        kept = generator.choice((len(inner), len(inner) - 3, 1))
        length = b"Content-Length: %d\r\n" % generator.choice((len(inner), len(inner) + 5, 9))
        body = inner[:kept]
        if generator.random() < 0.5:
            length = b"Transfer-Encoding: chunked\r\n"
            end = generator.choice((b"0\r\n\r\n", b"", b"zz\r\n"))
            body = b"%x\r\n" % len(inner) + body + b"\r\n" + end
        with socket.create_connection(("127.0.0.1", bare), timeout=30) as client:
            client.sendall(b"POST /v1/upload HTTP/1.1\r\nHost: 127.0.0.1\r\n" + offer + length + b"\r\n")
            time.sleep(0.01)
            with contextlib.suppress(ConnectionError):
                client.sendall(body)
            if generator.random() < 0.5:
                client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")
        assert httpx.get(f"http://127.0.0.1:{bare}/v1/next/{number}").json() == {}
    paths = [path for path, _ in site.upstream.others[before:]]
    assert [path for path in paths if path.startswith("/v1/next")] == [f"/v1/next/{number}" for number in range(60)]
    assert {path for path in paths if not path.startswith("/v1/next")} <= {"/v1/upload"}


def test_nginx_goes_on_when_one_is_killed(site: Site) -> None:
    first, second = site.proxies
    assert ask(site, first.url, "Will it survive?").status_code == 200
    first.process.kill()
    first.process.wait()
    answers = [ask(site, site.url, f"Question {number}?") for number in range(20)]
    assert [answer.status_code for answer in answers] == [200] * 20
    # The responses that the killed proxy stored are served, and no request reached the upstream twice.
    assert "; hit" in ask(site, site.url, "Will it survive?").headers["cache-status"]
    assert all(site.upstream.asked.count(f"Question {number}?") == 1 for number in range(20))
    assert httpx.get(f"{second.url}/health").json()["status"] == "ok"
