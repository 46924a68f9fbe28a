"""After kill -9 of a writing process, all chunks are valid."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from kvproxy.tiers.codec import read_payload
from kvproxy.tiers.disk import DiskStore
from tests.tiers.chunk_writer import PAYLOAD, name_of


def start(module: str, *arguments: object) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", f"tests.tiers.{module}", *map(str, arguments)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, text=True)


def read_until(process: subprocess.Popen[str], last: str) -> list[str]:
    """Return the output up to a line that begins with `last`."""
    assert process.stdout is not None
    lines = []
    for line in process.stdout:
        lines.append(line.strip())
        if line.startswith(last):
            return lines
    raise AssertionError(f"the process ended before {last!r}: {lines}")


def kill(process: subprocess.Popen[str]) -> list[str]:
    """Kill a process; return the rest of its complete lines."""
    os.kill(process.pid, signal.SIGKILL)
    assert process.stdout is not None
    rest = [line.strip() for line in process.stdout if line.endswith("\n")]
    process.stdout.close()
    process.wait()
    return rest


@pytest.mark.parametrize("after", [1, 7, 23])
def test_kill_9_loses_only_the_unfinished_chunk(after: int, tmp_path: Path) -> None:
    process = start("chunk_writer", tmp_path)
    read_until(process, f"{after}\n")
    # Kill it in the middle of a chunk.
    time.sleep(0.0007 * after)
    told = [after, *map(int, kill(process))]
    store = DiskStore(tmp_path, 1 << 30)
    done = max(told) + 1
    for number in range(done):
        data = store.get(name_of(number).key)
        assert data is not None
        assert read_payload(data, name_of(number)) == bytes([number % 256]) * PAYLOAD
    # One more chunk may be complete without a printed line.
    assert store.stats().chunks in (done, done + 1)
    last = store.get(name_of(done).key)
    assert last is None or read_payload(last, name_of(done)) is not None
    assert not list(tmp_path.glob("*.part"))
