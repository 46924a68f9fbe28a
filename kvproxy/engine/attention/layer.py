"""Paged attention for transformers models: one packed row of tokens, keys and values in the block pool.

`register()` offers the function to transformers under `NAME`. A step's batch travels to it as an extra keyword argument
of the model's forward call, never through a global. New keys and values are written to the pool before anything is
read from it, so a sequence can reuse a block that another one fills in the same step.
"""

from typing import TYPE_CHECKING, Any

import torch

from kvproxy.engine.attention.interface import ScoreOptions

if TYPE_CHECKING:
    from kvproxy.engine.worker.input_batch import InputBatch

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
    step: "InputBatch",
    scaling: float | None = None,
    softcap: float | None = None,
    s_aux: torch.Tensor | None = None,
    **_: Any,
) -> tuple[torch.Tensor, None]:
    """Attention of one layer for all sequences of a step.

    Args:
        module: the attention layer; its `layer_idx` names the pool's layer.
        query: `[1, heads, tokens, head_dim]`.
        key, value: `[1, kv_heads, tokens, head_dim]`.
        attention_mask: unused, the batch knows who sees whom.
        step: the step's batch.
        scaling, softcap, s_aux: see `Scores`; the names are transformers'.

    Returns:
        `[1, tokens, heads, head_dim]`.
    """
    query, key, value = (part[0].transpose(0, 1) for part in (query, key, value))
    tuning = getattr(module, "tuning", None)
    if tuning is not None:
        query = (query * tuning(step.positions[0])[:, None, None]).to(query.dtype)
    group, cached = step.layer(module.layer_idx)  # type: ignore[arg-type]
    scores = ScoreOptions(scaling, softcap, s_aux)
    for pool, new in zip(cached, (key, value), strict=True):
        pool.flatten(0, 1)[group.slots] = new
    if group.prefill is None or group.decode is None:
        attend = group.decode if group.prefill is None else group.prefill
        assert attend is not None, "a step without a token"
        return attend(query, (key, value), cached, scores)[None], None
    parts = [
        attend(query[rows], (key[rows], value[rows]), cached, scores)
        for attend, rows in (
            (group.prefill, slice(step.decode_start)),
            (group.decode, slice(step.decode_start, None)),
        )
    ]
    return torch.cat(parts)[None], None
