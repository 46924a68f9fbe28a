"""Linear layers for CPUs: weights in oneDNN's packed layout, or in 8 bits.

torch packs the weights again in every call. Packing them once is about twice as fast.
"""

from collections.abc import Sequence
from typing import Any

import torch
import torch.nn.functional as F
import xxhash

from kvproxy.errors import ModelUnsupported

# Attention calls these layers in this order with the same input, so they can be merged into one.
_QKV = ("q_proj", "k_proj", "v_proj")
_MAX_INT8_ROWS = 160  # for more input rows, dequantizing the weights first is faster than the int8 kernel


class PackedModule(torch.nn.Module):
    """Base class of linear layers without readable weights. The buffer `digest` replaces them in `model_fingerprint`."""

    digest: torch.Tensor

    def __init__(self, linear: torch.nn.Linear) -> None:
        super().__init__()
        self.in_features, self.out_features = linear.in_features, linear.out_features
        content = linear.weight.detach().contiguous().flatten().view(torch.uint8).numpy().data
        digest = bytearray(xxhash.xxh3_128_digest(content))
        self.register_buffer("digest", torch.frombuffer(digest, dtype=torch.uint8))


class PackedLinear(PackedModule):
    def __init__(self, linear: torch.nn.Linear) -> None:
        super().__init__(linear)
        self.bias = linear.bias
        self._packed = torch.ops.mkldnn._reorder_linear_weight(linear.weight.detach())

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        output: torch.Tensor = torch.ops.mkldnn._linear_pointwise(x, self._packed, self.bias, "none", [], "")
        return output


class MergedLinearSlice(PackedModule):
    def __init__(self, linear: torch.nn.Linear, merged: "_MergedLinear", index: int) -> None:
        super().__init__(linear)
        self._merged = merged
        self._index = index

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self._merged.output(x, self._index)


class _MergedLinear:
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
        self._input: torch.Tensor | None = None
        self._parts: Sequence[torch.Tensor] = ()

    def output(self, x: torch.Tensor, index: int) -> torch.Tensor:
        # Compare identities: a new tensor may reuse the address of the old one.
        if index == 0 or x is not self._input:
            self._input, self._parts = x, self._linear(x).split(self._sizes, dim=-1)
        part = self._parts[index]
        if index == len(self._sizes) - 1:
            self._input, self._parts = None, ()
        return part


def supports_packed_linear(device: torch.device, dtype: torch.dtype) -> bool:
    if device.type != "cpu" or not torch._C._has_mkldnn:
        return False
    return dtype == torch.float32 or (dtype == torch.bfloat16 and bool(torch.ops.mkldnn._is_mkldnn_bf16_supported()))


def _is_packable(module: Any) -> bool:
    # A subclass may compute something else.
    return type(module) is torch.nn.Linear and supports_packed_linear(module.weight.device, module.weight.dtype)


@torch.inference_mode()
def pack_linear_layers(model: Any) -> None:
    for module in list(model.modules()):
        _merge_qkv_layers(module)
    for name, module in list(model.named_modules()):
        if _is_packable(module):
            model.set_submodule(name, PackedLinear(module))


def _merge_qkv_layers(module: torch.nn.Module) -> None:
    linears: list[Any] = [getattr(module, name, None) for name in _QKV]
    if all(map(_is_packable, linears)) and len({(each.in_features, each.bias is None) for each in linears}) == 1:
        merged = _MergedLinear(linears)
        for index, (name, linear) in enumerate(zip(_QKV, linears, strict=True)):
            setattr(module, name, MergedLinearSlice(linear, merged, index))


class Int8Linear(torch.nn.Module):
    """A linear layer with 8-bit weights, one scale per output channel, and bfloat16 activations."""

    def __init__(self, linear: torch.nn.Linear) -> None:
        super().__init__()
        self.in_features, self.out_features = linear.in_features, linear.out_features
        weight = linear.weight.detach().float()
        scale = (weight.abs().amax(dim=1) / 127).clamp_min(1e-12)
        self.register_buffer("quantized", (weight / scale[:, None]).round().to(torch.int8))
        self.register_buffer("scale", scale.to(torch.bfloat16))
        self.bias = linear.bias

    def dequantized(self) -> torch.Tensor:
        quantized, scale = self.get_buffer("quantized"), self.get_buffer("scale")
        return quantized.to(scale.dtype) * scale[:, None]

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        rows = x.flatten(0, -2)
        if rows.shape[0] > _MAX_INT8_ROWS:
            return F.linear(x, self.dequantized(), self.bias)
        output: torch.Tensor = torch._weight_int8pack_mm(rows, self.get_buffer("quantized"), self.get_buffer("scale"))
        output = output.view(*x.shape[:-1], self.out_features)
        return output if self.bias is None else output + self.bias


def quantize_linear_layers(model: Any) -> None:
    weights = next(model.parameters())
    if weights.device.type != "cpu" or weights.dtype != torch.bfloat16:
        raise ModelUnsupported(
            "int8 weights require a CPU and bfloat16: remove engine.quantization, or set engine.dtype to bfloat16"
        )
    for name, module in list(model.named_modules()):
        if isinstance(module, torch.nn.Linear):
            model.set_submodule(name, Int8Linear(module))
