"""Linear layers whose weights lie in memory as the processor's kernels read them.

torch brings the weights of a layer into that order with every call, and on some processors multiplies float32 with kernels
that are slow there. oneDNN, which is part of torch, does it once: answers take half as long or less.
"""

from typing import Any

import torch
import xxhash


class PackedLinear(torch.nn.Module):
    """A linear layer with packed weights. It can only be computed with: they cannot be read back.

    Args:
        linear: the layer that it stands for.

    Attributes:
        digest: of the weights, for those who tell models apart.
    """

    digest: torch.Tensor

    def __init__(self, linear: torch.nn.Linear) -> None:
        super().__init__()
        self.in_features, self.out_features = linear.in_features, linear.out_features
        weight = linear.weight.detach()
        self.bias = linear.bias
        self._packed = torch.ops.mkldnn._reorder_linear_weight(weight)
        digest = xxhash.xxh3_128_digest(weight.contiguous().flatten().view(torch.uint8).numpy().data)
        self.register_buffer("digest", torch.frombuffer(bytearray(digest), dtype=torch.uint8))

    def forward(self, given: torch.Tensor) -> torch.Tensor:
        """What the layer computes of its input."""
        output: torch.Tensor = torch.ops.mkldnn._linear_pointwise(given, self._packed, self.bias, "none", [], "")
        return output


def can_pack(device: torch.device, dtype: torch.dtype) -> bool:
    """Whether weights of a number format can be packed on a device."""
    if device.type != "cpu" or not torch._C._has_mkldnn:
        return False
    return dtype == torch.float32 or (dtype == torch.bfloat16 and bool(torch.ops.mkldnn._is_mkldnn_bf16_supported()))


@torch.inference_mode()
def packed(linear: torch.nn.Linear) -> torch.nn.Module:
    """A linear layer with packed weights; the layer itself where they cannot be packed."""
    return PackedLinear(linear) if can_pack(linear.weight.device, linear.weight.dtype) else linear


def pack(model: Any) -> None:
    """Pack the weights of a model's linear layers, where that can be done."""
    for name, module in list(model.named_modules()):
        # A class that is derived from it may compute something else.
        if type(module) is torch.nn.Linear:
            model.set_submodule(name, packed(module))
