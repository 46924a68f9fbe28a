"""Servers in processes of their own."""

import contextlib
import socket
import subprocess
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import httpx


@dataclass(frozen=True, slots=True)
class Serving:
    """A running server: its URL, its process, and the file with its output."""

    url: str
    process: "subprocess.Popen[bytes]"
    log: Path


@contextlib.contextmanager
def serve(
    command: Sequence[str],
    port: int,
    log: Path,
    *,
    env: Mapping[str, str] | None = None,
    cwd: Path | None = None,
    timeout: float = 300.0,
    health: str = "/health",
) -> Iterator[Serving]:
    """Start a server, wait until its health route answers, and kill it at the end.

    Args:
        log: receives its output.
        timeout: of the start, in seconds.
    """
    with log.open("wb") as output:
        process = subprocess.Popen(command, stdout=output, stderr=output, env=env, cwd=cwd)
    try:
        url = f"http://127.0.0.1:{port}"
        end = time.monotonic() + timeout
        while not (is_listening(port) and answers(url + health)):
            assert process.poll() is None, log.read_text()
            assert time.monotonic() < end, log.read_text()
            time.sleep(0.05)
        yield Serving(url, process, log)
    finally:
        process.kill()
        process.wait()


def is_listening(port: int) -> bool:
    """Try to connect, which takes far less time than a request."""
    try:
        socket.create_connection(("127.0.0.1", port), timeout=1).close()
    except OSError:
        return False
    return True


def answers(url: str) -> bool:
    try:
        return httpx.get(url).is_success
    except httpx.TransportError:
        return False
