"""Servers in processes of their own, as a user starts them."""

import contextlib
import subprocess
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import httpx

_PATIENCE = 60.0


@dataclass(frozen=True, slots=True)
class Serving:
    """A server that answers: its URL, its process, and what it printed so far."""

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
    patience: float = _PATIENCE,
) -> Iterator[Serving]:
    """Start a server and wait until `/health` answers. It is killed at the end, if it still runs.

    Args:
        command: starts it.
        port: where it listens.
        log: gets what it prints.
        env, cwd: of the process.
        patience: seconds until it must answer.
    """
    with log.open("wb") as output:
        process = subprocess.Popen(command, stdout=output, stderr=output, env=env, cwd=cwd)
    try:
        url = f"http://127.0.0.1:{port}"
        end = time.monotonic() + patience
        while not _answers(url):
            assert process.poll() is None, log.read_text()
            assert time.monotonic() < end, log.read_text()
            time.sleep(0.02)
        yield Serving(url, process, log)
    finally:
        process.kill()
        process.wait()


def _answers(url: str) -> bool:
    try:
        return httpx.get(f"{url}/health").status_code == 200
    except httpx.TransportError:
        return False
