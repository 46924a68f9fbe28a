"""Time to open a store under the policy `learned` and under `checked`, which remembers nothing of what was learned.

python -m tests.benchmarks.learned_start [--entries 100000] [--namespaces 10] [--rounds 3]

Vectors are random, so that the store is made quickly; every entry has a class and a vector of its answer. In each namespace
1,000 observations were made. Each start is a process of its own, in turn with one of the other policy: it opens the store and
then asks one question in each namespace, the first since the start.
"""

import argparse
import asyncio
import contextlib
import json
import sqlite3
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from kvproxy.index.models.embedder import load_embedder
from kvproxy.index.policies.learned.error_model import compute_features
from kvproxy.index.policies.learned.policy import LearnedPolicy
from kvproxy.index.store import SqliteStore
from kvproxy.index.store.observations import Observation
from kvproxy.index.store.opening import open_observations
from kvproxy.responses import open_response_cache
from kvproxy.settings.cache import CacheSettings
from tests.benchmarks.filling import fill as filled

_OBSERVED = 1_000


def fill(path: Path, entries: int, namespaces: int) -> None:
    """A store whose answers have classes, and what was learned of them."""
    model = load_embedder()
    store = SqliteStore(path)
    for made, vectors in filled(store, model, entries, namespaces):
        # As `classify` would, in one transaction.
        rows = [
            (entry.id, entry.namespace, f"class {entry.id[:2]}", entry.id, vector.tobytes(), model.name)
            for entry, vector in zip(made, vectors, strict=True)
        ]
        with contextlib.closing(sqlite3.connect(path)) as connection, connection:
            connection.executemany(
                "insert into answers (entry, namespace, name, text, vector, embedder) values (?, ?, ?, ?, ?, ?)", rows
            )
    store.close()
    log = open_observations(path)
    policy = LearnedPolicy(log, None, 0.02, 0.6)
    features = tuple(compute_features([0.9, 0.8, 0.7], ["a", "a", "b"]).tolist())
    for namespace in range(namespaces):
        for place in range(0, _OBSERVED, 100):
            right = bool(place % 300)
            seen = Observation("e", right, "answer", True, 0.0, f"n{namespace}", f"class {place}", features, 0.02)
            policy.learn([seen] * 100)
    log.prune(0)
    log.close()


def start(path: Path, policy: str, namespaces: int) -> tuple[float, float]:
    """Seconds until a store is open and for the first questions, in a process of its own; Python's imports are not counted."""
    command = [sys.executable, "-m", "tests.benchmarks.learned_start", "--open", str(path), policy, str(namespaces)]
    opening, asking = json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)
    return float(opening), float(asking)


def opened(path: Path, policy: str, namespaces: int) -> list[float]:
    """What `start` tells, of this process."""
    began = time.perf_counter()
    settings = CacheSettings.model_validate({"policy": policy})

    async def ask() -> list[float]:
        async with open_response_cache(path, settings) as cache:
            ready = time.perf_counter()
            assert cache.semantic is not None
            for namespace in range(namespaces):
                await cache.semantic.lookup(f"n{namespace}", "What is a block?", explore=False)
            return [ready - began, time.perf_counter() - ready]

    return asyncio.run(ask())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--entries", type=int, default=100_000)
    parser.add_argument("--namespaces", type=int, default=10)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--open", nargs=3, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.open:
        path, policy, namespaces = options.open
        print(json.dumps(opened(Path(path), policy, int(namespaces))))
        return
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "r.db"
        fill(path, options.entries, options.namespaces)
        start(path, "checked", options.namespaces)  # Brings the files into memory.
        found: dict[str, list[tuple[float, float]]] = {"learned": [], "checked": []}
        for number in range(options.rounds):
            for policy in sorted(found, reverse=bool(number % 2)):
                found[policy].append(start(path, policy, options.namespaces))
        for part, name in enumerate(("open", "first questions")):
            ours, theirs = ([seconds[part] for seconds in found[policy]] for policy in ("learned", "checked"))
            ratios = [one / other for one, other in zip(ours, theirs, strict=True)]
            print(f"{name}: ratio {statistics.median(ratios):.2f} ({min(ratios):.2f} to {max(ratios):.2f})")
            print(f"  {shown(ours)} s learned, {shown(theirs)} s checked")


def shown(seconds: list[float]) -> str:
    return ", ".join(f"{each:.2f}" for each in seconds)


if __name__ == "__main__":
    main()
