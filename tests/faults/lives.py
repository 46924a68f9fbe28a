"""The life of a victim: a process that begins as a copy of a prepared one, in milliseconds, and is killed at the end."""

import contextlib
import logging
import multiprocessing
import resource
import shutil
import signal
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from multiprocessing.connection import Connection
from multiprocessing.context import ForkServerContext
from pathlib import Path

from tests.faults.victims.victim import READY, Victim

_PATIENCE = 60.0
_FAILED = "failed: "


@dataclass(frozen=True, slots=True)
class Life:
    """What a victim told, and the error that ended its work before the kill, if one did."""

    told: tuple[str, ...]
    error: str | None


def prepared() -> ForkServerContext:
    """What lives begin from: a process that has imported everything."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["tests.faults.victims", "faiss"])
    return context


@contextlib.contextmanager
def scratch() -> Iterator[Path]:
    """An empty folder, removed at the end."""
    folder = Path(tempfile.mkdtemp(prefix="kvproxy-faults-"))
    try:
        yield folder
    finally:
        shutil.rmtree(folder)


def live(
    context: ForkServerContext, victim: Victim, folder: Path, seed: int, seconds: float, largest: int | None = None
) -> Life:
    """Let a victim work for so many seconds, and kill it.

    Args:
        largest: bytes that a file may grow to; None for no limit.
    """
    ours, its = context.Pipe(duplex=False)
    process = context.Process(target=_work, args=(victim, folder, seed, largest, its), daemon=True)
    process.start()
    its.close()
    told: list[str] = []
    with contextlib.suppress(EOFError):
        assert ours.poll(_PATIENCE), f"{victim.name} does not begin"
        told.append(ours.recv_bytes().decode())
        end = time.monotonic() + seconds
        while (left := end - time.monotonic()) > 0 and process.is_alive():
            if ours.poll(left):
                told.append(ours.recv_bytes().decode())
    process.kill()
    process.join()
    # What it told before it died may still be on its way.
    with contextlib.suppress(EOFError, OSError):
        while ours.poll():
            told.append(ours.recv_bytes().decode())
    ours.close()
    error = next((line.removeprefix(_FAILED) for line in told if line.startswith(_FAILED)), None)
    done = tuple(line for line in told if line != READY and not line.startswith(_FAILED))
    killed = process.exitcode == -signal.SIGKILL and READY in told
    # Who has told of something may have come to the end of its work.
    finished = process.exitcode == 0 and done
    if error is None and not killed and not finished:
        error = f"it ended by itself, with exit code {process.exitcode}"
    return Life(done, error)


def _work(victim: Victim, folder: Path, seed: int, largest: int | None, tell: Connection) -> None:
    if largest is not None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (largest, resource.RLIM_INFINITY))
    # A full disk is what is wanted here: nobody needs to read of it.
    logging.disable(logging.CRITICAL)
    try:
        victim.work(folder, seed, lambda line: tell.send_bytes(line.encode()))
    except Exception as error:
        tell.send_bytes(f"{_FAILED}{type(error).__name__}: {error}".encode())
