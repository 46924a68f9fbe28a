"""Layers that launch fewer kernels: they compute the same, and other layers stay as they are."""

import pytest
import torch
import torch.nn.functional as F
from transformers import LlamaConfig
from transformers.models.gemma3n.modeling_gemma3n import Gemma3nRMSNorm
from transformers.models.llama.modeling_llama import LlamaMLP, LlamaRMSNorm

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


def test_norms_that_torch_does_not_fuse_stay() -> None:
    class Model(torch.nn.Module):
        dtype = torch.bfloat16

    model = Model()
    model.without_weight = Gemma3nRMSNorm(64, with_scale=False)
    model.in_float32 = LlamaRMSNorm(64)
    assert fuse_layers(model) == 0


def test_an_mlp_with_another_activation_stays() -> None:
    config = LlamaConfig(hidden_size=16, num_attention_heads=2, intermediate_size=32, hidden_act="gelu_pytorch_tanh")
    mlp = LlamaMLP(config).to(torch.bfloat16)
    mlp.dtype = torch.bfloat16
    for parameter in mlp.parameters():
        torch.nn.init.normal_(parameter, std=0.01)
    assert fuse_layers(mlp) == 0


@torch.inference_mode()
def test_a_gated_mlp_with_quantized_weights() -> None:
    class Quantized(torch.nn.Linear):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return F.linear(x, self.weight.to(x.dtype) / 500)

    model = random_model("llama")
    mlp = model.model.layers[0].mlp
    for name in ("gate_proj", "up_proj", "down_proj"):
        layer = getattr(mlp, name)
        layer.__class__ = Quantized
        layer.weight = torch.nn.Parameter(torch.randint_like(layer.weight, -127, 127).char(), requires_grad=False)
    x = torch.randn(1, 3, 64)
    expected = mlp(x)
    assert fuse_layers(model) == 2 * 3 + 1
    assert "forward" in vars(mlp)
    torch.testing.assert_close(mlp(x), expected)
