from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import torch

from kvproxy.engine.attention.interface import KV, AttentionOp
from kvproxy.engine.attention.selector import AttentionBackends
from kvproxy.engine.models.layer_groups import LayerGroup, layer_slots
from kvproxy.engine.scheduler.scheduler_output import TokenSpan
from kvproxy.engine.worker.host_device_copies import upload
from kvproxy.engine.worker.kv_pool import KVPool


@dataclass(frozen=True, slots=True)
class AttentionMetadata:
    """Attention inputs of one layer group.

    Attributes:
        slot_mapping: slot of each token in the pool, `block * block_size + offset`, `[tokens]`.
        prefill, decode: attention of the prefill and of the decode tokens; None if the step has no such tokens.
    """

    slot_mapping: torch.Tensor
    prefill: AttentionOp | None
    decode: AttentionOp | None


@dataclass(frozen=True, slots=True)
class InputBatch:
    """The tokens of a step: prefill tokens, then from `decode_start` on one token per decoding sequence.

    `tokens` and `positions` are `[1, tokens]`. `metadata` has one item per layer group.
    """

    pool: KVPool
    layer_slots: Mapping[int, tuple[int, int]]
    tokens: torch.Tensor
    positions: torch.Tensor
    decode_start: int
    metadata: Sequence[AttentionMetadata]

    def layer_inputs(self, index: int) -> tuple[AttentionMetadata, KV]:
        group, slot = self.layer_slots[index]
        return self.metadata[group], self.pool.layers[slot]


def build_input_batch(
    pool: KVPool,
    groups: Sequence[LayerGroup],
    prefills: Sequence[TokenSpan],
    decodes: Sequence[TokenSpan],
    backends: AttentionBackends,
) -> InputBatch:
    device, block_size = pool.data.device, pool.block_size
    spans = [*prefills, *decodes]
    row = upload(
        [
            [token for span in spans for token in span.tokens],
            [at for span in spans for at in range(span.start, span.end)],
            *([slot for span in spans for slot in span.slot_mapping(block_size, group.index)] for group in groups),
        ],
        device,
    )
    lengths = upload([span.end for span in decodes], device)
    metadata = [
        AttentionMetadata(
            slot_mapping=slot_mapping,
            prefill=backends.prefill.prepare(prefills, pool, group) if prefills else None,
            decode=backends.decode.prepare(
                decode_block_table(decodes, block_size, device, group.index), lengths, pool, group
            )
            if decodes
            else None,
        )
        for group, slot_mapping in zip(groups, row[2:], strict=True)
    ]
    decode_start = sum(len(span.tokens) for span in prefills)
    return InputBatch(pool, layer_slots(groups), row[:1], row[1:2], decode_start, metadata)


def decode_block_table(
    spans: Sequence[TokenSpan], block_size: int, device: torch.device, group: int = 0
) -> torch.Tensor:
    width = max(-(-span.end // block_size) for span in spans)
    return upload(padded_block_table([span.block_tables[group] for span in spans], width), device, np.int32)


def padded_block_table(tables: Sequence[Sequence[int]], width: int) -> list[list[int]]:
    return [[*blocks[:width], *[0] * (width - len(blocks))] for blocks in tables]
