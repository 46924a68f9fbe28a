"""Copies between host and device that do not make the host wait."""

from collections.abc import Sequence

import torch


def upload(values: Sequence[int] | Sequence[Sequence[int]], device: torch.device) -> torch.Tensor:
    """Integers as an int64 tensor on a device, by way of page-locked memory where the device is not the host."""
    if device.type != "cuda":
        return torch.tensor(values, dtype=torch.long, device=device)
    return torch.tensor(values, dtype=torch.long, pin_memory=True).to(device, non_blocking=True)
