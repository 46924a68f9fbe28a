"""A proxy in a process of its own, in front of an upstream that the test runs."""

import contextlib
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import httpx

from tests.ports import free_port
from tests.processes import Serving, serve


@contextlib.contextmanager
def proxy_process(upstream: str, data: Path, log: Path, *flags: str, **settings: object) -> Iterator[Serving]:
    """Serve until the block ends.

    Args:
        upstream: its URL.
        data: the data folder.
        log: gets what the proxy says.
        flags: more of them.
        settings: by their paths with two underscores, as the environment names them.
    """
    port = free_port()
    command = [sys.executable, "-m", "kvproxy.commands", "serve", "--port", str(port), "--upstream", upstream]
    given = {f"KVPROXY_{name.upper()}": str(value) for name, value in settings.items()}
    with serve([*command, "--data", str(data), *flags], port, log, env=os.environ | given) as serving:
        yield serving


def ask(url: str, question: str, **more: object) -> httpx.Response:
    """Ask a question as a chat, and have the answer held back until it is stored."""
    body = {"model": "m", "messages": [{"role": "user", "content": question}]} | more
    return httpx.post(f"{url}/v1/chat/completions", json=body, timeout=60, headers={"cache-control": "confirm"})


def stored(answer: httpx.Response) -> bool:
    """Whether the proxy says that it keeps this answer."""
    return "stored" in answer.headers["cache-status"]


def hit(answer: httpx.Response) -> bool:
    """Whether the answer came from the cache."""
    return "; hit" in answer.headers["cache-status"]


def health(url: str) -> dict[str, str]:
    """What `/health` says."""
    told: dict[str, str] = httpx.get(f"{url}/health", timeout=60).json()
    return told


def stopped(process: "subprocess.Popen[bytes]") -> int:
    """Ask a process to end; its exit code."""
    process.terminate()
    return process.wait(timeout=60)
