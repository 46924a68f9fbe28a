"""A mirror's predictions against an installed vLLM's own block cache, with one group and with several.

    python -m tests.reference.vllm_hybrid [SEEDS]

Random traffic with shared beginnings runs through vLLM's manager under eviction; its events go to a mirror as the bytes that vLLM
publishes, and every prediction is compared with what vLLM finds. vLLM keeps all windows, or only the last ones, as by default.
Written against vLLM 0.32.0; needs no GPU. Not collected by pytest.
"""

import itertools
import os
import random
import sys
from typing import Any

os.environ["PYTHONHASHSEED"] = "0"
os.environ.setdefault("VLLM_LOGGING_LEVEL", "ERROR")

import msgspec
import torch
from vllm.distributed.kv_events import KVEventBatch
from vllm.sampling_params import SamplingParams
from vllm.utils.hashing import sha256_cbor
from vllm.v1.core.kv_cache_manager import KVCacheManager
from vllm.v1.core.kv_cache_utils import get_request_block_hasher, init_none_hash
from vllm.v1.kv_cache_interface import FullAttentionSpec, KVCacheConfig, KVCacheGroupSpec, SlidingWindowSpec
from vllm.v1.request import Request

from kvproxy.blocks.block_hash import BlockHasher
from kvproxy.mirror.event_decoder import decode_batch
from kvproxy.mirror.hashed_prompt import HashedPrompt
from kvproxy.mirror.match import matched_tokens
from kvproxy.mirror.pool import MirrorState

SIZE = 4
# Each group's window in tokens, None for full attention.
SHAPES: list[list[int | None]] = [[None], [9], [None, 9], [None, 6, 6, 6], [9, None, 17]]
HASHER = BlockHasher(seed="0")


class Engine:
    """vLLM's block cache, and a mirror of it.

    Args:
        windows: of its groups.
        num_blocks: in its pool.
        interval: between windows that are kept; 0 keeps the last ones only, None all.
    """

    def __init__(self, windows: list[int | None], num_blocks: int, interval: int | None) -> None:
        init_none_hash(sha256_cbor)
        shape = {"block_size": SIZE, "num_kv_heads": 1, "head_size": 1, "dtype": torch.float32}
        specs: list[Any] = [
            FullAttentionSpec(**shape) if window is None else SlidingWindowSpec(**shape, sliding_window=window)
            for window in windows
        ]
        groups = [KVCacheGroupSpec([f"layer{number}"], spec) for number, spec in enumerate(specs)]
        self.manager = KVCacheManager(
            KVCacheConfig(
                num_blocks=num_blocks,
                kv_cache_tensors=[],
                kv_cache_groups=groups,
                prefix_cache_retention_interval=interval,
            ),
            max_model_len=1000,
            scheduler_block_size=SIZE,
            hash_block_size=SIZE,
            enable_kv_cache_events=True,
            log_stats=True,
        )
        self.state = MirrorState()
        self.live: list[Any] = []
        self._hasher = get_request_block_hasher(SIZE, sha256_cbor)
        self._started = 0

    def request(self, tokens: list[int]) -> Any:
        self._started += 1
        sampling = SamplingParams(max_tokens=1_000_000)
        return Request(str(self._started), tokens, sampling, None, block_hasher=self._hasher)

    def publish(self) -> None:
        events = self.manager.take_events()
        if events:
            self.state.apply(decode_batch(msgspec.msgpack.encode(KVEventBatch(ts=1.0, events=events))))

    def start(self, tokens: list[int]) -> bool:
        request = self.request(tokens)
        blocks, hit, request.shared_prefix_boundary = self.manager.get_computed_blocks(request)
        if self.manager.allocate_slots(request, len(tokens) - hit, hit, blocks) is None:
            return False
        request.num_computed_tokens = len(tokens)
        self.live.append(request)
        return True

    def go_on(self, place: int, token: int) -> None:
        request = self.live[place % len(self.live)]
        request.append_output_token_ids(token)
        if self.manager.allocate_slots(request, 1) is None:
            self.live.remove(request)
            self.manager.free(request)
        else:
            request.num_computed_tokens += 1

    def end(self, place: int) -> None:
        self.manager.free(self.live.pop(place % len(self.live)))

    def reused(self, tokens: list[int]) -> int:
        found: int = self.manager.get_computed_blocks(self.request(tokens))[1]
        return found

    def predicted(self, tokens: list[int]) -> int:
        return max(
            (matched_tokens(pools, HashedPrompt(tokens), HASHER) for pools in self.state.ranks().values()), default=0
        )


def run(windows: list[int | None], interval: int | None, seed: int) -> tuple[int, int, int]:
    """Predictions made, those that were too low and those that were too high."""
    chance = random.Random(seed)
    engine = Engine(windows, chance.choice([30, 60, 120]), interval)
    prompts: list[list[int]] = []
    made = low = high = 0
    for _ in range(300):
        action = chance.random()
        if engine.live and action < 0.3:
            engine.end(chance.randrange(100))
        elif engine.live and action < 0.6:
            engine.go_on(chance.randrange(100), chance.randrange(3))
        else:
            shared = chance.choice(prompts)[: chance.randrange(40)] if prompts else []
            tokens = shared + [chance.randrange(3) for _ in range(chance.randrange(1, 16))]
            if engine.start(tokens):
                prompts.append(tokens)
        engine.publish()
        if prompts:
            tokens = [*chance.choice(prompts[-12:]), 9]
            predicted, reused = engine.predicted(tokens), engine.reused(tokens)
            made += 1
            low += predicted < reused
            high += predicted > reused
    return made, low, high


def main() -> None:
    seeds = int(sys.argv[1]) if len(sys.argv) > 1 else 20
    for interval, windows in itertools.product((None, 0), SHAPES):
        runs = [run(windows, interval, seed) for seed in range(seeds)]
        made, low, high = (sum(column) for column in zip(*runs, strict=True))
        kinds = "+".join("full" if window is None else f"window {window}" for window in windows)
        kept = "all windows" if interval is None else "last windows"
        print(f"{kinds}, {kept}: {made} predictions, {low} too low, {high} too high", flush=True)


if __name__ == "__main__":
    main()
