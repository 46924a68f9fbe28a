"""Cached tokens of Gemma 3 270M's KV cache groups: our block cache beside an installed vLLM's own, chat by chat.

    python -m tests.reference.vllm_groups [CHATS] [BLOCKS] [SEED]

Chats with shared beginnings go through both managers, one at a time: a prompt in steps of 512 tokens, then some tokens of an
answer. Pools are small, so that blocks are evicted. Written against vLLM 0.32.0; not collected by pytest.
"""

import os
import random
import sys

os.environ["PYTHONHASHSEED"] = "0"
os.environ.setdefault("VLLM_LOGGING_LEVEL", "ERROR")

import torch
from vllm.sampling_params import SamplingParams
from vllm.utils.hashing import sha256_cbor
from vllm.v1.core.kv_cache_manager import KVCacheManager as Theirs
from vllm.v1.core.kv_cache_utils import get_request_block_hasher, init_none_hash
from vllm.v1.kv_cache_interface import FullAttentionSpec, KVCacheConfig, KVCacheGroupSpec, SlidingWindowSpec
from vllm.v1.request import Request

from kvproxy.blocks.cache_request import CacheRequest
from kvproxy.blocks.manager import KVCacheManager as Ours
from kvproxy.blocks.single_type_manager import CachedWindows, GroupSpec
from tests.reference.integrity import check_integrity

SIZE, WINDOW, STEP = 32, 512, 512
INTERVALS: dict[CachedWindows, int | None] = {"last": 0, "all": None}
"""vLLM's `--prefix-cache-retention-interval` for what is kept of windows; its default is 0."""


def make(blocks: int, kept: CachedWindows) -> tuple[Theirs, Ours]:
    """Five groups with a window and one without, in the order of the model's layers."""
    init_none_hash(sha256_cbor)
    shape = {"block_size": SIZE, "num_kv_heads": 1, "head_size": 1, "dtype": torch.float32}
    specs = [*(SlidingWindowSpec(**shape, sliding_window=WINDOW) for _ in range(5)), FullAttentionSpec(**shape)]
    groups = [KVCacheGroupSpec([f"layer{number}"], spec) for number, spec in enumerate(specs)]
    config = KVCacheConfig(
        num_blocks=blocks, kv_cache_tensors=[], kv_cache_groups=groups, prefix_cache_retention_interval=INTERVALS[kept]
    )
    theirs = Theirs(config, max_model_len=4096, scheduler_block_size=SIZE, hash_block_size=SIZE, log_stats=True)
    own = [*(GroupSpec("sliding_window", SIZE, WINDOW, kept) for _ in range(5)), GroupSpec("full", SIZE)]
    return theirs, Ours(blocks, groups=own)


def their_chat(manager: Theirs, id: str, prompt: list[int], answer: list[int]) -> int:
    hasher = get_request_block_hasher(SIZE, sha256_cbor)
    request = Request(id, prompt, SamplingParams(max_tokens=1000), None, block_hasher=hasher)
    blocks, cached, request.shared_prefix_boundary = manager.get_computed_blocks(request)
    count = min(STEP, len(prompt) - cached)
    assert manager.allocate_slots(request, count, cached, blocks) is not None
    request.num_computed_tokens = cached + count
    left = list(answer)
    while request.num_computed_tokens < len(prompt) or left:
        if request.num_computed_tokens == request.num_tokens:
            request.append_output_token_ids(left.pop(0))
        count = min(STEP, request.num_tokens - request.num_computed_tokens)
        assert manager.allocate_slots(request, count) is not None
        request.num_computed_tokens += count
    manager.free(request)
    return int(cached)


def our_chat(manager: Ours, id: str, prompt: list[int], answer: list[int]) -> int:
    request = CacheRequest(id, prompt)
    found = manager.get_computed_blocks(request)
    count = min(STEP, len(prompt) - found.num_tokens)
    assert manager.allocate_slots(request, count, found, delay_cache_blocks=True) is not None
    request.num_computed_tokens = found.num_tokens + count
    manager.cache_blocks(request, request.num_computed_tokens)
    left = list(answer)
    while request.num_computed_tokens < len(prompt) or left:
        if request.num_computed_tokens == request.num_tokens:
            request.append(left.pop(0))
        count = min(STEP, request.num_tokens - request.num_computed_tokens)
        assert manager.allocate_slots(request, count, delay_cache_blocks=True) is not None
        request.num_computed_tokens += count
        manager.cache_blocks(request, request.num_computed_tokens)
    manager.free(request)
    check_integrity(manager)
    return found.num_tokens


def differing(chats: int, blocks: int, seed: int, kept: CachedWindows) -> int:
    """How many chats differ; prints what was seen."""
    chance = random.Random(seed)
    theirs, ours = make(blocks, kept)
    systems = [[chance.randrange(50_000) for _ in range(chance.randrange(40, 1500))] for _ in range(6)]
    talks: list[list[int]] = []
    wrong = cached = 0
    for number in range(chats):
        begun = chance.choice(talks) if talks and chance.random() < 0.5 else chance.choice(systems)
        prompt = (begun + [chance.randrange(50_000) for _ in range(chance.randrange(5, 200))])[:3000]
        answer = [chance.randrange(50_000) for _ in range(chance.randrange(1, 60))]
        found = [their_chat(theirs, str(number), prompt, answer), our_chat(ours, str(number), prompt, answer)]
        wrong += found[0] != found[1]
        cached += found[0]
        talks.append(prompt + answer)
    print(
        f"{chats} chats, {blocks} blocks, {kept}: {cached} tokens cached, {ours.pool.num_evictions} evictions;"
        f" {wrong} chats differ"
    )
    return wrong


def main() -> int:
    chats, blocks, seed = (int(given) for given in [*sys.argv[1:], *("300", "800", "0")[len(sys.argv) - 1 :]])
    wrong = sum(differing(chats, blocks, seed, kept) for kept in INTERVALS)
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
