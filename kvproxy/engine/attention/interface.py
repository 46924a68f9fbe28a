"""The interface of attention backends. Each step calls `prepare` once per layer group, and its result in each layer."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

import torch

from kvproxy.engine.models.layer_groups import FULL_ATTENTION, LayerGroup
from kvproxy.engine.scheduler.scheduler_output import TokenSpan
from kvproxy.engine.worker.kv_pool import KVPool

KV = tuple[torch.Tensor, torch.Tensor]


@dataclass(frozen=True, slots=True)
class ScoreOptions:
    scaling: float | None = None  # factor of the scores; None for `head_dim ** -0.5`
    softcap: float | None = None  # limits scores to ±softcap
    sinks: torch.Tensor | None = None  # scores that belong to no key but count in the softmax, `[heads]`

    @property
    def has_plain_softmax(self) -> bool:
        return self.softcap is None and self.sinks is None


AttentionOp = Callable[[torch.Tensor, KV, KV, ScoreOptions], torch.Tensor]
"""Returns the attention output of a query, both `[rows, heads, head_dim]`.

The arguments are the query; keys and values of the step's tokens, each `[rows, kv_heads, head_dim]`; the layer's keys and
values in the pool, which contain them too, each `[blocks, block_size, kv_heads, head_dim]`; and the options.
"""


class PrefillBackend(Protocol):
    def prepare(self, spans: Sequence[TokenSpan], pool: KVPool, group: LayerGroup = FULL_ATTENTION) -> AttentionOp: ...


class DecodeBackend(Protocol):
    supports_capture: bool
    """Whether CUDA graphs can capture a step. A captured step must not read `table` or `lengths` on the host."""

    def prepare(
        self, table: torch.Tensor, lengths: torch.Tensor, pool: KVPool, group: LayerGroup = FULL_ATTENTION
    ) -> AttentionOp:
        """Prepare a step of one token per sequence.

        Args:
            table: block tables, `[sequences, blocks]` int32.
            lengths: number of tokens of each sequence, including the new one, `[sequences]` int64.
        """
