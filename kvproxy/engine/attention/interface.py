"""The interface of attention backends, which prepare a step once per layer group."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import torch

from kvproxy.engine.models.layer_groups import FULL_ATTENTION, LayerGroup
from kvproxy.engine.scheduler.scheduler_output import TokenSpan
from kvproxy.engine.worker.kv_pool import KVPool

KV = tuple[torch.Tensor, torch.Tensor]


@dataclass(frozen=True, slots=True)
class ScoreOptions:
    """Options of a layer's attention scores.

    Attributes:
        softcap: limits scores to ±softcap.
        sinks: `[heads]`, extra scores in the softmax that have no value.
    """

    scaling: float | None = None
    softcap: float | None = None
    sinks: torch.Tensor | None = None

    @property
    def is_plain(self) -> bool:
        return self.softcap is None and self.sinks is None


class AttentionOp(Protocol):
    """Attention of one layer, prepared for the rows of a step."""

    def __call__(self, query: torch.Tensor, new: KV, cached: KV, scores: ScoreOptions) -> torch.Tensor:
        """Return the attention output of `query`, both `[rows, heads, head_dim]`.

        Args:
            new: keys and values of the rows, each `[rows, kv_heads, head_dim]`. The pool holds them already.
            cached: keys and values of the layer, each `[blocks, block_size, kv_heads, head_dim]`.
        """


class PrefillBackend(Protocol):
    name: str

    def prepare(self, spans: Sequence[TokenSpan], pool: KVPool, group: LayerGroup = FULL_ATTENTION) -> AttentionOp: ...


class DecodeBackend(Protocol):
    """Attention of the last token of each sequence."""

    name: str
    supports_capture: bool
    """Whether tables and lengths are read only on the device, at a cost independent of the table's width."""

    def prepare(
        self, table: torch.Tensor, lengths: torch.Tensor, pool: KVPool, group: LayerGroup = FULL_ATTENTION
    ) -> AttentionOp:
        """Prepare one row per sequence; `table` is `[rows, blocks]` int32, `lengths` is `[rows]` int64."""
