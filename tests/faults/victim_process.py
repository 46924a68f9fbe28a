"""A victim in a process of its own, which is forked from a prepared one in milliseconds and killed at the end."""

import contextlib
import logging
import multiprocessing
import resource
import signal
import time
from dataclasses import dataclass
from multiprocessing.connection import Connection
from multiprocessing.context import ForkServerContext
from pathlib import Path

from tests.faults.victims import READY, Victim

_START_TIMEOUT = 60.0
_FAILED = "failed: "


@dataclass(frozen=True, slots=True)
class Life:
    """The reports of a victim, and the error that ended it before the kill."""

    reports: tuple[str, ...]
    error: str | None


def prepare_server() -> ForkServerContext:
    """Return a context whose processes are forked from one with all imports."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["tests.faults.victims", "faiss"])
    return context


def run_and_kill(
    context: ForkServerContext, victim: Victim, folder: Path, seed: int, seconds: float, file_limit: int | None = None
) -> Life:
    """Run a victim for some seconds, and kill it. `file_limit` is the largest size of a file in bytes."""
    ours, its = context.Pipe(duplex=False)
    process = context.Process(target=_work, args=(victim, folder, seed, file_limit, its), daemon=True)
    process.start()
    its.close()
    lines: list[str] = []
    with contextlib.suppress(EOFError):
        assert ours.poll(_START_TIMEOUT), f"{victim.name} does not start"
        lines.append(ours.recv_bytes().decode())
        end = time.monotonic() + seconds
        while (left := end - time.monotonic()) > 0 and process.is_alive():
            if ours.poll(left):
                lines.append(ours.recv_bytes().decode())
    process.kill()
    process.join()
    # The pipe may still contain reports from before the kill.
    with contextlib.suppress(EOFError, OSError):
        while ours.poll():
            lines.append(ours.recv_bytes().decode())
    ours.close()
    error = next((line.removeprefix(_FAILED) for line in lines if line.startswith(_FAILED)), None)
    reports = tuple(line for line in lines if line != READY and not line.startswith(_FAILED))
    killed = process.exitcode == -signal.SIGKILL and READY in lines
    finished = process.exitcode == 0 and reports
    if error is None and not killed and not finished:
        error = f"it ended by itself, with exit code {process.exitcode}"
    return Life(reports, error)


def _work(victim: Victim, folder: Path, seed: int, file_limit: int | None, pipe: Connection) -> None:
    if file_limit is not None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (file_limit, resource.RLIM_INFINITY))
    # Errors of a full disk are expected.
    logging.disable(logging.CRITICAL)
    try:
        victim.work(folder, seed, lambda line: pipe.send_bytes(line.encode()))
    except Exception as error:
        pipe.send_bytes(f"{_FAILED}{type(error).__name__}: {error}".encode())
