"""What an attention backend is: made ready once a step, then called once a layer.

Prompt tokens and decoding rows are computed differently everywhere, so each has backends of its own.
"""

from collections.abc import Sequence
from typing import Protocol

import torch

from kvproxy.engine.pool import KVPool
from kvproxy.engine.span import Span

KV = tuple[torch.Tensor, torch.Tensor]
"""Keys and values."""


class Attend(Protocol):
    """Attention of one layer, for the rows that it was made for."""

    def __call__(self, query: torch.Tensor, new: KV, cached: KV, scaling: float | None) -> torch.Tensor:
        """What the rows see, `[rows, heads, head_dim]`.

        Args:
            query: `[rows, heads, head_dim]`.
            new: keys and values of these rows, each `[rows, kv_heads, head_dim]`; the pool has them already.
            cached: keys and values of the layer, each `[blocks, block_size, kv_heads, head_dim]`.
            scaling: factor of the scores; 1 / sqrt(head_dim) by default.
        """


class PrefillBackend(Protocol):
    """Attention of runs of tokens, several of each sequence; each token sees its sequence up to itself."""

    name: str

    def prepare(self, spans: Sequence[Span], pool: KVPool) -> Attend:
        """Attention for rows that hold the spans' tokens one after the other."""


class DecodeBackend(Protocol):
    """Attention of one token a sequence, the sequence's last."""

    name: str
    capturable: bool
    """Whether it reads tables and lengths on the device only, at a cost that follows the lengths and not the width of
    the table, so that a captured step stays right and fast for other sequences."""

    def prepare(self, table: torch.Tensor, lengths: torch.Tensor, pool: KVPool) -> Attend:
        """Attention for one row a sequence.

        Args:
            table: `[rows, blocks]` int32 on the pool's device; past a sequence's end it may hold any block.
            lengths: `[rows]` int64 on the pool's device, tokens that each row sees, itself included.
            pool: where the tables point.
        """
