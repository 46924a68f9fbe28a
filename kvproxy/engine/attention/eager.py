"""Attention whose scores are written out, for what SDPA does not know: capped scores, and sinks."""

import torch

from kvproxy.engine.attention.interface import ScoreOptions

_ROWS = 128
"""Most rows that are computed together: all scores of a long prompt would take gigabytes, and few stay in a cache."""


def eager_attention(
    query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, mask: torch.Tensor, scores: ScoreOptions
) -> torch.Tensor:
    """What queries see.

    Args:
        query: `[.., kv_heads, group, rows, head_dim]`, the heads of a group share a key head.
        key, value: `[.., kv_heads, keys, head_dim]`.
        mask: added to the scores of the last keys, `[.., rows, last keys]`.
        scores: how keys are weighed.

    Returns:
        The shape of `query`. Scores are of the number format of the queries, weights are computed in float32.
    """
    scaling = query.shape[-1] ** -0.5 if scores.scaling is None else scores.scaling
    # The heads of a group as rows of one product.
    weights = (query.flatten(-3, -2) @ key.transpose(-1, -2)).float().mul_(scaling)
    weights = weights.view(*query.shape[:-1], key.shape[-2])
    if scores.cap is not None:
        weights = weights.div_(scores.cap).tanh_().mul_(scores.cap)
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
    """What the last rows of one sequence see, `[rows, heads, head_dim]`; without a mask each sees the keys up to its own."""
    rows, heads, _ = query.shape
    kv_heads = key.shape[1]
    past = key.shape[0] - rows
    keys, values = (part.transpose(0, 1) for part in (key, value))
    grouped = query.transpose(0, 1).reshape(kv_heads, heads // kv_heads, rows, -1)
    output = torch.empty_like(query)
    for start in range(0, rows, _ROWS):
        stop = min(start + _ROWS, rows)
        # Keys behind the last of these rows are seen by none of them.
        end = past + stop
        seen = _up_to_itself(stop - start, query.device) if mask is None else mask[start:stop, :end]
        part = eager_attention(grouped[:, :, start:stop], keys[:, :end], values[:, :end], seen, scores)
        output[start:stop] = part.flatten(0, 1).transpose(0, 1)
    return output


def _up_to_itself(rows: int, device: torch.device) -> torch.Tensor:
    return torch.full((rows, rows), float("-inf"), device=device).triu_(1)
