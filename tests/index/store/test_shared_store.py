"""Two proxy processes on one PostgreSQL store: a change by one applies to the next request of the other."""

import contextlib
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from tests.servers import run_app

Proxy = tuple[str, "subprocess.Popen[bytes]"]
ANSWER = {"choices": [{"index": 0, "message": {"role": "assistant", "content": "So."}, "finish_reason": "stop"}]}
QUESTION = "How do I open a port in the firewall?"
REWORDED = "How can I open a port in the firewall?"


@contextlib.contextmanager
def proxy(data: Path, store: str, upstream: str) -> Iterator[Proxy]:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    command = [sys.executable, "-m", "kvproxy.commands", "serve", "--upstream", upstream, "--store", store]
    command += ["--data", str(data), "--port", str(port)]
    with subprocess.Popen(command, stdout=subprocess.DEVNULL) as process:
        try:
            yield f"http://127.0.0.1:{port}", process
        finally:
            process.kill()


def ready(url: str) -> None:
    end = time.monotonic() + 240
    while time.monotonic() < end:
        with contextlib.suppress(httpx.TransportError):
            httpx.get(f"{url}/health")
            return
        time.sleep(0.1)
    raise AssertionError("the proxy did not start")


@pytest.fixture(scope="module")
def two(postgres: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[list[Proxy]]:
    from tests.index.conftest import empty

    empty(postgres)

    async def chat(request: Request) -> Response:
        return JSONResponse(ANSWER)

    with (
        run_app(Starlette(routes=[Route("/v1/chat/completions", chat, methods=["POST"])])) as upstream,
        proxy(tmp_path_factory.mktemp("a"), postgres, upstream) as one,
        proxy(tmp_path_factory.mktemp("b"), postgres, upstream) as other,
    ):
        ready(one[0])
        ready(other[0])
        yield [one, other]


def ask(url: str, question: str, system: str, **headers: str) -> str:
    """Ask with `Cache-Control: confirm`, so that the other proxy finds the response."""
    messages = [{"role": "system", "content": system}, {"role": "user", "content": question}]
    named = {"cache-control": "confirm"} | {name.replace("_", "-"): value for name, value in headers.items()}
    answer = httpx.post(
        f"{url}/v1/chat/completions", json={"model": "m", "messages": messages}, headers=named, timeout=60
    )
    assert answer.status_code == 200
    return answer.headers["cache-status"]


def test_a_stored_response_is_at_once_a_semantic_hit_of_another_proxy(two: list[Proxy]) -> None:
    (one, _), (other, _) = two
    assert "stored" in ask(one, QUESTION, "stores")
    assert "semantic similarity=" in ask(other, REWORDED, "stores")
    assert "semantic" not in ask(other, REWORDED, "stores elsewhere", cache_control="no-store")


def test_feedback_applies_to_all_proxies(two: list[Proxy]) -> None:
    (one, _), (other, _) = two
    ask(one, QUESTION, "rejects", x_kvproxy_tags="rejects")
    (entry,) = httpx.get(f"{other}/admin/cache", params={"tag": "rejects"}).json()
    feedback = f"{other}/admin/cache/{entry['id']}/feedback"
    for right, expected in ((False, False), (True, True)):
        assert httpx.post(feedback, json={"right": right}).status_code == 200
        for url in (one, other):
            assert ("semantic" in ask(url, REWORDED, "rejects", cache_control="no-store")) == expected
            assert 'detail="exact"' in ask(url, QUESTION, "rejects")


def test_expiry_removal_and_import_apply_to_all_proxies(two: list[Proxy]) -> None:
    (one, _), (other, _) = two
    ask(one, QUESTION, "lifetime", x_kvproxy_ttl="5")
    assert "semantic" in ask(other, REWORDED, "lifetime")
    ends = time.monotonic() + 5.1
    ask(one, QUESTION, "removal", x_kvproxy_tags="removal")
    kept = [line for line in httpx.get(f"{other}/admin/cache/export").text.splitlines() if '"removal"' in line]
    assert httpx.delete(f"{other}/admin/cache", params={"tag": "removal"}).json() == {"removed": 1}
    assert "fwd=" in ask(one, REWORDED, "removal", cache_control="no-store")
    assert httpx.post(f"{one}/admin/cache/import", content=kept[0]).json()["imported"] == 1
    assert "semantic" in ask(other, REWORDED, "removal")
    time.sleep(max(0.0, ends - time.monotonic()))
    assert "fwd=" in ask(other, REWORDED, "lifetime", cache_control="no-store")


def test_another_proxy_serves_what_a_killed_one_acknowledged(two: list[Proxy]) -> None:
    (one, process), (other, _) = two
    for number in range(5):
        assert "stored" in ask(one, QUESTION, f"killed {number}")
    process.send_signal(signal.SIGKILL)
    process.wait()
    for number in range(5):
        assert 'detail="exact"' in ask(other, QUESTION, f"killed {number}")
        assert "semantic" in ask(other, REWORDED, f"killed {number}")
