"""Conformance traces carried out by an installed vLLM: where the recorded results come from, and how to make more.

    python -m tests.reference.vllm_trace TRACE > EXPECTED

Written against vLLM 0.33.0, whose block cache runs without a GPU. Not collected by pytest.
"""

import json
import os
import sys
from pathlib import Path
from typing import Any

os.environ["PYTHONHASHSEED"] = "0"
os.environ.setdefault("VLLM_LOGGING_LEVEL", "ERROR")

import torch
from vllm.lora.request import LoRARequest
from vllm.multimodal.inputs import MultiModalFeatureSpec, PlaceholderRange
from vllm.sampling_params import SamplingParams
from vllm.utils.hashing import sha256_cbor
from vllm.v1.core.kv_cache_manager import KVCacheManager
from vllm.v1.core.kv_cache_utils import get_request_block_hasher, init_none_hash
from vllm.v1.kv_cache_interface import FullAttentionSpec, KVCacheConfig, KVCacheGroupSpec
from vllm.v1.request import Request

from tests.reference.naive_trace import NaiveTrace, crc, segment


def make_manager(num_blocks: int, block_size: int, max_model_len: int, *, events: bool = False) -> KVCacheManager:
    """vLLM's manager with one full-attention group."""
    spec = FullAttentionSpec(block_size=block_size, num_kv_heads=1, head_size=1, dtype=torch.float32)
    config = KVCacheConfig(
        num_blocks=num_blocks, kv_cache_tensors=[], kv_cache_groups=[KVCacheGroupSpec(["layer"], spec)]
    )
    return KVCacheManager(
        config,
        max_model_len=max_model_len,
        scheduler_block_size=block_size,
        hash_block_size=block_size,
        enable_kv_cache_events=events,
        log_stats=True,
    )


class VLLMTrace(NaiveTrace):
    """The plain model's reading of a trace, with vLLM's manager in place of its lists."""

    def __init__(self, header: dict[str, Any]) -> None:
        super().__init__(header, "0")
        init_none_hash(sha256_cbor)
        self.manager = make_manager(self.num_blocks, self.size, header["max_model_len"], events=True)
        self.hasher = get_request_block_hasher(self.size, sha256_cbor)

    def start(self, declared: dict[str, Any], count: int) -> None:
        tokens = [token for seed, length in declared["segs"] for token in segment(seed, length, self.vocab)]
        lora = declared.get("lora")
        features = [
            MultiModalFeatureSpec(None, "image", name, PlaceholderRange(offset, length))
            for name, offset, length in declared.get("mm") or []
        ]
        vllm = Request(
            declared["id"],
            tokens,
            SamplingParams(max_tokens=1_000_000),
            None,
            mm_features=features,
            lora_request=LoRARequest(lora[0], 1, lora[1]) if lora else None,
            cache_salt=declared.get("salt"),
            block_hasher=self.hasher,
        )
        request = declared | {"vllm": vllm, "out": segment(*declared["out"], self.vocab), "prompt": len(tokens)}
        blocks, hit, _ = self.manager.get_computed_blocks(vllm)
        count = min(count, len(tokens) - hit)
        if self.manager.allocate_slots(vllm, count, hit, blocks) is None:
            self.report(request | {"computed": 0}, "rejected", hit, 0)
            return
        vllm.num_computed_tokens = hit + count
        self.queries += len(tokens)
        self.hits += hit
        request |= {"computed": hit + count, "tokens": vllm._all_token_ids, "hit": hit}
        self.live[request["id"]] = request | {"ids0": crc(self.table(request))}

    def table(self, request: dict[str, Any]) -> list[int]:
        ids: list[int] = self.manager.get_block_ids(request["id"])[0]
        return ids

    def grow(self, request: dict[str, Any], count: int) -> bool:
        vllm = request["vllm"]
        # The reader of the trace has appended the token to vLLM's own list; its other half is done here.
        if vllm.num_tokens < len(request["tokens"]):
            raise AssertionError("vLLM keeps another list of tokens")
        vllm.update_block_hashes()
        if self.manager.allocate_slots(vllm, count) is None:
            return False
        vllm.num_computed_tokens += count
        request["computed"] += count
        return True

    def end(self, request: dict[str, Any], status: str) -> None:
        request["vllm"].update_block_hashes()
        self.report(request, status, request["hit"], request["ids0"])
        self.manager.free(request["vllm"])
        del self.live[request["id"]]

    def hashes(self, request: dict[str, Any]) -> list[bytes]:
        hashes: list[bytes] = request["vllm"].block_hashes
        return hashes

    def reset(self) -> None:
        self.manager.reset_prefix_cache()

    def results(self) -> list[str]:
        for event in self.manager.take_events():
            kind = type(event).__name__
            self.stored += len(event.block_hashes) if kind == "BlockStored" else 0
            self.removed += len(event.block_hashes) if kind == "BlockRemoved" else 0
            self.cleared += kind == "AllBlocksCleared"
        pool = self.manager.block_pool
        self.free = [block.block_id for block in pool.free_block_queue.get_all_free_blocks()]
        self.copies = {key: [] for key in pool.cached_block_hash_to_block._cache}
        return super().results()


def main() -> None:
    steps = [json.loads(line) for line in Path(sys.argv[1]).read_text().splitlines()]
    trace = VLLMTrace(steps[0])
    for step in steps[1:]:
        trace.apply(step)
    print("\n".join(trace.results()))


if __name__ == "__main__":
    main()
