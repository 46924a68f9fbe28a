"""Parts of a model in fewer operations: where few tokens are computed at once, calling an operation costs more than it computes.

A part is replaced only where that was tried on random numbers and made no difference, so a model that looks alike and is not
keeps its own.
"""

import math
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F

from kvproxy.engine.kernels.packed_linear import PackedLinear, can_pack, is_linear, pack_linears

_ROWS = 5
_ACTIVATIONS: dict[tuple[str, str], Callable[[torch.Tensor], torch.Tensor]] = {
    ("swish", ""): F.silu,
    ("gelu", "tanh"): lambda given: F.gelu(given, approximate="tanh"),
    ("gelu", "none"): F.gelu,
    ("relu", ""): F.relu,
}
"""What oneDNN computes together with a layer, by its names."""


class FusedRMSNorm(torch.nn.Module):
    """Rows divided by the root of their mean square, and multiplied by weights; computed in float32 and rounded once.

    Args:
        weight: what names the weights.
        factor: of each column.
        eps: added to the mean square.
    """

    def __init__(self, weight: torch.nn.Parameter, factor: torch.Tensor, eps: float) -> None:
        super().__init__()
        self.weight = weight
        self._factor = factor
        self._eps = torch.tensor(eps)
        self._share = 1.0 / factor.shape[0]

    def forward(self, given: torch.Tensor) -> torch.Tensor:
        """The rows with about the length of the factors."""
        length = torch.linalg.vector_norm(given, dim=-1, keepdim=True, dtype=torch.float32)
        scale = torch.addcmul(self._eps, length, length, value=self._share).rsqrt_()
        return torch.mul(given * scale, self._factor, out=torch.empty_like(given))


class FusedGatedMLP(torch.nn.Module):
    """`down(activation(gate(x)) * up(x))`, in three operations.

    Args:
        mlp: the module that it stands for, whose layers can be packed.
        activation: oneDNN's names for it.

    Attributes:
        is_split: compute each layer by itself, for those who change what a layer gives.
    """

    def __init__(self, mlp: Any, activation: tuple[str, str]) -> None:
        super().__init__()
        self.gate_proj, self.up_proj, self.down_proj = map(PackedLinear, (mlp.gate_proj, mlp.up_proj, mlp.down_proj))
        self._activation = activation
        self.is_split = False

    def forward(self, given: torch.Tensor) -> torch.Tensor:
        """What the module computes of its input."""
        if self.is_split:
            gate = _ACTIVATIONS[self._activation](self.gate_proj(given))
            product = gate * self.up_proj(given)
        else:
            product = self.up_proj.times(given, self.gate_proj.activated(given, *self._activation))
        output: torch.Tensor = self.down_proj(product)
        return output


def fuse(model: Any) -> None:
    """Replace the norms and the gated MLPs of a model on a CPU, and pack its other linear layers."""
    fuse_norms(model)
    _replace(model, _gated_mlp)
    pack_linears(model)


def fuse_norms(model: Any) -> None:
    """Replace the norms of a model on a CPU."""
    _replace(model, _norm)


@torch.inference_mode()
def _replace(model: Any, replacement: Callable[[Any], torch.nn.Module | None]) -> None:
    for name, module in list(model.named_modules()):
        if (found := replacement(module)) is not None:
            model.set_submodule(name, found)


def _norm(module: Any) -> FusedRMSNorm | None:
    """What stands for a norm by the root of the mean square, as transformers' models have it; None for anything else."""
    eps = getattr(module, "variance_epsilon", getattr(module, "eps", None))
    names = [name for name, _ in module.named_parameters()]
    if not type(module).__name__.endswith("RMSNorm") or names != ["weight"] or type(eps) is not float:
        return None
    weight = module.weight
    if weight.dim() != 1 or not can_pack(weight.device, weight.dtype):
        return None
    given = torch.randn(_ROWS, weight.shape[0], generator=torch.Generator().manual_seed(0))
    # Small rows show whether eps is where it should be.
    given = (given * torch.logspace(-4, 2, _ROWS)[:, None]).to(weight.dtype)
    for factor in (weight.float(), 1.0 + weight.float()):
        norm = FusedRMSNorm(weight, factor.detach(), eps)
        if _alike(norm(given), module(given)):
            return norm
    return None


def _gated_mlp(module: Any) -> FusedGatedMLP | None:
    """What stands for a gated MLP; None for anything else."""
    layers = [getattr(module, name, None) for name in ("gate_proj", "up_proj", "down_proj")]
    activation = _activation(getattr(module, "act_fn", getattr(module, "activation_fn", None)))
    if activation is None or not all(map(is_linear, layers)):
        return None
    width = module.gate_proj.in_features
    given = torch.randn(1, _ROWS, width, generator=torch.Generator().manual_seed(0)).to(module.gate_proj.weight.dtype)
    mlp = FusedGatedMLP(module, activation)
    return mlp if _alike(mlp(given), module(given)) else None


def _activation(function: Any) -> tuple[str, str] | None:
    if not callable(function):
        return None
    places = torch.linspace(-8.0, 8.0, 1001)
    found = (
        names for names, known in _ACTIVATIONS.items() if torch.allclose(function(places), known(places), atol=1e-6)
    )
    return next(found, None)


def _alike(one: torch.Tensor, other: torch.Tensor) -> bool:
    """Whether two results differ by rounding only."""
    if one.shape != other.shape or one.dtype != other.dtype:
        return False
    error = max(1e-5, 3 * torch.finfo(one.dtype).eps)
    most = float(other.abs().max())
    return math.isfinite(most) and torch.allclose(one, other, rtol=error, atol=error * most)
