"""Fused layers for a CPU: with few tokens, the overhead of an operation exceeds its computation.

A layer is replaced only if both compute the same output for random input.
"""

import math
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F

from kvproxy.engine.kernels.packed_linear import PackedLinear, can_pack, is_linear, pack_linears

_TEST_ROWS = 5
_ACTIVATIONS: dict[tuple[str, str], Callable[[torch.Tensor], torch.Tensor]] = {
    ("swish", ""): F.silu,
    ("gelu", "tanh"): lambda x: F.gelu(x, approximate="tanh"),
    ("gelu", "none"): F.gelu,
    ("relu", ""): F.relu,
}
"""Activations that oneDNN fuses with a linear layer, by its names."""


class FusedRMSNorm(torch.nn.Module):
    """RMS norm, computed in float32 and rounded once.

    Args:
        weight: kept as the module's parameter.
        factor: multiplies each column.
        eps: added to the mean square.
    """

    def __init__(self, weight: torch.nn.Parameter, factor: torch.Tensor, eps: float) -> None:
        super().__init__()
        self.weight = weight
        self._factor = factor
        self._eps = torch.tensor(eps)
        self._inverse_width = 1.0 / factor.shape[0]

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        length = torch.linalg.vector_norm(x, dim=-1, keepdim=True, dtype=torch.float32)
        scale = torch.addcmul(self._eps, length, length, value=self._inverse_width).rsqrt_()
        return torch.mul(x * scale, self._factor, out=torch.empty_like(x))


class FusedGatedMLP(torch.nn.Module):
    """`down(activation(gate(x)) * up(x))` in three operations.

    Args:
        mlp: the module to replace.
        activation: its names in oneDNN.

    Attributes:
        is_split: compute each layer by itself, for LoRA hooks.
    """

    def __init__(self, mlp: Any, activation: tuple[str, str]) -> None:
        super().__init__()
        self.gate_proj, self.up_proj, self.down_proj = map(PackedLinear, (mlp.gate_proj, mlp.up_proj, mlp.down_proj))
        self._activation = activation
        self.is_split = False

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if self.is_split:
            gate = _ACTIVATIONS[self._activation](self.gate_proj(x))
            product = gate * self.up_proj(x)
        else:
            product = self.up_proj.times(x, self.gate_proj.activated(x, *self._activation))
        output: torch.Tensor = self.down_proj(product)
        return output


def fuse(model: Any) -> None:
    """Fuse the norms and gated MLPs of a model on a CPU, and pack its other linear layers."""
    fuse_norms(model)
    _replace(model, _fused_mlp)
    pack_linears(model)


def fuse_norms(model: Any) -> None:
    """Fuse the norms of a model on a CPU."""
    _replace(model, _fused_norm)


@torch.inference_mode()
def _replace(model: Any, replacement: Callable[[Any], torch.nn.Module | None]) -> None:
    for name, module in list(model.named_modules()):
        if (found := replacement(module)) is not None:
            model.set_submodule(name, found)


def _fused_norm(module: Any) -> FusedRMSNorm | None:
    """Return the fused form of a transformers RMS norm, None for other modules."""
    eps = getattr(module, "variance_epsilon", getattr(module, "eps", None))
    names = [name for name, _ in module.named_parameters()]
    if not type(module).__name__.endswith("RMSNorm") or names != ["weight"] or type(eps) is not float:
        return None
    weight = module.weight
    if weight.dim() != 1 or not can_pack(weight.device, weight.dtype):
        return None
    x = torch.randn(_TEST_ROWS, weight.shape[0], generator=torch.Generator().manual_seed(0))
    # Small rows reveal a different use of eps.
    x = (x * torch.logspace(-4, 2, _TEST_ROWS)[:, None]).to(weight.dtype)
    for factor in (weight.float(), 1.0 + weight.float()):
        norm = FusedRMSNorm(weight, factor.detach(), eps)
        if _is_equal(norm(x), module(x)):
            return norm
    return None


def _fused_mlp(module: Any) -> FusedGatedMLP | None:
    """Return the fused form of a gated MLP, None for other modules."""
    layers = [getattr(module, name, None) for name in ("gate_proj", "up_proj", "down_proj")]
    activation = _activation(getattr(module, "act_fn", getattr(module, "activation_fn", None)))
    if activation is None or not all(map(is_linear, layers)):
        return None
    width = module.gate_proj.in_features
    x = torch.randn(1, _TEST_ROWS, width, generator=torch.Generator().manual_seed(0)).to(module.gate_proj.weight.dtype)
    mlp = FusedGatedMLP(module, activation)
    return mlp if _is_equal(mlp(x), module(x)) else None


def _activation(function: Any) -> tuple[str, str] | None:
    if not callable(function):
        return None
    inputs = torch.linspace(-8.0, 8.0, 1001)
    found = (
        names
        for names, candidate in _ACTIVATIONS.items()
        if torch.allclose(function(inputs), candidate(inputs), atol=1e-6)
    )
    return next(found, None)


def _is_equal(one: torch.Tensor, other: torch.Tensor) -> bool:
    """Whether two results differ only by rounding."""
    if one.shape != other.shape or one.dtype != other.dtype:
        return False
    error = max(1e-5, 3 * torch.finfo(one.dtype).eps)
    magnitude = float(other.abs().max())
    return math.isfinite(magnitude) and torch.allclose(one, other, rtol=error, atol=error * magnitude)
