"""Linear layers for CPUs: weights in oneDNN's packed layout, or in 8 bits.

torch packs the weights again in every call. Packing them once is about twice as fast.
"""

from typing import Any

import torch
import torch.nn.functional as F
import xxhash

from kvproxy.errors import ModelUnsupported

_MAX_INT8_ROWS = 160  # for more input rows, dequantizing the weights first is faster than the int8 kernel


class PackedLinear(torch.nn.Module):
    """A linear layer without readable weights. The buffer `digest` replaces them in `model_fingerprint`."""

    digest: torch.Tensor

    def __init__(self, linear: torch.nn.Linear) -> None:
        super().__init__()
        self.in_features, self.out_features = linear.in_features, linear.out_features
        content = linear.weight.detach().contiguous().flatten().view(torch.uint8).numpy().data
        digest = bytearray(xxhash.xxh3_128_digest(content))
        self.register_buffer("digest", torch.frombuffer(digest, dtype=torch.uint8))
        self.bias = linear.bias
        self._packed = torch.ops.mkldnn._reorder_linear_weight(linear.weight.detach())

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        output: torch.Tensor = torch.ops.mkldnn._linear_pointwise(x, self._packed, self.bias, "none", [], "")
        return output


def supports_packed_linear(device: torch.device, dtype: torch.dtype) -> bool:
    if device.type != "cpu" or not torch._C._has_mkldnn:
        return False
    return dtype == torch.float32 or (dtype == torch.bfloat16 and bool(torch.ops.mkldnn._is_mkldnn_bf16_supported()))


@torch.inference_mode()
def pack_linear_layers(model: Any) -> None:
    for name, module in list(model.named_modules()):
        # A subclass of Linear may compute something else.
        if type(module) is torch.nn.Linear and supports_packed_linear(module.weight.device, module.weight.dtype):
            model.set_submodule(name, PackedLinear(module))


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
