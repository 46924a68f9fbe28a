"""Queries that grow with their place in the sequence, as Llama 4 has them in layers without rotary embedding.

transformers computes the places from the row that it is given, which would be a sequence from its beginning. Ours holds pieces
of several sequences, so the model's own tuning is switched off, and the batch's positions are used.
"""

from typing import Any

import torch


class TemperatureTuning(torch.nn.Module):
    """Factors of a layer's queries.

    Args:
        scale: how much they grow.
        floor: tokens after which they grow by a step.
    """

    def __init__(self, scale: float, floor: float) -> None:
        super().__init__()
        self._scale = scale
        self._floor = floor

    def forward(self, positions: torch.Tensor) -> torch.Tensor:
        """A factor for each position."""
        return torch.log1p(torch.floor((positions.float() + 1.0) / self._floor)) * self._scale + 1.0


def use_batch_positions(model: Any) -> None:
    """Let the layers of a model that tune their queries do so by the batch's positions."""
    for module in model.modules():
        if getattr(module, "attn_temperature_tuning", False) and not getattr(module, "use_rope", True):
            module.attn_temperature_tuning = False
            module.tuning = TemperatureTuning(module.attn_scale, module.floor_scale)
