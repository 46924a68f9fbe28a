"""Paged attention for transformers models.

New keys and values are written to the pool before any are read, so a sequence can use a block that another sequence
fills in the same step.
"""

from typing import TYPE_CHECKING, Any

import torch

from kvproxy.engine.attention.interface import ScoreOptions

if TYPE_CHECKING:
    from kvproxy.engine.worker.input_batch import InputBatch

NAME = "kvproxy_paged"


def register() -> None:
    from transformers import AttentionInterface

    AttentionInterface.register(NAME, paged_attention)


def paged_attention(
    module: torch.nn.Module,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: torch.Tensor | None,
    *,
    input_batch: "InputBatch",
    scaling: float | None = None,
    softcap: float | None = None,
    s_aux: torch.Tensor | None = None,
    **_: Any,
) -> tuple[torch.Tensor, None]:
    """Compute one layer for all sequences of a step.

    Args:
        query: `[1, heads, tokens, head_dim]`; the result has heads and tokens swapped.
        key, value: `[1, kv_heads, tokens, head_dim]`.
        scaling, softcap, s_aux: see `ScoreOptions`.
    """
    query, key, value = (part[0].transpose(0, 1) for part in (query, key, value))
    temperature = getattr(module, "query_temperature", None)
    if temperature is not None:
        query = (query * temperature(input_batch.positions[0])[:, None, None]).to(query.dtype)
    metadata, cached = input_batch.layer(module.layer_idx)  # type: ignore[arg-type]
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
