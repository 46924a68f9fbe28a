"""Paged attention for transformers models.

Each layer writes all new keys and values to the pool before it reads any, so a sequence can use a block that another
sequence fills in the same step.
"""

from typing import TYPE_CHECKING, Any

import torch

from kvproxy.engine.attention.interface import ScoreOptions

if TYPE_CHECKING:
    from kvproxy.engine.worker.input_batch import InputBatch

NAME = "kvproxy_paged"


def register_attention() -> None:
    from transformers import AttentionInterface

    AttentionInterface.register(NAME, paged_attention)


class QueryTemperature(torch.nn.Module):
    def __init__(self, scale: float, floor: float) -> None:
        super().__init__()
        self._scale = scale
        self._floor = floor

    def forward(self, positions: torch.Tensor) -> torch.Tensor:
        return torch.log1p(torch.floor((positions.float() + 1.0) / self._floor)) * self._scale + 1.0


def patch_query_temperature(model: Any) -> None:
    """Make Llama 4 scale each query by its position in the sequence. transformers uses its index in the batch."""
    for module in model.modules():
        if getattr(module, "attn_temperature_tuning", False) and not getattr(module, "use_rope", True):
            module.attn_temperature_tuning = False
            module.query_temperature = QueryTemperature(module.attn_scale, module.floor_scale)


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
    """Compute attention of one layer for all tokens of a step; return `[1, tokens, heads, head_dim]`.

    Args:
        query: `[1, heads, tokens, head_dim]`.
        key, value: `[1, kv_heads, tokens, head_dim]`.
        s_aux: the sinks of `ScoreOptions`.
    """
    query, key, value = (part[0].transpose(0, 1) for part in (query, key, value))
    temperature = getattr(module, "query_temperature", None)
    if temperature is not None:
        query = (query * temperature(input_batch.positions[0])[:, None, None]).to(query.dtype)
    metadata, cached = input_batch.layer_inputs(module.layer_idx)  # type: ignore[arg-type]
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
