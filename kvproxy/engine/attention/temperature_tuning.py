"""Attention temperature tuning of Llama 4: queries grow with their position.

transformers takes the positions from the index in the row, but a packed row holds several sequences.
"""

from typing import Any

import torch


class QueryTemperature(torch.nn.Module):
    """The factor of a layer's queries by position: 1 + scale * log(1 + (position + 1) // floor)."""

    def __init__(self, scale: float, floor: float) -> None:
        super().__init__()
        self._scale = scale
        self._floor = floor

    def forward(self, positions: torch.Tensor) -> torch.Tensor:
        return torch.log1p(torch.floor((positions.float() + 1.0) / self._floor)) * self._scale + 1.0


def use_batch_positions(model: Any) -> None:
    for module in model.modules():
        if getattr(module, "attn_temperature_tuning", False) and not getattr(module, "use_rope", True):
            module.attn_temperature_tuning = False
            module.query_temperature = QueryTemperature(module.attn_scale, module.floor_scale)
