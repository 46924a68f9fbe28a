"""Layers that launch fewer kernels on CUDA: transformers computes an RMS norm in eight, and an activation with a gate in two."""

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
import triton
import triton.language as tl

_BLOCK = 2048
Forward = Callable[[torch.Tensor], torch.Tensor]


@torch.inference_mode()
def fuse_layers(model: Any) -> int:
    """Replace the `forward` of RMS norms and gated MLPs; return how many. A layer that would compute something else stays."""
    fused = 0
    for module in model.modules():
        replacement = _fused_norm(module, model.dtype) or _fused_mlp(module)
        if replacement is not None and _agree(module, *replacement, model.dtype):
            module.forward = replacement[0]
            fused += 1
    return fused


def _fused_norm(module: Any, dtype: torch.dtype) -> tuple[Forward, int] | None:
    eps = getattr(module, "variance_epsilon", getattr(module, "eps", None))
    if not type(module).__name__.endswith("RMSNorm") or not isinstance(eps, float):
        return None
    weight = getattr(module, "weight", None)
    # torch does not fuse a norm of two types.
    if weight is None or weight.dim() != 1 or weight.dtype != dtype:
        return None
    return lambda x: F.rms_norm(x, weight.shape, weight, eps), len(weight)


def _fused_mlp(module: Any) -> tuple[Forward, int] | None:
    if not all(isinstance(getattr(module, f"{name}_proj", None), torch.nn.Linear) for name in ("gate", "up", "down")):
        return None
    # Near zero, other activations agree within the error of bfloat16.
    if type(getattr(module, "act_fn", None)).__name__ not in ("SiLU", "SiLUActivation"):
        return None
    return partial(_gated_mlp, module), module.gate_proj.in_features


def _gated_mlp(module: Any, x: torch.Tensor) -> torch.Tensor:
    output: torch.Tensor = module.down_proj(silu_times(module.gate_proj(x), module.up_proj(x)))
    return output


def _agree(module: Any, forward: Forward, width: int, dtype: torch.dtype) -> bool:
    # The weights of a quantized layer are integers.
    x = torch.randn(1, 4, width, dtype=dtype, device=next(module.parameters()).device)
    expected = module(x)
    error = (forward(x) - expected).norm() / expected.norm()
    return bool(error < 4 * torch.finfo(x.dtype).eps)


def silu_times(gate: torch.Tensor, up: torch.Tensor) -> torch.Tensor:
    """Return `silu(gate) * up`, rounded as by torch. Both tensors must be contiguous."""
    output = torch.empty_like(up)
    _silu_times[(triton.cdiv(up.numel(), _BLOCK),)](gate, up, output, up.numel(), BLOCK=_BLOCK)
    return output


@triton.jit  # type: ignore[untyped-decorator]
def _silu_times(gate, up, output, count, BLOCK: tl.constexpr):  # type: ignore[no-untyped-def]
    at = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    is_inside = at < count
    value = tl.load(gate + at, mask=is_inside).to(tl.float32)
    factor = tl.load(up + at, mask=is_inside)
    silu = (value / (1.0 + tl.exp(-value))).to(factor.dtype)
    product = silu.to(tl.float32) * factor.to(tl.float32)
    tl.store(output + at, product.to(factor.dtype), mask=is_inside)
