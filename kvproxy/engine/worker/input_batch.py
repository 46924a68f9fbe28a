"""One step's work as tensors: a packed row of tokens, where each is written, and what each sequence sees."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch

from kvproxy.engine.attention.interface import KV, AttentionOp
from kvproxy.engine.attention.selector import AttentionBackends
from kvproxy.engine.models.layer_groups import LayerGroup, places
from kvproxy.engine.scheduler.token_span import TokenSpan
from kvproxy.engine.worker.kv_pool import KVPool
from kvproxy.engine.worker.transfer import upload


@dataclass(frozen=True, slots=True)
class AttentionMetadata:
    """What the layers of one group need of a step.

    Attributes:
        slots: `[tokens]`, block * block_size + offset that each token's key and value go to.
        prefill, decode: attention of the two parts of the row; None where a part is empty.
    """

    slots: torch.Tensor
    prefill: AttentionOp | None
    decode: AttentionOp | None


class InputBatch:
    """Everything that the model needs of a step; prefill spans come first in the row, then one token a decoding sequence.

    Args:
        pool: KV tensors.
        groups: the model's groups of layers.
        tokens, positions: `[1, tokens]`, the row and each token's place in its sequence.
        decode_start: where decoding rows begin in the row.
        batches: what each group needs.
    """

    def __init__(
        self,
        pool: KVPool,
        groups: Sequence[LayerGroup],
        tokens: torch.Tensor,
        positions: torch.Tensor,
        decode_start: int,
        batches: Sequence[AttentionMetadata],
    ) -> None:
        self.tokens = tokens
        self.positions = positions
        self.decode_start = decode_start
        self._pool = pool
        self._places = places(groups)
        self._batches = batches

    def layer(self, index: int) -> tuple[AttentionMetadata, KV]:
        """What a layer of the model needs, and its keys and values in the pool."""
        group, slot = self._places[index]
        return self._batches[group], self._pool.layer(slot)


def build_input_batch(
    pool: KVPool,
    groups: Sequence[LayerGroup],
    prefills: Sequence[TokenSpan],
    decodes: Sequence[TokenSpan],
    backends: AttentionBackends,
) -> InputBatch:
    """Tensors for a step; each decode span has exactly one token."""
    device, size = pool.data.device, pool.block_size
    spans = [*prefills, *decodes]
    row = upload(
        [
            [token for span in spans for token in span.tokens],
            [at for span in spans for at in range(span.start, span.end)],
            *([slot for span in spans for slot in span.slots(size, group.number)] for group in groups),
        ],
        device,
    )
    lengths = upload([span.end for span in decodes], device)
    batches = [
        AttentionMetadata(
            slots=slots,
            prefill=backends.prefill.prepare(prefills, pool, group) if prefills else None,
            decode=backends.decode.prepare(
                decode_block_table(decodes, size, device, group.number), lengths, pool, group
            )
            if decodes
            else None,
        )
        for group, slots in zip(groups, row[2:], strict=True)
    ]
    return InputBatch(pool, groups, row[:1], row[1:2], sum(len(span.tokens) for span in prefills), batches)


def decode_block_table(
    spans: Sequence[TokenSpan], block_size: int, device: torch.device, group: int = 0
) -> torch.Tensor:
    """A group's block table of decoding sequences on a device, `[rows, blocks]` int32."""
    table = padded_block_table(
        [span.tables[group] for span in spans], max(-(-span.end // block_size) for span in spans)
    )
    return upload(table, device, np.int32)


def padded_block_table(rows: Sequence[Sequence[int]], width: int) -> list[list[int]]:
    """Blocks of several sequences, cut or padded with block 0 to one width."""
    return [[*blocks[:width], *[0] * (width - len(blocks))] for blocks in rows]
