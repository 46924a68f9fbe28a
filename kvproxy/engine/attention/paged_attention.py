"""Paged attention for transformers models.

Each layer writes all new keys and values to the pool before it reads any, so a sequence can use a block that another
sequence fills in the same step.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import torch

from kvproxy.engine.attention.interface import AttentionOp, ScoreOptions
from kvproxy.engine.attention.selector import AttentionBackends
from kvproxy.engine.models.layer_groups import LayerGroup, group_slot_by_layer
from kvproxy.engine.scheduler.scheduler_output import TokenSpan
from kvproxy.engine.worker.host_device_copies import upload
from kvproxy.engine.worker.kv_pool import KVPool

NAME = "kvproxy_paged"


@dataclass(frozen=True, slots=True)
class AttentionMetadata:
    """Attention inputs of one layer group. `prefill` or `decode` is None if the step has no such tokens."""

    slot_mapping: torch.Tensor  # slot of each token in the pool, `block * block_size + offset`, `[tokens]`
    prefill: AttentionOp | None
    decode: AttentionOp | None


@dataclass(frozen=True, slots=True)
class InputBatch:
    """The tokens of a step: prefill tokens, then from `decode_start` on one token per decoding sequence."""

    pool: KVPool
    group_slot_by_layer: Mapping[int, tuple[int, int]]  # number of the group, and slot in its blocks, by layer
    tokens: torch.Tensor  # [1, tokens]
    positions: torch.Tensor  # [1, tokens]
    decode_start: int
    metadata: Sequence[AttentionMetadata]  # one item per layer group


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
    metadata = []
    for group, slot_mapping in zip(groups, row[2:], strict=True):
        prefill = backends.prefill.prepare(prefills, pool, group) if prefills else None
        decode = None
        if decodes:
            table = decode_block_table(decodes, block_size, device, group.index)
            decode = backends.decode.prepare(table, lengths, pool, group)
        metadata.append(AttentionMetadata(slot_mapping, prefill, decode))
    decode_start = sum(len(span.tokens) for span in prefills)
    return InputBatch(pool, group_slot_by_layer(groups), row[:1], row[1:2], decode_start, metadata)


def decode_block_table(
    spans: Sequence[TokenSpan], block_size: int, device: torch.device, group: int = 0
) -> torch.Tensor:
    width = max(-(-span.end // block_size) for span in spans)
    return upload(pad_block_tables([span.block_tables[group] for span in spans], width), device, np.int32)


def pad_block_tables(tables: Sequence[Sequence[int]], width: int) -> list[list[int]]:
    return [[*blocks[:width], *[0] * (width - len(blocks))] for blocks in tables]


def register_attention() -> None:
    from transformers import AttentionInterface

    AttentionInterface.register(NAME, paged_attention)


def patch_query_temperature(model: Any) -> None:
    """Make Llama 4 scale each query by its position in the sequence. transformers uses its index in the batch."""
    for module in model.modules():
        if getattr(module, "attn_temperature_tuning", False) and not getattr(module, "use_rope", True):
            module.attn_temperature_tuning = False
            module.query_temperature = partial(_query_temperature, module.attn_scale, module.floor_scale)


def _query_temperature(scale: float, floor: float, positions: torch.Tensor) -> torch.Tensor:
    return torch.log1p(torch.floor((positions.float() + 1.0) / floor)) * scale + 1.0


def paged_attention(
    module: torch.nn.Module,
    query: torch.Tensor,  # [1, heads, tokens, head_dim]
    key: torch.Tensor,  # [1, kv_heads, tokens, head_dim]
    value: torch.Tensor,
    attention_mask: torch.Tensor | None,
    *,
    input_batch: InputBatch,
    scaling: float | None = None,
    softcap: float | None = None,
    s_aux: torch.Tensor | None = None,  # the sinks of `ScoreOptions`
    **_: Any,
) -> tuple[torch.Tensor, None]:
    """Compute attention of one layer for all tokens of a step; return `[1, tokens, heads, head_dim]`."""
    query, key, value = (part[0].transpose(0, 1) for part in (query, key, value))
    temperature = getattr(module, "query_temperature", None)
    if temperature is not None:
        query = (query * temperature(input_batch.positions[0])[:, None, None]).to(query.dtype)
    group, slot = input_batch.group_slot_by_layer[module.layer_idx]  # type: ignore[index]
    metadata, cached = input_batch.metadata[group], input_batch.pool.layers[slot]
    scores = ScoreOptions(scaling, softcap, s_aux)
    for pool, new in zip(cached, (key, value), strict=True):
        pool.flatten(0, 1)[metadata.slot_mapping] = new
    if metadata.prefill is None or metadata.decode is None:
        attend = metadata.decode if metadata.prefill is None else metadata.prefill
        assert attend is not None, "the step has no tokens"
        return attend(query, (key, value), cached, scores)[None], None
    parts = [
        attend(query[rows], (key[rows], value[rows]), cached, scores)
        for attend, rows in (
            (metadata.prefill, slice(input_batch.decode_start)),
            (metadata.decode, slice(input_batch.decode_start, None)),
        )
    ]
    return torch.cat(parts)[None], None
