"""Norms and gated MLPs in fewer operations."""

import pytest
import torch
from torch.nn import functional as F

from kvproxy.engine.kernels.fused_layers import FusedGatedMLP, FusedRMSNorm, fuse
from kvproxy.engine.kernels.packed_linear import PackedSlice, can_pack
from kvproxy.engine.worker.transfer import stack_rows
from tests.engine.models import VOCABULARY, random_model

CPU = torch.device("cpu")
GATED = ["llama", "qwen3", "gemma2", "gemma3", "llama4"]


class StrangeRMSNorm(torch.nn.Module):
    """Named like a norm by the root of the mean square, and is none."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = torch.nn.Parameter(torch.ones(32))
        self.eps = 1e-6

    def forward(self, given: torch.Tensor) -> torch.Tensor:
        return self.weight * given / given.abs().mean(-1, keepdim=True)


class StrangeMLP(torch.nn.Module):
    """Has the layers of a gated MLP, and computes something else."""

    def __init__(self) -> None:
        super().__init__()
        self.gate_proj, self.up_proj = torch.nn.Linear(32, 48), torch.nn.Linear(32, 48)
        self.down_proj = torch.nn.Linear(48, 32)
        self.act_fn = F.silu

    def forward(self, given: torch.Tensor) -> torch.Tensor:
        return self.down_proj(self.gate_proj(given) * self.act_fn(self.up_proj(given)))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("architecture", GATED)
def test_each_part_computes_what_it_stands_for(architecture: str, dtype: torch.dtype) -> None:
    if not can_pack(CPU, dtype):
        pytest.skip("this processor does not multiply bfloat16")
    torch.manual_seed(0)
    plain, fused = (random_model(architecture).to(dtype) for _ in range(2))
    with torch.no_grad():
        for each, other in zip(plain.parameters(), fused.parameters(), strict=True):
            if each.dim() == 1:
                other.copy_(each.add_(torch.randn_like(each) * 0.3))
    fuse(fused)
    places = [name for name, module in fused.named_modules() if isinstance(module, FusedRMSNorm | FusedGatedMLP)]
    assert sum(isinstance(fused.get_submodule(name), FusedGatedMLP) for name in places) >= 2
    error = 1e-5 if dtype == torch.float32 else 3e-2
    for name in places:
        own, expected = fused.get_submodule(name), plain.get_submodule(name)
        width = own.weight.shape[0] if isinstance(own, FusedRMSNorm) else own.gate_proj.in_features
        for rows in (1, 9):
            given = torch.randn(1, rows, width, dtype=dtype)
            with torch.inference_mode():
                found, wanted = own(given), expected(given)
            assert found.dtype == dtype
            assert torch.allclose(found, wanted, rtol=error, atol=error * float(wanted.abs().max())), name
            if isinstance(own, FusedGatedMLP):
                own.is_split = True
                assert torch.allclose(own(given), wanted, rtol=error, atol=error * float(wanted.abs().max())), name


def test_what_only_looks_alike_stays_as_it_is() -> None:
    class Model(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.norm, self.mlp, self.layer_norm = StrangeRMSNorm(), StrangeMLP(), torch.nn.LayerNorm(32, bias=False)

    model = Model()
    fuse(model)
    assert type(model.norm) is StrangeRMSNorm
    assert type(model.mlp) is StrangeMLP
    assert type(model.layer_norm) is torch.nn.LayerNorm


def test_layers_that_are_computed_together_do_not_take_another_input_for_theirs() -> None:
    plain, fused = random_model("qwen2-window"), random_model("qwen2-window")
    fuse(fused)
    layer, expected = fused.model.layers[0].self_attn, plain.model.layers[0].self_attn
    assert isinstance(layer.k_proj, PackedSlice)
    one, other = torch.randn(2, 1, 3, layer.q_proj.in_features)
    calls = [("q_proj", one), ("k_proj", other), ("v_proj", one), ("q_proj", other), ("q_proj", one), ("v_proj", one)]
    with torch.inference_mode():
        for name, given in calls:
            assert torch.allclose(getattr(layer, name)(given), getattr(expected, name)(given), atol=1e-5), name


def test_a_fused_model_says_what_the_model_says() -> None:
    plain, fused = random_model("gemma3"), random_model("gemma3")
    fuse(fused)
    tokens = torch.randint(0, VOCABULARY, (1, 40), generator=torch.Generator().manual_seed(1))
    with torch.inference_mode():
        assert torch.allclose(fused(tokens).logits, plain(tokens).logits, atol=1e-4)


def test_rows_that_lie_together_are_not_copied() -> None:
    whole = torch.arange(24.0).view(6, 4)
    together = stack_rows([whole[1:2], whole[2:5]])
    assert torch.equal(together, whole[1:5])
    assert together.data_ptr() == whole[1:].data_ptr()
    apart = [whole[3:4], whole[0:2], whole[2:3]]
    assert torch.equal(stack_rows(apart), torch.cat(apart))
    assert torch.equal(stack_rows([whole[:1], whole[:1]]), torch.cat([whole[:1], whole[:1]]))
    strided = [whole[0:2, :2], whole[2:3, :2]]
    assert torch.equal(stack_rows(strided), torch.cat(strided))
