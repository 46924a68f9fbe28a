"""Layers that launch fewer kernels: they compute the same, and other layers stay as they are."""

import pytest
import torch
import torch.nn.functional as F

from kvproxy.engine.models.fused_layers import fuse_layers, silu_times
from tests.engine.models import random_model


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("shape", [(1, 1, 96), (2, 3, 5000)])
def test_an_activation_with_a_gate(shape: tuple[int, ...], dtype: torch.dtype) -> None:
    torch.manual_seed(0)
    gate, up = (torch.randn(shape).to(dtype) * 4 for _ in range(2))
    # Triton's interpreter truncates instead of rounding.
    torch.testing.assert_close(silu_times(gate, up), F.silu(gate) * up, rtol=4 * torch.finfo(dtype).eps, atol=1e-6)


@pytest.mark.parametrize(
    ("family", "fused"),
    [
        ("llama", 2 * 3 + 1),
        ("qwen3", 2 * 5 + 1),
        # Its norms multiply by weight + 1, and its activation is GELU.
        ("gemma2", 0),
        ("gpt-neox", 0),
    ],
)
@torch.inference_mode()
def test_a_model_computes_the_same(family: str, fused: int) -> None:
    model = random_model(family)
    for name, parameter in model.named_parameters():
        if "norm" in name:
            torch.nn.init.normal_(parameter, std=0.2)
    tokens = torch.arange(20)[None]
    expected = model(tokens).logits
    assert fuse_layers(model) == fused
    torch.testing.assert_close(model(tokens).logits, expected, rtol=1e-4, atol=1e-5)
