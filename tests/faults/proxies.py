"""A proxy in a process of its own, and requests to it."""

import contextlib
import os
import sys
from collections.abc import Iterator
from pathlib import Path

import httpx

from tests.ports import free_port
from tests.processes import Serving, serve

CHAT = "/v1/chat/completions"


@contextlib.contextmanager
def proxy_process(upstream: str, data: Path, log: Path, *flags: str, **settings: object) -> Iterator[Serving]:
    """Run a proxy, and require a log without tracebacks. `settings` are named as in the environment, in lower case."""
    port = free_port()
    command = [sys.executable, "-m", "kvproxy", "serve", "--port", str(port), "--upstream", upstream]
    given = {f"KVPROXY_{name.upper()}": str(value) for name, value in settings.items()}
    with serve([*command, "--data", str(data), *flags], port, log, env=os.environ | given) as serving:
        yield serving
    assert "Traceback" not in (text := log.read_text()), text[-800:]


def chat(question: str, **more: object) -> dict[str, object]:
    """Return the body of a chat request."""
    return {"model": "m", "messages": [{"role": "user", "content": question}]} | more


def ask(url: str, question: str, **more: object) -> httpx.Response:
    """Send a chat request; its response waits until it is stored."""
    return httpx.post(url + CHAT, json=chat(question, **more), timeout=300, headers={"cache-control": "confirm"})


def stored(answer: httpx.Response) -> bool:
    return "; stored" in answer.headers["cache-status"]


def hit(answer: httpx.Response) -> bool:
    return "; hit" in answer.headers["cache-status"]


def health(url: str) -> dict[str, str]:
    status: dict[str, str] = httpx.get(f"{url}/health", timeout=300).json()
    return status
