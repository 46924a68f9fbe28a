"""Two proxies on one PostgreSQL behind a real nginx with deploy/nginx.conf: what one stores the other gives, and one may die."""

import contextlib
import json
import ssl
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import httpx
import pytest
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.routing import Route

from tests.commands.run import ROOT
from tests.index.conftest import empty, postgres
from tests.ports import free_port
from tests.processes import Serving, serve
from tests.servers import run_app

__all__ = ["postgres"]


class Upstream:
    """Counts what it was asked."""

    def __init__(self) -> None:
        self.asked: list[str] = []

    async def chat(self, request: Request) -> Response:
        body = json.loads(await request.body())
        self.asked.append(body["messages"][-1]["content"])
        if body.get("stream"):
            return StreamingResponse(
                iter([event("Ye"), event("s.", "stop"), b"data: [DONE]\n\n"]), media_type="text/event-stream"
            )
        choice = {"index": 0, "message": {"role": "assistant", "content": "Yes."}, "finish_reason": "stop"}
        return JSONResponse({"id": "1", "object": "chat.completion", "created": 1, "model": "m", "choices": [choice]})


def event(text: str, reason: str | None = None) -> bytes:
    choice = {"index": 0, "delta": {"content": text}, "finish_reason": reason}
    return (
        b"data: " + json.dumps({"id": "1", "object": "chat.completion.chunk", "choices": [choice]}).encode() + b"\n\n"
    )


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
        app = Starlette(routes=[Route("/v1/chat/completions", upstream.chat, methods=["POST"])])
        address = opened.enter_context(run_app(app))
        proxies = []
        for name in ("a", "b"):
            port = free_port()
            command = [sys.executable, "-m", "kvproxy.commands", "serve", "--port", str(port), "--upstream", address]
            command += ["--store", postgres, "--data", str(folder / name), "--no-semantic"]
            # One name for both, whatever each is called.
            proxies.append(opened.enter_context(serve(command, port, folder / f"{name}.log")))
        port = free_port()
        process = subprocess.Popen(["nginx", "-p", str(folder), "-c", str(configured(folder, proxies, port))])
        opened.callback(lambda: (process.terminate(), process.wait()))
        trusting = ssl.create_default_context(cafile=str(folder / "cert.pem"))
        client = opened.enter_context(httpx.Client(verify=trusting, timeout=60))
        url = f"https://localhost:{port}"
        until(lambda: client.get(f"{url}/health").status_code == 200)
        yield Site(url, proxies, upstream, client)


def configured(folder: Path, proxies: list[Serving], port: int) -> Path:
    """The configuration as it is, with the addresses of this test."""
    text = (ROOT / "deploy/nginx.conf").read_text()
    for old, serving in zip(("127.0.0.1:8484", "127.0.0.1:8485"), proxies, strict=True):
        assert old in text
        text = text.replace(old, serving.url.removeprefix("http://"))
    text = text.replace("listen 443 ssl;", f"listen 127.0.0.1:{port} ssl;").replace("listen [::]:443 ssl;", "")
    text = text.replace("/etc/ssl/certs/llm.example.org.pem", str(folder / "cert.pem"))
    text = text.replace("/etc/ssl/private/llm.example.org.key", str(folder / "key.pem"))
    own = f"daemon off;\nuser root;\npid {folder}/pid;\nerror_log {folder}/error.log;\nevents {{}}\nhttp {{\naccess_log off;\n"
    path = folder / "nginx.conf"
    path.write_text(f"{own}{text}}}\n")
    return path


def until(holds: object) -> None:
    end = time.monotonic() + 60
    while True:
        with contextlib.suppress(httpx.TransportError):
            if callable(holds) and holds():
                return
        assert time.monotonic() < end
        time.sleep(0.05)


def ask(site: Site, url: str, question: str, **more: object) -> httpx.Response:
    body = {"model": "m", "messages": [{"role": "user", "content": question}], **more}
    return site.client.post(f"{url}/v1/chat/completions", json=body, headers={"cache-control": "confirm"})


def test_what_one_stores_the_other_gives(site: Site) -> None:
    first, second = site.proxies
    assert "stored" in ask(site, first.url, "Shared?").headers["cache-status"]
    assert "; hit" in ask(site, second.url, "Shared?").headers["cache-status"]
    assert "; hit" in ask(site, site.url, "Shared?").headers["cache-status"]
    assert site.upstream.asked.count("Shared?") == 1


def test_streams_come_through_as_they_are(site: Site) -> None:
    for _ in range(2):
        answer = ask(site, site.url, "Streamed?", stream=True)
        assert answer.headers["content-type"].startswith("text/event-stream")
        assert answer.text.endswith("[DONE]\n\n")


def test_the_operators_routes_are_not_for_everybody(site: Site) -> None:
    for path in ("/admin/cache", "/metrics", "/ui"):
        assert site.client.get(f"{site.url}{path}").status_code == 404
    # A proxy that has received one forwarded request keeps them closed, also for requests without the header.
    for headers in ({"x-forwarded-for": "203.0.113.7"}, {}):
        assert site.client.get(f"{site.proxies[0].url}/admin/cache", headers=headers).status_code in (401, 403)


def test_nginx_goes_on_when_one_is_killed(site: Site) -> None:
    first, second = site.proxies
    assert ask(site, first.url, "Will it survive?").status_code == 200
    first.process.kill()
    first.process.wait()
    answers = [ask(site, site.url, f"Question {number}?") for number in range(20)]
    assert [answer.status_code for answer in answers] == [200] * 20
    # What the dead one had stored is there, and nothing was asked twice.
    assert "; hit" in ask(site, site.url, "Will it survive?").headers["cache-status"]
    assert all(site.upstream.asked.count(f"Question {number}?") == 1 for number in range(20))
    assert httpx.get(f"{second.url}/health").json()["status"] == "ok"
