"""kill -9 at random points of a real writer loses nothing that was acknowledged, and leaves store and index in agreement."""

import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from kvproxy.index.neighbours import FaissNeighbours
from kvproxy.index.store import ResponseStore
from tests.index.doubles import HashEmbedder

WRITER = """
import asyncio, sys
from pathlib import Path
from functools import partial
from kvproxy.index import neighbours, vectors
neighbours.FaissNeighbours = partial(neighbours.FaissNeighbours, small=20, flat_limit=150)
vectors.TAIL_LIMIT = 100
from kvproxy.index.policies.threshold import ThresholdPolicy
from kvproxy.index.semantic import SemanticCache
from kvproxy.index.store import Capacity, ResponseStore
from tests.index.doubles import HashEmbedder
from tests.index.entries import make_entry

async def main():
    store = ResponseStore(Path(sys.argv[1]), capacity=Capacity(entries=int(sys.argv[3])))
    semantic = SemanticCache(store, HashEmbedder(), ThresholdPolicy(0.8))
    semantic.rebuild()
    print("ready", flush=True)

    async def insert(worker):
        for number in range(100_000):
            entry = make_entry(f"question {sys.argv[2]} {worker} {number}", namespace=f"n{worker % 2}")
            assert await semantic.insert(entry)
            print("+" + entry.id, flush=True)
            if number % 9 == 0:
                print("~" + entry.id, flush=True)
                await semantic.remove([entry.id])
                print("-" + entry.id, flush=True)

    await asyncio.gather(*(insert(worker) for worker in range(4)))

asyncio.run(main())
"""


@pytest.mark.parametrize(("seed", "capacity"), [(0, 10**6), (1, 10**6), (2, 10**6), (3, 200)])
def test_kill_leaves_store_and_index_in_agreement(tmp_path: Path, seed: int, capacity: int) -> None:
    generator = random.Random(seed)
    path = tmp_path / "r.db"
    added: list[str] = []
    doomed: set[str] = set()
    removed: set[str] = set()
    for round_ in range(3):
        command = [sys.executable, "-c", WRITER, str(path), str(round_), str(capacity)]
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as writer:
            assert writer.stdout is not None
            assert writer.stdout.readline() == "ready\n"
            time.sleep(generator.uniform(0.05, 1.0))
            writer.send_signal(signal.SIGKILL)
            lines = [line.strip() for line in writer.stdout if line.endswith("\n")]
        added += [line[1:] for line in lines if line[0] == "+"]
        doomed |= {line[1:] for line in lines if line[0] == "~"}
        removed |= {line[1:] for line in lines if line[0] == "-"}
        store = ResponseStore(path)
        kept = set(store.ids())
        assert store.check() == store.count() == len(kept) <= capacity
        assert not removed & kept
        assert capacity == 200 or set(added) - doomed <= kept
        _agree(store, kept)
        store.close()
    assert len(added) > 30


def _agree(store: ResponseStore, kept: set[str]) -> None:
    near = FaissNeighbours(store, HashEmbedder.name, 64, small=20, flat_limit=150)
    near.load()
    near.settle()
    vectors = set()
    for namespace in ("n0", "n1"):
        numbers, ids = store.vector_ids(namespace, HashEmbedder.name)
        vectors |= {id.decode() for id in ids}
        if namespace in near.indexes:
            assert near.indexes[namespace].numbers() == set(numbers.tolist())
    assert vectors == kept
    near.close()
