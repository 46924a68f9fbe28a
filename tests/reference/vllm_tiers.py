"""Records KV events and lookups of vLLM's offloading, for `tests/upstreams/mirror/test_tier_lookups.py`.

    python -m tests.reference.vllm_tiers FOLDER

Lookups are vLLM's own: `KVCacheManager`, then `OffloadingConnectorScheduler` with `CPUOffloadingManager`, or
`SimpleCPUOffloadScheduler`. No GPU and no model are needed: copies between media succeed at once. Written against vLLM 0.32,
which must be installed. Not collected by pytest.
"""

import gzip
import os
import random
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

os.environ["PYTHONHASHSEED"] = "0"
os.environ.setdefault("VLLM_LOGGING_LEVEL", "ERROR")

import msgspec
import torch
from vllm.distributed.kv_events import BlockStored, KVEventBatch
from vllm.distributed.kv_transfer.kv_connector.v1.offloading.scheduler import OffloadingConnectorScheduler
from vllm.sampling_params import SamplingParams
from vllm.utils.hashing import sha256_cbor
from vllm.v1.core.kv_cache_manager import KVCacheManager
from vllm.v1.core.kv_cache_utils import (
    get_request_block_hasher,
    init_none_hash,
    make_block_hash_with_group_id,
    maybe_convert_block_hash,
)
from vllm.v1.kv_cache_interface import (
    FullAttentionSpec,
    KVCacheConfig,
    KVCacheGroupSpec,
    KVCacheTensor,
    SlidingWindowSpec,
)
from vllm.v1.kv_offload.base import OffloadingKVEventsConfig
from vllm.v1.kv_offload.cpu.manager import CPUOffloadingManager
from vllm.v1.request import Request
from vllm.v1.simple_kv_offload.manager import SimpleCPUOffloadScheduler

SIZE = 4
LOOKUPS = 500


@dataclass(frozen=True)
class Case:
    """`windows` are the groups' windows in tokens; None is full attention. `chunk` is in blocks."""

    name: str
    windows: tuple[int | None, ...] = (None,)
    chunk: int = 1
    is_described: bool = False
    is_simple: bool = False


CASES = [
    Case("offloading"),
    Case("offloading-chunks", chunk=4),
    Case("offloading-described", chunk=1, is_described=True),
    Case("offloading-described-chunks", chunk=4, is_described=True),
    Case("offloading-window", (None, 9)),
    Case("simple", is_simple=True),
    Case("simple-window", (None, 9), is_simple=True),
]


def cache_config(case: Case, num_blocks: int) -> KVCacheConfig:
    shape: dict[str, Any] = {"block_size": SIZE, "num_kv_heads": 1, "head_size": 1, "dtype": torch.float32}
    specs = [
        FullAttentionSpec(**shape) if window is None else SlidingWindowSpec(**shape, sliding_window=window)
        for window in case.windows
    ]
    groups = [KVCacheGroupSpec([f"layer{index}"], spec) for index, spec in enumerate(specs)]
    tensor = KVCacheTensor(size=num_blocks * 1024, layers=["layer0"], layer_stride=1024, block_stride=1024, offset=0)
    return KVCacheConfig(num_blocks=num_blocks, kv_cache_tensors=[tensor], kv_cache_groups=groups)


class Offloading:
    def __init__(self, case: Case, config: KVCacheConfig, num_chunks: int) -> None:
        self.manager = CPUOffloadingManager(num_chunks, enable_events=True)
        groups = [SimpleNamespace(group_id=index, tokens_per_block=SIZE) for index in range(len(case.windows))]
        spec = SimpleNamespace(
            config=SimpleNamespace(groups=groups),
            blocks_per_chunk=case.chunk,
            tokens_per_block=[SIZE] * len(groups),
            tokens_per_hash=SIZE,
            offload_prompt_only=False,
            get_manager=lambda: self.manager,
            kv_events_config=OffloadingKVEventsConfig(True, case.is_described),
        )
        self.connector = OffloadingConnectorScheduler(spec, vllm_config(), config)

    def lookup(self, request: Request, computed: int) -> int:
        self.connector.on_new_request(request)
        found, _ = self.connector.get_num_new_matched_tokens(request, computed)
        assert found is not None
        return found

    def store(self, request: Request, rng: random.Random, blocks: Any) -> None:
        """Store the chunks of a request that was looked up."""
        status = self.connector._req_status[request.request_id]
        status.update_offload_keys()
        for group, state in zip(self.connector.config.kv_group_configs, status.group_states, strict=True):
            keys = state.offload_keys if rng.random() < 0.8 else state.offload_keys[: rng.randrange(8)]
            if not keys or (stored := self.manager.prepare_store(keys, status.req_context)) is None:
                continue
            for index, key in enumerate(state.offload_keys):
                if key in stored.keys_to_store:
                    self.connector._events_tracker.record_store(request, group, index, key)
            self.manager.complete_store(stored.keys_to_store, status.req_context)

    def take_events(self) -> list[Any]:
        return list(self.connector.take_events())


