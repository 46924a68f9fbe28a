"""The block cache on 2,000 requests and 8M prompt tokens: hashing, and everything else; beside vLLM's where it is there.

python -m tests.benchmarks.block_manager
"""

import random
import statistics
import time
import tracemalloc

from kvproxy.blocks.block_hash import BlockHasher
from kvproxy.blocks.manager import KVCacheManager
from kvproxy.blocks.request import CacheRequest
from tests.benchmarks.vllm_peer import vllm_run

REQUESTS, TOKENS, SIZE, VOCABULARY = 2000, 4000, 16, 130_000


def trace() -> list[list[int]]:
    """Prompts of 4,000 tokens: half of each is one of 50 shared beginnings, the rest its own."""
    chance = random.Random(0)
    shared = [[chance.randrange(VOCABULARY) for _ in range(TOKENS // 2)] for _ in range(50)]
    return [chance.choice(shared) + [chance.randrange(VOCABULARY) for _ in range(TOKENS // 2)] for _ in range(REQUESTS)]


def run(prompts: list[list[int]], num_blocks: int) -> tuple[float, float]:
    """Seconds of hashing, and of everything else (request object, lookup, allocation, free), over all prompts."""
    manager = KVCacheManager(num_blocks, SIZE, hasher=BlockHasher(seed="0"))
    hashing = rest = 0.0
    for number, prompt in enumerate(prompts):
        began = time.perf_counter()
        request = CacheRequest(str(number), prompt)
        made = time.perf_counter()
        request.update_hashes(manager.hasher, SIZE)
        hashed = time.perf_counter()
        computed = manager.get_computed_blocks(request)
        assert manager.allocate_slots(request, len(prompt) - computed.num_tokens, computed) is not None
        request.num_computed_tokens = len(prompt)
        manager.free(request)
        hashing += hashed - made
        rest += time.perf_counter() - hashed + (made - began)
    return hashing, rest


def main() -> None:
    prompts = trace()
    total = sum(map(len, prompts))
    blocks = total // SIZE
    peer = vllm_run()
    ours, theirs = [], []
    for _ in range(5):
        ours.append(run(prompts, 20_000))
        if peer is not None:
            theirs.append(peer(prompts, 20_000, SIZE))
    print(f"{REQUESTS} requests, {total / 1e6:.1f}M prompt tokens, blocks of {SIZE}, a pool of 20,000")
    for name, rounds in (("kvproxy", ours), ("vLLM", theirs)):
        if not rounds:
            print("\nvLLM is not installed here: no comparison")
            continue
        hashing = statistics.median(one for one, _ in rounds)
        rest = statistics.median(other for _, other in rounds)
        print(f"\n{name}")
        print(f"hashing                    {hashing / blocks * 1e6:8.3f} us a block")
        print(
            f"lookup + allocate + free   {rest / REQUESTS * 1e6:8.1f} us a request, {rest / blocks * 1e6:.3f} us a block"
        )
        print(f"all together               {total / (hashing + rest) / 1e6:8.2f}M prompt tokens/s")
    if theirs:
        pairs = list(zip(ours, theirs, strict=True))
        print("\nkvproxy's time over vLLM's, median of the rounds:")
        print(f"hashing                    {statistics.median(one[0] / other[0] for one, other in pairs):8.3f}")
        print(f"lookup + allocate + free   {statistics.median(one[1] / other[1] for one, other in pairs):8.3f}")
    print("\npool of      us a block    bytes a block")
    for size in (1_000, 10_000, 100_000, 1_000_000):
        tracemalloc.start()
        manager = KVCacheManager(size, SIZE)
        memory = tracemalloc.get_traced_memory()[0]
        tracemalloc.stop()
        del manager
        cost = statistics.median(run(prompts[:400], size)[1] for _ in range(3)) / (400 * TOKENS // SIZE)
        print(f"{size:>9,} {cost * 1e6:12.3f} {memory / size:16.0f}")


if __name__ == "__main__":
    main()
