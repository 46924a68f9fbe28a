"""Sentences on the prefixes that hybrid models cannot reuse."""

from typing import Any

import msgpack

from kvproxy.upstreams.mirror.apply_events import MirrorState
from kvproxy.upstreams.mirror.event_decoder import decode_batch
from kvproxy.upstreams.mirror.reuse_limits import explain_reuse_limits


def limits(*groups: dict[str, Any], hit_unit: int | None = None) -> str | None:
    state = MirrorState()
    for number, fields in enumerate(groups):
        size = fields["block_size"]
        event = {
            "type": "BlockStored",
            "block_hashes": [number],
            "parent_block_hash": None,
            "token_ids": [1] * size,
            "group_idx": number,
        }
        state.apply(decode_batch(msgpack.packb([1.0, [event | fields], 0])))
    (pools,) = state.pools_by_rank().values()
    return explain_reuse_limits(pools, hit_unit)


FULL = {"block_size": 16, "kv_cache_spec_kind": "full_attention"}


def test_models_with_small_blocks_have_no_limit_to_explain() -> None:
    window = {"block_size": 16, "kv_cache_spec_kind": "sliding_window", "kv_cache_spec_sliding_window": 512}
    assert limits(FULL) is limits(FULL, window) is None


def test_a_hybrid_model_names_its_effective_block_size() -> None:
    states = {"block_size": 2096, "kv_cache_spec_kind": "mamba"}
    text = limits(FULL | {"block_size": 1048}, states)
    assert text is not None
    assert text.startswith("a prefix below 2,096 tokens cannot be reused by this model")
    assert "state-space layers" in text


def test_the_engines_metrics_know_better_than_the_block_sizes() -> None:
    window = {"block_size": 64, "kv_cache_spec_kind": "sliding_window", "kv_cache_spec_sliding_window": 4096}
    text = limits(FULL, window, hit_unit=528)
    assert text is not None
    assert "below 528 tokens" in text
    assert "the last 4,096 tokens" in text
