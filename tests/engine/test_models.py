"""Supported models, their types, and their layer groups."""

from types import SimpleNamespace
from typing import Any

import pytest
import torch
import transformers

from kvproxy.engine.models import loader
from kvproxy.engine.models.layer_groups import group_layers, group_slot_by_layer, layer_attention_types
from kvproxy.engine.models.loader import load_model
from kvproxy.errors import ModelUnsupported
from tests.engine.models import CPU, load


def test_models_that_cannot_share_blocks_are_refused_with_the_reason() -> None:
    shape = {"vocab_size": 50, "hidden_size": 32, "intermediate_size": 32}
    shape |= {"num_hidden_layers": 2, "num_attention_heads": 2}
    scaled = transformers.Phi3Config(
        num_key_value_heads=2,
        pad_token_id=0,
        rope_parameters={
            "rope_type": "longrope",
            "rope_theta": 1e4,
            "short_factor": [1.0] * 8,
            "long_factor": [1.0] * 8,
            "original_max_position_embeddings": 20,
        },
        **shape,
    )
    both_ways = transformers.Gemma3TextConfig(
        num_key_value_heads=2, head_dim=16, use_bidirectional_attention=True, **shape
    )
    for model, reason in (
        (transformers.Phi3ForCausalLM(scaled), "longrope rotary embedding depends on the length"),
        (transformers.Gemma3ForCausalLM(both_ways), "its tokens attend to later ones"),
    ):
        with pytest.raises(ModelUnsupported, match=reason):
            load(model)
    with pytest.raises(ModelUnsupported, match="no such folder"):
        load_model("nobody/no-such-model")


@pytest.mark.parametrize(
    ("width", "supported", "dtype"), [(64, True, "float32"), (11_000, True, "bfloat16"), (11_000, False, "float32")]
)
def test_large_models_are_in_bfloat16_if_the_processor_supports_it(
    width: int, supported: bool, dtype: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.cpu, "_is_avx512_bf16_supported", lambda: supported)
    monkeypatch.setattr(torch.cpu, "_is_amx_tile_supported", lambda: False)
    model = torch.nn.Linear(width, width, device="meta")
    assert loader._fastest_dtype(model, CPU) == getattr(torch, dtype)
    assert loader._fastest_dtype(model, torch.device("cuda")) == torch.bfloat16


def config(**fields: Any) -> Any:
    return SimpleNamespace(**{"num_hidden_layers": 3} | fields)


LIMITED, WHOLE = "sliding_attention", "full_attention"


@pytest.mark.parametrize(
    ("fields", "kinds"),
    [
        ({}, [("full", 0)] * 3),
        ({"sliding_window": 8}, [("sliding_window", 8)] * 3),
        ({"sliding_window": 8, "use_sliding_window": False}, [("full", 0)] * 3),
        ({"sliding_window": 8, "layer_types": [LIMITED, WHOLE]}, [("sliding_window", 8), ("full", 0)]),
        # A limited layer without a limit sees everything.
        ({"layer_types": [LIMITED, "chunked_attention"]}, [("full", 0)] * 2),
        ({"attention_chunk_size": 16, "layer_types": ["chunked_attention"]}, [("chunked_local", 16)]),
    ],
)
def test_how_far_layers_reach(fields: dict[str, Any], kinds: list[tuple[str, int]]) -> None:
    assert layer_attention_types(config(**fields)) == kinds


@pytest.mark.parametrize(
    ("types", "groups"),
    [
        ("fff", [(0, 1, 2)]),
        ("sfssf", [(0, 3), (2,), (1, 4)]),
        ("ssssfff", [(0, 1, 2, 3), (4, 5, 6)]),
        ("ssfssfs", [(0, 4), (1, 6), (3,), (2, 5)]),
        ("sf", [(0,), (1,)]),
        ("ssff", [(0, 1), (2, 3)]),
        # Half as many again is too much for one size.
        ("sssff", [(0, 2), (1,), (3, 4)]),
    ],
)
def test_layers_share_tables_in_groups_of_a_size(types: str, groups: list[tuple[int, ...]]) -> None:
    names = [{"s": LIMITED, "f": WHOLE}[letter] for letter in types]
    found = group_layers(config(sliding_window=8, layer_types=names))
    assert [group.layers for group in found] == groups
    assert [group.index for group in found] == list(range(len(groups)))
    placed = group_slot_by_layer(found)
    assert sorted(placed) == list(range(len(types)))
    assert all(groups[group][slot] == layer for layer, (group, slot) in placed.items())
