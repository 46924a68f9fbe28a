"""How large the checks are: 7B shapes on a GPU; tiny ones on a CPU, where they only show that the checks run."""

from dataclasses import dataclass

import torch


@dataclass(frozen=True, slots=True)
class Shape:
    vocabulary: int
    hidden: int
    intermediate: int
    layers: int
    heads: int
    kv_heads: int

    @property
    def head_dim(self) -> int:
        return self.hidden // self.heads


@dataclass(frozen=True, slots=True)
class Scale:
    shape: Shape
    longest: int
    context: int
    rows: tuple[int, ...]
    suffixes: tuple[int, ...]
    chunk: int
    vectors: int
    repeat: int
    judged: bool


FULL = Scale(
    Shape(32_000, 4096, 14_336, 32, 32, 8), 16_384, 8192, (1, 8, 64), (64, 256), 256, 1_000_000, repeat=20, judged=True
)
REHEARSAL = Scale(Shape(300, 64, 96, 2, 4, 2), 256, 96, (1, 3), (5, 20), 32, 30_000, repeat=2, judged=False)


def scale_of(device: torch.device) -> Scale:
    return FULL if device.type == "cuda" else REHEARSAL
