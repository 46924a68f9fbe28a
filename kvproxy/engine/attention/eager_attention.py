"""Attention by matrix products, for models with score softcapping or attention sinks, which SDPA does not support."""

import torch

from kvproxy.engine.attention.interface import ScoreOptions

_MAX_ROWS = 128
"""Maximum query rows of one matrix product. The scores of all rows of a long prompt would take gigabytes."""


def eager_attention(
    query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, mask: torch.Tensor, scores: ScoreOptions
) -> torch.Tensor:
    """Compute grouped-query attention, with a softmax in float32.

    Args:
        query: `[.., kv_heads, group, rows, head_dim]`; `group` query heads share a KV head.
        key, value: `[.., kv_heads, keys, head_dim]`.
        mask: added to the scores of the last `n` keys, `[.., rows, n]`; all other keys are visible.
    """
    scaling = query.shape[-1] ** -0.5 if scores.scaling is None else scores.scaling
    weights = (query.flatten(-3, -2) @ key.transpose(-1, -2)).float().mul_(scaling)
    weights = weights.view(*query.shape[:-1], key.shape[-2])
    if scores.softcap is not None:
        weights = weights.div_(scores.softcap).tanh_().mul_(scores.softcap)
    weights[..., -mask.shape[-1] :] += mask
    if scores.sinks is None:
        weights = weights.softmax(dim=-1)
    else:
        sinks = scores.sinks.float().view(*query.shape[-4:-2], 1, 1).expand(*weights.shape[:-1], 1)
        weights = torch.cat([weights, sinks], dim=-1).softmax(dim=-1)[..., :-1]
    output: torch.Tensor = weights.to(value.dtype).flatten(-3, -2) @ value
    return output.view(query.shape)


def eager_causal_attention(
    query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, mask: torch.Tensor | None, scores: ScoreOptions
) -> torch.Tensor:
    rows, heads, _ = query.shape
    kv_heads = key.shape[1]
    past = key.shape[0] - rows
    keys, values = (part.transpose(0, 1) for part in (key, value))
    grouped = query.transpose(0, 1).reshape(kv_heads, heads // kv_heads, rows, -1)
    output = torch.empty_like(query)
    for start in range(0, rows, _MAX_ROWS):
        stop = min(start + _MAX_ROWS, rows)
        end = past + stop
        if mask is None:
            visible = torch.full((stop - start, stop - start), float("-inf"), device=query.device).triu_(1)
        else:
            visible = mask[start:stop, :end]
        part = eager_attention(grouped[:, :, start:stop], keys[:, :end], values[:, :end], visible, scores)
        output[start:stop] = part.flatten(0, 1).transpose(0, 1)
    return output
