"""Linear layers whose weights are kept in 8 bits, each output with a scale of its own; what they compute stays in bfloat16."""

import logging
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F

from kvproxy.engine.kernels.dtype_choice import shortest_time
from kvproxy.errors import ModelUnsupported

_FEW = 160
"""Most rows that are multiplied with the 8 bits themselves; from more on it is faster to bring the weights back first."""
_log = logging.getLogger("kvproxy")


class Int8Linear(torch.nn.Module):
    """A linear layer in 8 bits.

    Args:
        linear: the layer that it stands for.
    """

    def __init__(self, linear: torch.nn.Linear) -> None:
        super().__init__()
        self.in_features, self.out_features = linear.in_features, linear.out_features
        weight = linear.weight.detach().float()
        scale = (weight.abs().amax(dim=1) / 127).clamp_min(1e-12)
        self.register_buffer("rounded", (weight / scale[:, None]).round().to(torch.int8))
        self.register_buffer("scale", scale.to(torch.bfloat16))
        self.bias = linear.bias

    def weight(self) -> torch.Tensor:
        """The weights in bfloat16, as far as 8 bits keep them."""
        rounded, scale = self.get_buffer("rounded"), self.get_buffer("scale")
        return rounded.to(scale.dtype) * scale[:, None]

    def forward(self, given: torch.Tensor) -> torch.Tensor:
        """What the layer computes of its input."""
        rows = given.flatten(0, -2)
        if rows.shape[0] > _FEW:
            return F.linear(given, self.weight(), self.bias)
        output: torch.Tensor = torch._weight_int8pack_mm(rows, self.get_buffer("rounded"), self.get_buffer("scale"))
        output = output.view(*given.shape[:-1], self.out_features)
        return output if self.bias is None else output + self.bias


def quantize(model: Any) -> float:
    """Put all linear layers of a model into 8 bits, and log what that changes.

    Returns:
        The mean over the layers of the error of their weights, relative to the weights.

    Raises:
        ModelUnsupported: the model is not on a CPU in bfloat16, where alone this is faster.
    """
    weights = next(model.parameters())
    if weights.device.type != "cpu" or weights.dtype != torch.bfloat16:
        raise ModelUnsupported(
            "weights in 8 bits are for a CPU that computes in bfloat16: leave engine.weights out, or set engine.dtype to"
            " bfloat16"
        )
    errors, plain, rounded = [], 0.0, 0.0
    for name, module in list(model.named_modules()):
        if isinstance(module, torch.nn.Linear):
            small = Int8Linear(module)
            exact = module.weight.detach().float()
            errors.append(float((small.weight().float() - exact).norm() / exact.norm().clamp_min(1e-12)))
            row = torch.rand(1, 1, module.in_features, dtype=torch.bfloat16)
            plain += shortest_time(partial(module, row))
            rounded += shortest_time(partial(small, row))
            model.set_submodule(name, small)
    error = sum(errors) / max(1, len(errors))
    _log.info(
        "%d layers have weights in 8 bits: their error is %.2f%% of the weights, and they take %.2f times as long for one token",
        len(errors), 100 * error, rounded / max(1e-9, plain),
    )  # fmt: skip
    if rounded >= plain:
        _log.warning("weights in 8 bits are not faster on this processor: leave engine.weights out")
    return error
