"""Paged attention for transformers models: one packed row of tokens, keys and values in the block pool.

`register()` offers the function to transformers under `NAME`. A step's batch travels to it as an extra keyword argument
of the model's forward call, never through a global. New keys and values are written to the pool before anything is
read from it, so a sequence can reuse a block that another one fills in the same step.
"""

from typing import Any

import torch
import torch.nn.functional as F

from kvproxy.engine.batch import PrefillSpan, StepBatch

NAME = "kvproxy_paged"


def register() -> None:
    """Make the attention known to transformers; doing it twice changes nothing."""
    from transformers import AttentionInterface

    AttentionInterface.register(NAME, paged_attention)


def paged_attention(
    module: torch.nn.Module,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: torch.Tensor | None,
    *,
    step: StepBatch,
    scaling: float | None = None,
    **_: Any,
) -> tuple[torch.Tensor, None]:
    """Attention of one layer for all sequences of a step.

    Args:
        module: the attention layer; its `layer_idx` names the pool's layer.
        query: `[1, heads, tokens, head_dim]`.
        key, value: `[1, kv_heads, tokens, head_dim]`.
        attention_mask: unused, the batch knows who sees whom.
        step: the step's batch.
        scaling: factor of the scores; 1 / sqrt(head_dim) by default.

    Returns:
        `[1, tokens, heads, head_dim]`.
    """
    keys, values = step.pool.layer(module.layer_idx)  # type: ignore[arg-type]
    heads, head_dim = query.shape[1], query.shape[3]
    keys.view(-1, *keys.shape[2:])[step.slots] = key[0].transpose(0, 1)
    values.view(-1, *values.shape[2:])[step.slots] = value[0].transpose(0, 1)
    output = query.new_empty((query.shape[2], heads, head_dim))
    for span in step.prefills:
        part = slice(span.start, span.end)
        output[part] = _prefill(span, query[0, :, part], key[0, :, part], value[0, :, part], keys, values, scaling)
    if step.num_decodes:
        output[step.decode_start :] = _decode(step, query[0, :, step.decode_start :], keys, values, scaling)
    return output[None], None


def _prefill(
    span: PrefillSpan,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    keys: torch.Tensor,
    values: torch.Tensor,
    scaling: float | None,
) -> torch.Tensor:
    if span.mask is not None:
        key = _gather(keys, span.blocks)[: span.context].transpose(0, 1)
        value = _gather(values, span.blocks)[: span.context].transpose(0, 1)
    # SDPA's is_causal aligns queries and keys at their first element: right only for a span without a past.
    output = F.scaled_dot_product_attention(
        query[None],
        key[None],
        value[None],
        attn_mask=span.mask,
        is_causal=span.mask is None,
        scale=scaling,
        enable_gqa=query.shape[0] != key.shape[0],
    )
    return output[0].transpose(0, 1)


def _gather(pool: torch.Tensor, blocks: torch.Tensor) -> torch.Tensor:
    """Tokens of a list of blocks in order, `[tokens, kv_heads, head_dim]`."""
    return pool.index_select(0, blocks).flatten(0, 1)


def _decode(
    step: StepBatch, query: torch.Tensor, keys: torch.Tensor, values: torch.Tensor, scaling: float | None
) -> torch.Tensor:
    """One query a sequence: the query heads that share a key head become rows of one small matrix product."""
    heads, rows, head_dim = query.shape
    kv_heads = keys.shape[2]
    table = step.decode_blocks
    shape = (rows, -1, kv_heads, head_dim)
    key = keys.index_select(0, table.flatten()).view(shape).transpose(1, 2)
    value = values.index_select(0, table.flatten()).view(shape).transpose(1, 2)
    grouped = query.transpose(0, 1).reshape(rows, kv_heads, heads // kv_heads, head_dim)
    output = F.scaled_dot_product_attention(grouped, key, value, attn_mask=step.decode_mask, scale=scaling)
    return output.reshape(rows, heads, head_dim)
