"""Linear layers with int8 weights, one scale per output channel, and bfloat16 activations."""

from typing import Any

import torch
import torch.nn.functional as F

from kvproxy.errors import ModelUnsupported

_MAX_INT8_ROWS = 160
"""For more input rows, dequantizing the weights first is faster than the int8 kernel."""


class Int8Linear(torch.nn.Module):
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


def quantize(model: Any) -> None:
    weights = next(model.parameters())
    if weights.device.type != "cpu" or weights.dtype != torch.bfloat16:
        raise ModelUnsupported(
            "int8 weights require a CPU and bfloat16: remove engine.quantization, or set engine.dtype to bfloat16"
        )
    for name, module in list(model.named_modules()):
        if isinstance(module, torch.nn.Linear):
            model.set_submodule(name, Int8Linear(module))
