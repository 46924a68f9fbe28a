"""kill -9 of a real process that writes chunks: what is found afterwards is whole, and nearly all of it is there."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

from kvproxy.tiers.codec import ChunkName, unseal
from kvproxy.tiers.disk import DiskStore

PAYLOAD = 300_000
SCRIPT = """
import sys
from pathlib import Path
from kvproxy.tiers.codec import ChunkName, header_bytes, seal
from kvproxy.tiers.disk import DiskStore
from tests.tiers.test_crash import PAYLOAD, name_of

store = DiskStore(Path(sys.argv[1]), 1 << 30)
for number in range(10_000):
    name = name_of(number)
    buffer = bytearray(header_bytes(name)) + bytes([number % 256]) * PAYLOAD
    seal(memoryview(buffer), name)
    store.put(name.key, buffer)
    print(number, flush=True)
"""


def name_of(number: int) -> ChunkName:
    return ChunkName(b"f" * 32, number.to_bytes(32, "big"), [number, number + 1])


def test_kill_9_loses_nothing_but_the_unfinished_chunk(tmp_path: Path) -> None:
    for after in (1, 7, 23):
        folder = tmp_path / str(after)
        process = subprocess.Popen([sys.executable, "-c", SCRIPT, str(folder)], stdout=subprocess.PIPE, text=True)
        assert process.stdout is not None
        for line in process.stdout:
            if int(line) == after:
                break
        time.sleep(0.0007 * after)
        os.kill(process.pid, signal.SIGKILL)
        told = [after, *(int(line) for line in process.stdout if line.endswith("\n"))]
        process.stdout.close()
        process.wait()
        store = DiskStore(folder, 1 << 30)
        done = max(told) + 1
        for number in range(done):
            data = store.get(name_of(number).key)
            assert data is not None
            assert unseal(data, name_of(number)) == bytes([number % 256]) * PAYLOAD
        # One more may have been renamed and not yet told of; then it is whole too.
        assert store.stats().chunks in (done, done + 1)
        last = store.get(name_of(done).key)
        assert last is None or unseal(last, name_of(done)) is not None
        assert not list(folder.glob("*.part"))
