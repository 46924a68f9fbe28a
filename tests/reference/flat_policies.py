"""Compares eviction policies with libCacheSim on blocks without prefixes: `python -m tests.reference.flat_policies`.

libCacheSim is no dependency, because it requires boto3: `pip install libcachesim==0.3.5`. `RECORDED` has its hits, which
`tests/analyse/simulate/test_flat_policies.py` requires. Its S3-FIFO differs from ours, which has other sizes of its queues.
"""

import random
from collections.abc import Sequence

from kvproxy.analyse.simulate.pool_simulation import ChainRequest, simulate

STREAMS = {"zipf": 1, "scan": 2, "shifting": 3}
CAPACITIES = (10, 50, 200)
RECORDED: dict[tuple[str, int], dict[str, int]] = {
    ("zipf", 10): {"lru": 1238, "belady": 2386},
    ("zipf", 50): {"lru": 2671, "belady": 3582, "s3fifo": 3085},
    ("zipf", 200): {"lru": 3923, "belady": 4381, "s3fifo": 4026},
    ("scan", 10): {"lru": 851, "belady": 1636},
    ("scan", 50): {"lru": 1781, "belady": 2503, "s3fifo": 2111},
    ("scan", 200): {"lru": 2356, "belady": 3011, "s3fifo": 2745},
    ("shifting", 10): {"lru": 1239, "belady": 2370},
    ("shifting", 50): {"lru": 2662, "belady": 3513, "s3fifo": 2641},
    ("shifting", 200): {"lru": 3791, "belady": 4298, "s3fifo": 3629},
}
"""Hits of libCacheSim 0.3.5 by stream and capacity. Its S3-FIFO hits nothing with 10 blocks: its small queue has no place."""


def stream(name: str, length: int = 5_000) -> list[int]:
    """Return requested blocks: Zipf's law, the same with long scans, or with a popularity that shifts."""
    chance = random.Random(STREAMS[name])
    weights = [1 / rank for rank in range(1, 501)]
    blocks = chance.choices(range(500), weights, k=length)
    if name == "scan":
        for start in range(500, length, 1_000):
            blocks[start : start + 300] = range(10_000 + start, 10_300 + start)
    elif name == "shifting":
        blocks = [(block + at // 500 * 37) % 500 for at, block in enumerate(blocks)]
    return blocks


def our_hits(blocks: Sequence[int], capacity: int, policy: str) -> int:
    return simulate([ChainRequest((block,), 1, False) for block in blocks], capacity, policy).hits


def hits_of_libcachesim(blocks: Sequence[int], capacity: int, policy: str) -> int:
    # Typed as Any: it is not installed with the tests.
    import libcachesim  # type: ignore[import-not-found]

    next_uses: dict[int, int] = {}
    following = [0] * len(blocks)
    for at in range(len(blocks) - 1, -1, -1):
        # libCacheSim's mark of an object that is never requested again.
        following[at] = next_uses.get(blocks[at], 2**63 - 1)
        next_uses[blocks[at]] = at
    cache = {"lru": libcachesim.LRU, "belady": libcachesim.Belady, "s3fifo": libcachesim.S3FIFO}[policy](capacity)
    hits = 0
    for at, block in enumerate(blocks):
        request = libcachesim.Request()
        request.obj_id, request.obj_size, request.clock_time = block, 1, at
        request.next_access_vtime = following[at]
        hits += bool(cache.get(request))
    return hits


def main() -> None:
    for name in STREAMS:
        blocks = stream(name)
        for capacity in CAPACITIES:
            row = {
                policy: (our_hits(blocks, capacity, policy), hits_of_libcachesim(blocks, capacity, policy))
                for policy in ("lru", "belady", "s3fifo")
            }
            print(name, capacity, row)


if __name__ == "__main__":
    main()
