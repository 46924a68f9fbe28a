"""The block cache on 2,000 requests and 8M prompt tokens: hashing, and all other work, beside vLLM's if vLLM is installed.

python -m tests.benchmarks.block_manager [--requests 2000] [--rounds 5]
"""

import hashlib
import random
import statistics
import time
import tracemalloc
from collections.abc import Callable

import cbor2

from kvproxy.blocks.block_hash import BlockHasher
from kvproxy.blocks.cache_request import CacheRequest
from kvproxy.blocks.manager import KVCacheManager
from tests.benchmarks.options import read_options
from tests.benchmarks.timing import interleave, median_ratio, report

TOKENS, SIZE, POOL, VOCABULARY = 4000, 16, 20_000, 130_000
Prompts = list[list[int]]
Run = Callable[[Prompts, int], tuple[float, float]]


def make_prompts(count: int) -> Prompts:
    """Return prompts of 4,000 tokens; half of each is one of 50 shared prefixes."""
    draw = random.Random(0)
    shared = [[draw.randrange(VOCABULARY) for _ in range(TOKENS // 2)] for _ in range(50)]
    return [draw.choice(shared) + [draw.randrange(VOCABULARY) for _ in range(TOKENS // 2)] for _ in range(count)]


def run_kvproxy(prompts: Prompts, num_blocks: int) -> tuple[float, float]:
    """Return the seconds of hashing, and those of requests, lookups, allocations, and frees."""
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


def load_vllm() -> Run | None:
    """Return the same work with vLLM's block cache, or None if vLLM is not installed."""
    try:
        from vllm.sampling_params import SamplingParams
        from vllm.utils.hashing import sha256_cbor
        from vllm.v1.core.kv_cache_utils import get_request_block_hasher, init_none_hash
        from vllm.v1.request import Request
    except ImportError:
        return None
    from tests.reference.vllm_trace import make_manager

    init_none_hash(sha256_cbor)

    def run(prompts: Prompts, num_blocks: int) -> tuple[float, float]:
        manager, sampling = make_manager(num_blocks, SIZE, 1_000_000), SamplingParams(max_tokens=1)
        hasher = get_request_block_hasher(SIZE, sha256_cbor)
        hashing = rest = 0.0
        for number, prompt in enumerate(prompts):
            # vLLM's constructor hashes if it gets a hasher; it is measured without.
            began = time.perf_counter()
            request = Request(str(number), prompt, sampling, None)
            made = time.perf_counter()
            request.block_hashes = hasher(request)
            hashed = time.perf_counter()
            blocks, found, _ = manager.get_computed_blocks(request)
            assert manager.allocate_slots(request, len(prompt) - found, found, blocks) is not None
            request.num_computed_tokens = len(prompt)
            manager.free(request)
            hashing += hashed - made
            rest += time.perf_counter() - hashed + (made - began)
        return hashing, rest

    return run


def compare_digest(prompts: Prompts, rounds: int) -> None:
    """Print the time of a block's hash beside a bare SHA-256 digest of the same bytes."""
    hasher, messages = BlockHasher(seed="0"), list[bytes]()
    for prompt in prompts:
        parent = hasher.none_hash
        for start in range(0, TOKENS, SIZE):
            messages.append(cbor2.dumps((parent, tuple(prompt[start : start + SIZE]), None), canonical=True))
            parent = hashlib.sha256(messages[-1]).digest()

    def digests() -> None:
        for message in messages:
            hashlib.sha256(message).digest()

    def chains() -> None:
        for prompt in prompts:
            hasher.hash_blocks(prompt, SIZE)

    found = interleave({"kvproxy": chains, "bare digest": digests}, rounds)
    report(f"sha256_cbor of a block of {SIZE} tokens", found, "bare digest", 1e6 / len(messages), "us")


def main() -> None:
    options = read_options(__doc__, requests=2000, rounds=5)
    prompts = make_prompts(options.requests)
    blocks, vllm = options.requests * TOKENS // SIZE, load_vllm()
    runs = {"kvproxy": run_kvproxy} | ({} if vllm is None else {"vLLM": vllm})
    times: dict[str, list[tuple[float, float]]] = {name: [] for name in runs}
    for _ in range(options.rounds):
        for name, run in runs.items():
            times[name].append(run(prompts, POOL))
    print("| | hashing, us per block | the rest, us per request | total, M tokens/s |\n|---|---|---|---|")
    for name, found in times.items():
        hashing, rest = map(statistics.median, zip(*found, strict=True))
        rate = options.requests * TOKENS / (hashing + rest) / 1e6
        print(f"| {name} | {hashing / blocks * 1e6:.3f} | {rest / options.requests * 1e6:.1f} | {rate:.2f} |")
    if vllm is None:
        print("vLLM is not installed in this environment")
    else:
        columns = {name: [*zip(*found, strict=True), list(map(sum, found))] for name, found in times.items()}
        ratios = (f"{median_ratio(*pair):.3f}" for pair in zip(columns["kvproxy"], columns["vLLM"], strict=True))
        print(f"time of kvproxy / vLLM: hashing, rest, total: {', '.join(ratios)}")
    compare_digest(prompts[:8], 21)
    print("\n| pool of blocks | us per block | bytes per empty block |\n|---|---|---|")
    for size in (1_000, 10_000, 100_000, 1_000_000):
        tracemalloc.start()
        manager = KVCacheManager(size, SIZE)
        memory = tracemalloc.get_traced_memory()[0]
        tracemalloc.stop()
        del manager
        seconds = statistics.median(run_kvproxy(prompts[:400], size)[1] for _ in range(3))
        print(f"| {size:,} | {seconds / (len(prompts[:400]) * TOKENS // SIZE) * 1e6:.3f} | {memory / size:.0f} |")


if __name__ == "__main__":
    main()
