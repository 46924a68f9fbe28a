"""kill -9 of a real process that writes chunks, and files that may not grow: what is found afterwards is whole."""

import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

from kvproxy.tiers.codec import ChunkName, unseal
from kvproxy.tiers.disk import DiskStore
from tests.engine.models import VOCABULARY, random_model, reference
from tests.engine.tiered import Driven, tiny

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


ENGINE = """
import resource, sys
from tests.engine.tiered import Driven, tiny
from tests.tiers.test_crash import prompt_of

if sys.argv[2] != "0":
    resource.setrlimit(resource.RLIMIT_FSIZE, (int(sys.argv[2]),) * 2)
driven = Driven(tiny(), {"disk": sys.argv[1]})
for number in range(int(sys.argv[3])):
    driven.submit(str(number), prompt_of(number), 4)
    driven.run()
    print(number, flush=True)
driven.settle()
print(driven.tiers.chain.figures()[0].errors, flush=True)
"""


def prompt_of(number: int) -> list[int]:
    """Prompts that begin alike, so that later ones load what earlier ones saved."""
    chance = random.Random(number % 5)
    return [chance.randrange(VOCABULARY) for _ in range(40 + number % 40)]


def run_engine(folder: Path, file_size: int, prompts: int) -> subprocess.Popen[str]:
    command = [sys.executable, "-c", ENGINE, str(folder), str(file_size), str(prompts)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, text=True)


def test_an_engine_that_was_killed_while_it_saved_finds_its_chunks_again(tmp_path: Path) -> None:
    model = random_model("llama")
    process = run_engine(tmp_path, 0, 10_000)
    assert process.stdout is not None
    for line in process.stdout:
        if int(line) == 30:
            break
    os.kill(process.pid, signal.SIGKILL)
    process.stdout.close()
    process.wait()
    driven = Driven(tiny(), {"disk": tmp_path})
    for number in range(12):
        prompt = prompt_of(number)
        driven.submit(str(number), prompt, 8)
        driven.run()
        assert driven.tokens[f"{number}#0"] == reference(model, prompt, 8)
    (row,) = driven.tiers.chain.figures()
    assert row.hits >= 5
    assert row.damaged == row.errors == 0
    assert not list(tmp_path.glob("*.part"))
    driven.engine.close()


def test_an_engine_goes_on_where_files_may_not_grow(tmp_path: Path) -> None:
    out, _ = run_engine(tmp_path, 5_000, 12).communicate(timeout=60)
    *answered, errors = map(int, out.split())
    assert answered == list(range(12))
    assert errors > 0
    assert not [path for path in tmp_path.rglob("*") if path.is_file()]
