"""Random requests to vLLM's block cache and to ours, compared after every operation.

    python -m tests.reference.vllm_fuzz [--runs 24] [--steps 60] [--seed 0]

Compared: hit tokens, block tables, the order of the free queue, the cached blocks, and the events. Written against vLLM
0.33.0, which must be installed; no GPU is needed. Not collected by pytest.
"""

import argparse
import os
import random
import sys
from dataclasses import dataclass, replace
from typing import Any

os.environ["PYTHONHASHSEED"] = "0"
os.environ.setdefault("VLLM_LOGGING_LEVEL", "ERROR")

import msgspec
import torch
from vllm.sampling_params import SamplingParams
from vllm.utils.hashing import sha256_cbor
from vllm.v1.core.kv_cache_manager import KVCacheManager as VLLMManager
from vllm.v1.core.kv_cache_utils import get_block_hash, get_group_id, get_request_block_hasher, init_none_hash
from vllm.v1.kv_cache_interface import (
    ChunkedLocalAttentionSpec,
    FullAttentionSpec,
    KVCacheConfig,
    KVCacheGroupSpec,
    SlidingWindowSpec,
)
from vllm.v1.request import Request

from kvproxy.blocks.cache_request import CacheRequest
from kvproxy.blocks.manager import KVCacheManager
from kvproxy.blocks.single_type_manager import GroupSpec

Difference = tuple[str, object, object]
"""What differs, vLLM's value, and ours."""


@dataclass(frozen=True)
class Case:
    groups: tuple[GroupSpec, ...]
    hash_block_size: int | None = None

    @property
    def name(self) -> str:
        names = [f"{spec.kind}{spec.block_size}" + (f"w{spec.window}" if spec.window else "") for spec in self.groups]
        interval = self.retention_interval
        unit = "" if self.hash_block_size is None else f", hashes of {self.hash_block_size}"
        return "+".join(names) + ("" if interval is None else f", retention {interval}") + unit

    @property
    def retention_interval(self) -> int | None:
        return next((s.retention_interval for s in self.groups if s.kind == "sliding_window"), None)


def full(size: int = 16) -> GroupSpec:
    return GroupSpec("full", size)


def window(size: int = 16, tokens: int = 40) -> GroupSpec:
    return GroupSpec("sliding_window", size, tokens)


SHAPES: list[tuple[tuple[GroupSpec, ...], tuple[int | None, ...]]] = [
    ((full(),), (None,)),
    ((window(),), (None, 0, 64)),
    ((window(tokens=1),), (None, 0)),
    ((GroupSpec("chunked_local", 16, 64),), (None,)),
    ((full(), full()), (None,)),
    ((full(), GroupSpec("chunked_local", 16, 64)), (None,)),
    ((full(), window()), (None, 0, 64)),
    ((window(), window(tokens=80)), (None, 0, 64)),
    ((full(), window(), window(tokens=80)), (None, 0, 64)),
    ((full(), window(tokens=1)), (None, 0)),
    # Unequal block sizes.
    ((full(32), window(8, 8)), (None, 0, 64)),
    ((full(64), window(16, 32)), (None, 0, 128)),
    ((full(16), window(32, 40)), (None, 0, 64)),
    ((full(16), full(32)), (None,)),
    ((full(16), full(32), window(8, 20)), (None, 0, 96)),
    ((window(16, 40), window(32, 70)), (None, 0, 64)),
    ((full(32), window(16, 70)), (None, 0, 64)),
]
CASES = [
    Case(tuple(replace(spec, retention_interval=interval) if spec.kind == "sliding_window" else spec for spec in shape))
    for shape, intervals in SHAPES
    for interval in intervals
] + [
    Case((full(), replace(window(), retention_interval=0)), 8),
    Case((full(32), window(8, 8)), 4),
    Case((window(16, 40), window(32, 70)), 8),
]


def vllm_spec(spec: GroupSpec) -> Any:
    shape = {"block_size": spec.block_size, "num_kv_heads": 1, "head_size": 1, "dtype": torch.float32}
    if spec.kind == "full":
        return FullAttentionSpec(**shape)
    if spec.kind == "sliding_window":
        return SlidingWindowSpec(**shape, sliding_window=spec.window)
    return ChunkedLocalAttentionSpec(**shape, attention_chunk_size=spec.window)