class SimpleOffloading:
    def __init__(self, case: Case, config: KVCacheConfig, num_blocks: int) -> None:
        capacity = config.kv_cache_tensors[0].size * num_blocks // config.num_blocks
        self.scheduler = SimpleCPUOffloadScheduler(vllm_config(), config, capacity, SIZE, SIZE)
        self.case = case

    def lookup(self, request: Request, computed: int) -> int:
        found, _ = self.scheduler.get_num_new_matched_tokens(request, computed)
        if (pending := self.scheduler._pending_cpu_hits.pop(request.request_id, None)) is not None:
            self.scheduler._free_pending_cpu_hit(pending)
        assert found is not None
        return found

    def store(self, request: Request, rng: random.Random, blocks: tuple[list[Any], ...]) -> None:
        pool = self.scheduler.cpu_block_pool
        for group, table in enumerate(blocks):
            for index, digest in enumerate(request.block_hashes[: len(table)]):
                key = make_block_hash_with_group_id(digest, group)
                is_cached = pool.get_cached_block(digest, [group]) is not None
                if is_cached or table[index].is_null or pool.get_num_free_blocks() < 2 or rng.random() < 0.05:
                    continue
                (block,) = pool.get_new_blocks(1)
                pool._insert_block_hash(key, block, SIZE)
                pool.free_blocks([block])
                window = self.case.windows[group]
                parent = maybe_convert_block_hash(request.block_hashes[index - 1]) if index else None
                pool.kv_event_queue.append(
                    BlockStored(
                        block_hashes=[maybe_convert_block_hash(digest)],
                        parent_block_hash=parent,
                        token_ids=list(request.all_token_ids[index * SIZE : (index + 1) * SIZE]),
                        block_size=SIZE,
                        lora_id=None,
                        medium="CPU",
                        lora_name=None,
                        group_idx=group,
                        kv_cache_spec_kind="full_attention" if window is None else "sliding_window",
                        kv_cache_spec_sliding_window=window,
                        locality="LOCAL",
                    )
                )

    def take_events(self) -> list[Any]:
        return list(self.scheduler.take_events())


def vllm_config() -> Any:
    return SimpleNamespace(
        cache_config=SimpleNamespace(prefix_cache_retention_interval=None, enable_prefix_caching=True),
        speculative_config=None,
        parallel_config=SimpleNamespace(world_size=1, decode_context_parallel_size=1),
        kv_events_config=SimpleNamespace(enable_kv_cache_events=True),
        model_config=SimpleNamespace(max_model_len=8192),
        max_in_flight_tokens=8192,
        num_prefill_lookahead_tokens=0,
        scheduler_config=SimpleNamespace(max_num_batched_tokens=8192),
    )


def record(case: Case, seed: int) -> Iterator[list[Any]]:
    """Yield `["events", payload]`, and `["lookup", tokens, salt, tokens on the GPU, tokens in all]`."""
    rng = random.Random(seed)
    config = cache_config(case, 90 * len(case.windows))
    gpu = KVCacheManager(
        config, max_model_len=8192, scheduler_block_size=SIZE, hash_block_size=SIZE, enable_kv_cache_events=True
    )
    offloaded = 70 if case.chunk > 1 else 260 * len(case.windows)
    cpu = SimpleOffloading(case, config, offloaded) if case.is_simple else Offloading(case, config, offloaded)
    hasher = get_request_block_hasher(SIZE, sha256_cbor)
    prefixes = [[rng.randrange(200) for _ in range(rng.randint(10, 90))] for _ in range(8)]
    timestamp = 0.0
    for number in range(LOOKUPS):
        prefix = rng.choice(prefixes)
        tokens = prefix[: rng.choice([len(prefix), rng.randint(1, len(prefix))])]
        tokens = tokens + [rng.randrange(200) for _ in range(rng.choice([0, 1, SIZE, rng.randint(2, 40)]))]
        salt = rng.choice([None, None, None, "s"])
        request = Request(
            f"r{number}", tokens, SamplingParams(max_tokens=10_000), None, cache_salt=salt, block_hasher=hasher
        )
        blocks, hit, boundary = gpu.get_computed_blocks(request)
        request.shared_prefix_boundary = boundary
        yield ["lookup", tokens, salt, hit, hit + cpu.lookup(request, hit)]
        allocated = gpu.allocate_slots(request, len(tokens) - hit, hit, blocks)
        assert allocated is not None
        request.num_computed_tokens = len(tokens)
        events = gpu.take_events()
        cpu.store(request, rng, gpu.get_blocks(request.request_id).blocks)
        gpu.free(request)
        timestamp += 1.0
        batch = KVEventBatch(ts=timestamp, events=[*events, *cpu.take_events()], data_parallel_rank=0)
        yield ["events", msgspec.msgpack.encode(batch)]


def main() -> int:
    folder = Path(sys.argv[1])
    folder.mkdir(exist_ok=True)
    init_none_hash(sha256_cbor)
    for case in CASES:
        steps = list(record(case, 1))
        loads = sum(step[4] > step[3] for step in steps if step[0] == "lookup")
        data = gzip.compress(msgspec.msgpack.encode([list(case.windows), steps]), mtime=0)
        (folder / f"{case.name}.msgpack.gz").write_bytes(data)
        print(f"{case.name}: {loads} of {LOOKUPS} lookups load blocks, {len(data):,} bytes", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
