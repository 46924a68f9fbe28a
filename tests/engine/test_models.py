"""Which models are served, and in which type."""

import pytest
import torch
import transformers

from kvproxy.engine.models import loader
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
