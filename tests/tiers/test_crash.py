"""After kill -9 of a writing process, all chunks are valid."""

import subprocess
import sys
import time
from pathlib import Path

import pytest

from kvproxy.tiers.chunk_format import read_payload
from kvproxy.tiers.disk import DiskStore
from tests.tiers.chunk_writer import PAYLOAD, name_of


@pytest.mark.parametrize("after", [1, 7, 23])
def test_kill_9_loses_only_the_unfinished_chunk(after: int, tmp_path: Path) -> None:
    command = [sys.executable, "-m", "tests.tiers.chunk_writer", str(tmp_path)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        for line in process.stdout:
            if line == f"{after}\n":
                break
        # Kill it in the middle of a chunk.
        time.sleep(0.0007 * after)
        process.kill()
        told = [after, *(int(line) for line in process.stdout if line.endswith("\n"))]
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
