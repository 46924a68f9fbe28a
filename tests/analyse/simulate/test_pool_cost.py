"""KV bytes of models, and the cost of pools with tiers."""

import json
from pathlib import Path
from typing import Any

import pytest

from kvproxy.analyse.simulate.pool_cost import GIB, EngineSpeed, KVSize, kv_size, parse_tier, pool_cost
from kvproxy.analyse.simulate.trace_reader import TraceError

HEADS: dict[str, Any] = {"num_attention_heads": 8, "num_key_value_heads": 2, "head_dim": 64, "hidden_size": 512}
LAYER = 2 * 2 * 2 * 64


@pytest.mark.parametrize(
    ("config", "expected"),
    [
        ({"num_hidden_layers": 4, **HEADS}, KVSize(4 * LAYER)),
        ({"num_hidden_layers": 4, **HEADS, "torch_dtype": "float32"}, KVSize(8 * LAYER)),
        ({"text_config": {"num_hidden_layers": 4, **HEADS}}, KVSize(4 * LAYER)),
        ({"num_hidden_layers": 61, "kv_lora_rank": 512, "qk_rope_head_dim": 64}, KVSize(2 * 61 * 576)),
        ({"num_hidden_layers": 4, **HEADS, "sliding_window": 128}, KVSize(0, 4 * LAYER, 128)),
        (
            {"num_hidden_layers": 4, **HEADS, "sliding_window": 128, "use_sliding_window": False},
            KVSize(4 * LAYER, 0, 128),
        ),
        (
            {"num_hidden_layers": 6, **HEADS, "sliding_window": 128, "sliding_window_pattern": 6},
            KVSize(LAYER, 5 * LAYER, 128),
        ),
        (
            {"num_hidden_layers": 2, **HEADS, "layer_types": ["linear_attention", "full_attention"]},
            KVSize(LAYER, 0, 0, 2 * 512 * 64),
        ),
    ],
)
def test_bytes_of_models(tmp_path: Path, config: dict[str, Any], expected: KVSize) -> None:
    (tmp_path / "config.json").write_text(json.dumps(config))
    assert kv_size(str(tmp_path)) == expected == kv_size(str(tmp_path / "config.json"))


def test_a_window_counts_up_to_its_length() -> None:
    assert KVSize(100, 100, 50).bytes_per_token(25) == 200
    assert KVSize(100, 100, 50).bytes_per_token(500) == 110


def test_a_folder_that_is_no_model(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text("{}")
    with pytest.raises(TraceError, match="--bytes-per-token"):
        kv_size(str(tmp_path))


def test_a_tier_is_read_if_that_is_faster() -> None:
    speed = EngineSpeed(prefill_rate=1000.0, token_bytes=GIB / 10_000, hour_price=3.6)
    host = parse_tier("host=64@1")
    cost = pool_cost([200, 700], [host], speed, tokens=1000, requests=1)
    assert cost.hits == {"pool": 0.2, "host": 0.5}
    assert cost.ttft == pytest.approx(0.3 + 500 / 10_000)
    assert cost.price == pytest.approx(cost.ttft / 1000 * 1e3)
    slow = pool_cost([200, 700], [parse_tier("redis=64@0.01")], speed, tokens=1000, requests=1)
    assert slow.ttft == pytest.approx(0.8)
    for text in ("tape=3", "host=", "host=-1", "disk=nan"):
        with pytest.raises(ValueError, match=r"tape|host|float|nan"):
            parse_tier(text)
