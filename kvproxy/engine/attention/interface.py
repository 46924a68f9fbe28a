"""What an attention backend is: made ready once a step for each group of layers, then called once a layer.

Prompt tokens and decoding rows are computed differently everywhere, so each has backends of its own.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import torch

from kvproxy.engine.models.layer_groups import FULL, LayerGroup
from kvproxy.engine.scheduler.token_span import TokenSpan
from kvproxy.engine.worker.kv_pool import KVPool

KV = tuple[torch.Tensor, torch.Tensor]
"""Keys and values."""


@dataclass(frozen=True, slots=True)
class ScoreOptions:
    """How a layer weighs the keys that a row sees.

    Attributes:
        scaling: factor of the scores; 1 / sqrt(head_dim) by default.
        cap: scores are squeezed into -cap to cap by tanh; None leaves them as they are.
        sinks: `[heads]`, a score of each head that takes its share of the weights and adds nothing; None for none.
    """

    scaling: float | None = None
    cap: float | None = None
    sinks: torch.Tensor | None = None

    @property
    def is_plain(self) -> bool:
        """Whether softmax of the scaled scores is all there is."""
        return self.cap is None and self.sinks is None


DEFAULT_SCORES = ScoreOptions()


@dataclass(frozen=True, slots=True)
class AttentionFeatures:
    """What a model asks of attention beyond softmax over all keys; not every backend can do it."""

    windows: bool = False
    caps: bool = False
    sinks: bool = False


NO_FEATURES = AttentionFeatures()


class AttentionOp(Protocol):
    """Attention of one layer, for the rows that it was made for."""

    def __call__(self, query: torch.Tensor, new: KV, cached: KV, scores: ScoreOptions) -> torch.Tensor:
        """What the rows see, `[rows, heads, head_dim]`.

        Args:
            query: `[rows, heads, head_dim]`.
            new: keys and values of these rows, each `[rows, kv_heads, head_dim]`; the pool has them already.
            cached: keys and values of the layer, each `[blocks, block_size, kv_heads, head_dim]`.
            scores: how the layer weighs keys.
        """


class PrefillBackend(Protocol):
    """Attention of runs of tokens, several of each sequence; each sees its sequence up to itself, as far as its group reaches."""

    name: str

    def prepare(self, spans: Sequence[TokenSpan], pool: KVPool, group: LayerGroup = FULL) -> AttentionOp:
        """Attention for rows that hold the spans' tokens one after the other."""


class DecodeBackend(Protocol):
    """Attention of one token a sequence, the sequence's last."""

    name: str
    capturable: bool
    """Whether it reads tables and lengths on the device only, at a cost that follows the lengths and not the width of
    the table, so that a captured step stays right and fast for other sequences."""

    def prepare(
        self, table: torch.Tensor, lengths: torch.Tensor, pool: KVPool, group: LayerGroup = FULL
    ) -> AttentionOp:
        """Attention for one row a sequence.

        Args:
            table: `[rows, blocks]` int32 on the pool's device; past a sequence's end it may hold any block.
            lengths: `[rows]` int64 on the pool's device, each row's place in its sequence plus 1.
            pool: where the tables point.
            group: how far the rows see.
        """
