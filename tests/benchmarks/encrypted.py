"""Exact hits of a proxy that encrypts what it stores against one that does not, from another process, interleaved; and the
lookup in the store alone.

OMP_NUM_THREADS=1 python -m tests.benchmarks.encrypted
"""

import base64
import multiprocessing
import os
import statistics
import tempfile
import time
from pathlib import Path

from kvproxy.encryption import Cipher
from kvproxy.index.store import SqliteStore
from kvproxy.settings import load_settings
from tests.benchmarks.exact_hit import body, load
from tests.index.entries import make_entry
from tests.plain_upstream import run_plain_upstream
from tests.servers import run_proxy

ROUNDS = 9
PATH = "/v1/chat/completions"


def finds(store: SqliteStore, seconds: float = 0.5) -> float:
    """Lookups a second."""
    end, done = time.perf_counter() + seconds, 0
    while time.perf_counter() < end:
        for _ in range(50):
            assert store.find("key") is not None
        done += 50
    return done / seconds


def alone(folder: Path, size: int) -> float:
    """Lookups of an encrypted entry against those of one in clear, the median of the rounds."""
    stores = [SqliteStore(folder / "clear.db"), SqliteStore(folder / "sealed.db", cipher=Cipher([os.urandom(32)]))]
    text = b'{"x": "' + os.urandom(size // 2).hex().encode() + b'"}'
    for store in stores:
        store.put(make_entry("What is a block?", key="key", request=text, response=text))
    ratios = []
    for _ in range(ROUNDS):
        clear, sealed = (finds(store) for store in stores)
        ratios.append(sealed / clear)
    for store in stores:
        store.close()
    return statistics.median(ratios)


def main() -> None:
    for size in (1_000, 10_000, 100_000):
        with tempfile.TemporaryDirectory() as folder:
            print(f"store.find, request and answer of {size:,} bytes: {alone(Path(folder), size):.3f}", flush=True)
    os.environ["BENCHMARK_KEY"] = base64.b64encode(os.urandom(32)).decode()
    context = multiprocessing.get_context("spawn")
    with (
        tempfile.TemporaryDirectory() as one,
        tempfile.TemporaryDirectory() as other,
        run_plain_upstream() as upstream,
        run_proxy(load_settings(data=one, upstream=upstream, cache={"semantic": False})) as (clear, _),
        run_proxy(
            load_settings(
                data=other,
                upstream=upstream,
                cache={"semantic": False},
                encryption={"key_env": "BENCHMARK_KEY"},
            )
        ) as (sealed, _),
        context.Pool(1) as pool,
    ):
        import httpx

        for url in (clear, sealed):
            for _ in range(2):
                answer = httpx.post(url + PATH, content=body("What is a block?"), timeout=60)
            assert "hit" in answer.headers["cache-status"]
        for connections in (1, 16):
            ratios = []
            for _ in range(ROUNDS):
                first, second = (pool.apply(load, (url + PATH, connections)) for url in (clear, sealed))
                ratios.append(second / first)
            print(f"exact hits, {connections} connections: {statistics.median(ratios):.3f}", flush=True)


if __name__ == "__main__":
    main()
