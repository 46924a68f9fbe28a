"""Attention whose scores are written out, for what SDPA does not know: capped scores, and sinks."""

import torch

from kvproxy.engine.attention.interface import Scores

_ROWS = 256
"""Most rows that are computed together: all scores of a long prompt would take gigabytes."""


def weigh(
    query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, mask: torch.Tensor, scores: Scores
) -> torch.Tensor:
    """What queries see.

    Args:
        query: `[.., kv_heads, group, rows, head_dim]`, the heads of a group share a key head.
        key, value: `[.., kv_heads, 1, keys, head_dim]`.
        mask: added to the scores, `[.., rows, keys]`.
        scores: how keys are weighed.

    Returns:
        The shape of `query`. Weights are computed in float32.
    """
    scaling = query.shape[-1] ** -0.5 if scores.scaling is None else scores.scaling
    weights = (query @ key.transpose(-1, -2)).float() * scaling
    if scores.cap is not None:
        weights = (weights / scores.cap).tanh() * scores.cap
    weights = weights + mask
    if scores.sinks is None:
        weights = weights.softmax(dim=-1)
    else:
        sinks = scores.sinks.float().view(*query.shape[-4:-2], 1, 1).expand(*weights.shape[:-1], 1)
        weights = torch.cat([weights, sinks], dim=-1).softmax(dim=-1)[..., :-1]
    return weights.to(value.dtype) @ value


def attend_rows(
    query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, mask: torch.Tensor | None, scores: Scores
) -> torch.Tensor:
    """What the rows of one sequence see, `[rows, heads, head_dim]`; without a mask each row sees the keys up to its own."""
    rows, heads, head_dim = query.shape
    kv_heads = key.shape[1]
    keys, values = (part.transpose(0, 1)[:, None] for part in (key, value))
    grouped = query.transpose(0, 1).reshape(kv_heads, heads // kv_heads, rows, head_dim)
    if mask is None:
        seen = torch.ones((rows, rows), dtype=torch.bool, device=query.device).tril()
        mask = torch.zeros((rows, rows), dtype=query.dtype, device=query.device).masked_fill_(~seen, float("-inf"))
    parts = []
    for start in range(0, rows, _ROWS):
        part = slice(start, start + _ROWS)
        parts.append(weigh(grouped[:, :, part], keys, values, mask[part], scores))
    return torch.cat(parts, dim=2).reshape(heads, rows, head_dim).transpose(0, 1)
