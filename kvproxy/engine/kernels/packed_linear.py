"""Linear layers whose weights lie in memory as the processor's kernels read them.

torch brings the weights of a layer into that order with every call, and on some processors multiplies float32 with kernels
that are slow there. oneDNN, which is part of torch, does it once: answers take half as long or less.
"""

from collections.abc import Sequence
from typing import Any

import torch
import xxhash

_TOGETHER = ("q_proj", "k_proj", "v_proj")
"""Layers that attention calls one after the other, with the same input."""


class PackedModule(torch.nn.Module):
    """What stands for a linear layer. It can only be computed with: the weights cannot be read back.

    Args:
        linear: the layer.

    Attributes:
        digest: of the weights, for those who tell models apart.
    """

    digest: torch.Tensor

    def __init__(self, linear: torch.nn.Linear) -> None:
        super().__init__()
        self.in_features, self.out_features = linear.in_features, linear.out_features
        content = linear.weight.detach().contiguous().flatten().view(torch.uint8).numpy().data
        digest = bytearray(xxhash.xxh3_128_digest(content))
        self.register_buffer("digest", torch.frombuffer(digest, dtype=torch.uint8))


class PackedLinear(PackedModule):
    """A linear layer with packed weights."""

    def __init__(self, linear: torch.nn.Linear) -> None:
        super().__init__(linear)
        self.bias = linear.bias
        self._packed = torch.ops.mkldnn._reorder_linear_weight(linear.weight.detach())

    def forward(self, given: torch.Tensor) -> torch.Tensor:
        """What the layer computes of its input."""
        return self.activated(given, "none")

    def activated(self, given: torch.Tensor, activation: str, algorithm: str = "") -> torch.Tensor:
        """What an activation makes of the layer's output; the names are oneDNN's."""
        output: torch.Tensor = torch.ops.mkldnn._linear_pointwise(
            given, self._packed, self.bias, activation, [], algorithm
        )
        return output

    def times(self, given: torch.Tensor, factor: torch.Tensor) -> torch.Tensor:
        """The layer's output times a tensor of its shape."""
        output: torch.Tensor = torch.ops.mkldnn._linear_pointwise.binary(given, factor, self._packed, self.bias, "mul")
        return output


class PackedSlice(PackedModule):
    """A linear layer that is computed together with others, when the first of them is called.

    Args:
        linear: the layer.
        whole: computes all of them.
        place: which of them this is.
    """

    def __init__(self, linear: torch.nn.Linear, whole: "_Whole", place: int) -> None:
        super().__init__(linear)
        self._whole = whole
        self._place = place

    def forward(self, given: torch.Tensor) -> torch.Tensor:
        """What the layer computes of its input."""
        return self._whole.part(given, self._place)


class _Whole:
    """Layers with the same input as one layer, whose output is kept until the last of them was asked for."""

    def __init__(self, linears: Sequence[torch.nn.Linear]) -> None:
        self._sizes = [linear.out_features for linear in linears]
        first = linears[0]
        whole = torch.nn.Linear(
            first.in_features, sum(self._sizes), bias=first.bias is not None, dtype=first.weight.dtype
        )
        whole.load_state_dict(
            {name: torch.cat([linear.state_dict()[name] for linear in linears]) for name in first.state_dict()}
        )
        self._linear = PackedLinear(whole)
        self._given: torch.Tensor | None = None
        self._parts: Sequence[torch.Tensor] = ()

    def part(self, given: torch.Tensor, place: int) -> torch.Tensor:
        # Another tensor is another input, even where it lies at the same place.
        if place == 0 or given is not self._given:
            self._given, self._parts = given, self._linear(given).split(self._sizes, dim=-1)
        part = self._parts[place]
        if place == len(self._sizes) - 1:
            self._given, self._parts = None, ()
        return part


def can_pack(device: torch.device, dtype: torch.dtype) -> bool:
    """Whether weights of a number format can be packed on a device."""
    if device.type != "cpu" or not torch._C._has_mkldnn:
        return False
    return dtype == torch.float32 or (dtype == torch.bfloat16 and bool(torch.ops.mkldnn._is_mkldnn_bf16_supported()))


def is_linear(module: Any) -> bool:
    """Whether a module is a linear layer that can be packed."""
    # A class that is derived from it may compute something else.
    return type(module) is torch.nn.Linear and can_pack(module.weight.device, module.weight.dtype)


@torch.inference_mode()
def pack_linear(linear: torch.nn.Linear) -> torch.nn.Module:
    """A linear layer with packed weights; the layer itself where they cannot be packed."""
    return PackedLinear(linear) if is_linear(linear) else linear


@torch.inference_mode()
def pack_linears(model: Any) -> None:
    """Pack the weights of a model's linear layers, where that can be done."""
    for module in list(model.modules()):
        _pack_together(module)
    for name, module in list(model.named_modules()):
        if is_linear(module):
            model.set_submodule(name, PackedLinear(module))


def _pack_together(module: torch.nn.Module) -> None:
    """Pack the layers of a module that can be computed as one."""
    linears: list[Any] = [getattr(module, name, None) for name in _TOGETHER]
    if not all(map(is_linear, linears)) or len({(each.in_features, each.bias is None) for each in linears}) > 1:
        return
    whole = _Whole(linears)
    for place, (name, linear) in enumerate(zip(_TOGETHER, linears, strict=True)):
        setattr(module, name, PackedSlice(linear, whole, place))