class Twins:
    """Both managers, and the pairs of live requests."""

    def __init__(self, case: Case, num_blocks: int) -> None:
        self.ours = KVCacheManager(
            num_blocks, groups=case.groups, record_events=True, hash_block_size=case.hash_block_size
        )
        config = KVCacheConfig(
            num_blocks=num_blocks,
            kv_cache_tensors=[],
            kv_cache_groups=[KVCacheGroupSpec([f"layer{i}"], vllm_spec(spec)) for i, spec in enumerate(case.groups)],
        )
        config.prefix_cache_retention_interval = case.retention_interval
        self.vllm = VLLMManager(
            config,
            max_model_len=8192,
            scheduler_block_size=self.ours._block_alignment,
            hash_block_size=self.ours.hash_block_size,
            enable_kv_cache_events=True,
            log_stats=True,
        )
        self.hasher = get_request_block_hasher(self.ours.hash_block_size, sha256_cbor)
        self.live: dict[str, tuple[Any, CacheRequest]] = {}
        self.partial: set[tuple[int, int]] = set()

    def start(self, id: str, tokens: list[int], rng: random.Random) -> Difference | None:
        salt = rng.choice([None, None, "s"])
        theirs = Request(id, tokens, SamplingParams(max_tokens=10_000), None, cache_salt=salt, block_hasher=self.hasher)
        mine = CacheRequest(id, tokens, cache_salt=salt)
        blocks, hit, boundary = self.vllm.get_computed_blocks(theirs)
        theirs.shared_prefix_boundary = boundary
        computed = self.ours.get_computed_blocks(mine)
        if hit != computed.num_tokens:
            return "hit tokens", hit, computed.num_tokens
        count = rng.randint(1, len(tokens) - hit)
        allocated = [
            self.vllm.allocate_slots(theirs, count, hit, blocks) is not None,
            self.ours.allocate_slots(mine, count, computed) is not None,
        ]
        if allocated[0] != allocated[1]:
            return "allocation", *allocated
        if allocated[0]:
            theirs.num_computed_tokens = mine.num_computed_tokens = hit + count
            self.live[id] = theirs, mine
        return None

    def grow(self, id: str, rng: random.Random) -> Difference | None:
        theirs, mine = self.live[id]
        if mine.num_computed_tokens == mine.num_tokens:
            token = rng.randrange(50)
            theirs.append_output_token_ids(token)
            mine.append(token)
        count = rng.randint(1, mine.num_tokens - mine.num_computed_tokens)
        allocated = [
            self.vllm.allocate_slots(theirs, count) is not None,
            self.ours.allocate_slots(mine, count) is not None,
        ]
        if allocated[0] != allocated[1]:
            return "allocation", *allocated
        if allocated[0]:
            theirs.num_computed_tokens += count
            mine.num_computed_tokens += count
        else:
            self.end(id)
        return None

    def end(self, id: str) -> None:
        theirs, mine = self.live.pop(id)
        self.vllm.free(theirs)
        self.ours.free(mine)

    def difference(self) -> Difference | None:
        for id in self.live:
            theirs, mine = self.vllm.get_block_ids(id), self.ours.get_block_ids(id)
            if [list(table) for table in theirs] != [list(table) for table in mine]:
                return f"block table of {id}", theirs, mine
        pool = self.vllm.block_pool
        free = [block.block_id for block in pool.free_block_queue.get_all_free_blocks()]
        own_free = [block.id for block in self.ours.pool.free_queue]
        if free != own_free:
            return "free queue", free, own_free
        cached = {
            block.block_id: (get_group_id(block.block_hash), get_block_hash(block.block_hash))
            for block in pool.blocks
            if block.block_hash is not None
        }
        own = {block.id: (block.group or 0, block.hash) for block in self.ours.pool.blocks if block.hash is not None}
        if cached != own:
            return "cached blocks", sorted(set(cached) - set(own)), sorted(set(own) - set(cached))
        return self._event_difference()

    def _event_difference(self) -> Difference | None:
        decode, encode = msgspec.msgpack.decode, msgspec.msgpack.encode
        theirs = _flat([decode(encode(event)) for event in self.vllm.take_events()])
        # vLLM names the end of a prompt in a full block, too, for lookups that only models with Mamba layers make.
        sizes = [group.block_size for group in self.ours.groups]
        self.partial |= {event[1:3] for event in theirs if event[3] is not None and event[3] != sizes[event[2]]}
        theirs = [event for event in theirs if event[1:3] not in self.partial]
        mine = _flat([event.as_wire() for event in self.ours.take_events()])
        return None if theirs == mine else ("events", theirs, mine)


def _flat(events: list[dict[str, Any]]) -> list[tuple[Any, ...]]:
    """Return the block hashes of events.

    The tokens are not compared: if vLLM skips blocks of a window, its event has the tokens of the skipped blocks, too.
    """
    return [
        (event["type"], hash, event["group_idx"], event.get("block_size"), event["medium"])
        for event in events
        for hash in event["block_hashes"]
    ]


def run(case: Case, seed: int, steps: int) -> Difference | None:
    rng = random.Random(seed)
    twins = Twins(case, rng.choice([40, 90, 200]))
    prefixes = [[rng.randrange(50) for _ in range(rng.randint(10, 300))] for _ in range(4)]
    for step in range(steps):
        action = rng.random()
        difference = None
        if action < 0.4 or not twins.live:
            prompt = prefixes[rng.randrange(4)]
            tail = [rng.randrange(50) for _ in range(rng.choice([0, 1, 16, rng.randint(2, 120)]))]
            difference = twins.start(
                f"r{step}", prompt[: rng.choice([len(prompt), rng.randint(1, len(prompt))])] + tail, rng
            )
        elif action < 0.75:
            difference = twins.grow(rng.choice(list(twins.live)), rng)
        else:
            twins.end(rng.choice(list(twins.live)))
        difference = difference or twins.difference()
        if difference is not None:
            return f"step {step}: {difference[0]}", *difference[1:]
    return None


def main() -> int:
    parser = argparse.ArgumentParser()
    for name, default in (("runs", 24), ("steps", 60), ("seed", 0)):
        parser.add_argument(f"--{name}", type=int, default=default)
    options = parser.parse_args()
    init_none_hash(sha256_cbor)
    failed = 0
    for case in CASES:
        differences = [
            (seed, difference)
            for seed in range(options.seed, options.seed + options.runs)
            if (difference := run(case, seed, options.steps)) is not None
        ]
        print(f"{case.name}: {len(differences)} of {options.runs} runs differ", flush=True)
        for seed, (place, theirs, mine) in differences[:1]:
            print(f"    seed {seed}, {place}\n      vLLM: {theirs}\n      ours: {mine}")
        failed += bool(differences)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
