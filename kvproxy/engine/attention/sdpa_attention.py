"""Attention by torch's `scaled_dot_product_attention` (SDPA), for every device and dtype. It copies the cached blocks.

SDPA does not support score softcapping and attention sinks, so such models use matrix products.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F

from kvproxy.engine.attention.interface import KV, AttentionOp, ScoreOptions
from kvproxy.engine.models.layer_groups import FULL_ATTENTION, LayerGroup
from kvproxy.engine.models.linear_layers import supports_packed_linear
from kvproxy.engine.scheduler.scheduler_output import TokenSpan
from kvproxy.engine.worker.host_device_copies import upload
from kvproxy.engine.worker.kv_pool import KVPool

_MAX_CALL_ROWS = 256  # query rows per SDPA call in layers with windows, so that a call skips keys outside the window
_MIN_EAGER_SCORES = 4096  # number of scores from which on `_eager_attention` is faster in bfloat16 on a CPU
_MAX_EAGER_ROWS = 128  # query rows of one matrix product: all scores of a long prompt would take gigabytes


class SdpaPrefill:
    def prepare(self, spans: Sequence[TokenSpan], pool: KVPool, group: LayerGroup = FULL_ATTENTION) -> AttentionOp:
        calls: list[_SdpaCall] = []
        begin = 0
        for span in spans:
            calls += _sdpa_calls(span, begin, pool, group)
            begin += len(span.tokens)
        dtype = pool.data.dtype
        prefer_eager = dtype == torch.bfloat16 and supports_packed_linear(pool.data.device, dtype)

        def attend(query: torch.Tensor, new: KV, cached: KV, scores: ScoreOptions) -> torch.Tensor:
            output = torch.empty_like(query)
            for call in calls:
                blocks = call.blocks
                parts = new if blocks is None else [part.index_select(0, blocks).flatten(0, 1) for part in cached]
                key, value = (part[call.keys] for part in parts)
                rows = query[call.rows]
                is_large = prefer_eager and len(rows) * len(key) >= _MIN_EAGER_SCORES
                compute = _sdpa if scores.has_plain_softmax and not is_large else _eager_causal_attention
                output[call.rows] = compute(rows, key, value, call.mask, scores)
            return output

        return attend


class SdpaDecode:
    supports_capture = False

    def prepare(
        self, table: torch.Tensor, lengths: torch.Tensor, pool: KVPool, group: LayerGroup = FULL_ATTENTION
    ) -> AttentionOp:
        size = pool.block_size
        positions = torch.arange(table.shape[1] * size, device=table.device)[None]
        visible = positions < lengths[:, None]
        if group.kind != "full" and table.shape[1] * size > group.window:
            first = group.first_visible_key(lengths - 1)
            # Start each row's table at its first visible block.
            width = min(table.shape[1], -(-group.window // size) + 1)
            blocks = (first // size)[:, None] + torch.arange(width, device=table.device)[None]
            table = table.gather(1, blocks.clamp(max=table.shape[1] - 1))
            positions = (blocks[:, :, None] * size + torch.arange(size, device=table.device)).flatten(1)
            visible = (positions < lengths[:, None]) & (positions >= first[:, None])
        blocks, mask = table.flatten(), _additive_mask(visible, pool.data.dtype)[:, None, None]

        def attend(query: torch.Tensor, new: KV, cached: KV, scores: ScoreOptions) -> torch.Tensor:
            rows, heads, head_dim = query.shape
            kv_heads = cached[0].shape[2]
            key, value = (
                part.index_select(0, blocks).view(rows, -1, kv_heads, head_dim).transpose(1, 2) for part in cached
            )
            grouped = query.reshape(rows, kv_heads, heads // kv_heads, head_dim)
            if scores.has_plain_softmax:
                output = F.scaled_dot_product_attention(grouped, key, value, attn_mask=mask, scale=scores.scaling)
            else:
                output = _eager_attention(grouped[:, :, :, None], key, value, mask[:, :, None], scores)
            return output.reshape(rows, heads, head_dim)

        return attend


@dataclass(frozen=True, slots=True)
class _SdpaCall:
    rows: slice
    keys: slice  # of the keys in `blocks`, or of the keys of the step's tokens
    blocks: torch.Tensor | None
    mask: torch.Tensor | None


def _sdpa_calls(span: TokenSpan, begin: int, pool: KVPool, group: LayerGroup) -> list[_SdpaCall]:
    device, size = pool.data.device, pool.block_size
    calls = []
    for first, start, end in group.split_by_window(span.start, span.end, _MAX_CALL_ROWS):
        rows = slice(begin + start - span.start, begin + end - span.start)
        mask = None
        if first < start or first < group.first_visible_key(end - 1):
            at = torch.arange(start, end, device=device)[:, None]
            keys = torch.arange(first, end, device=device)[None]
            mask = _additive_mask((keys <= at) & (keys >= group.first_visible_key(at)), pool.data.dtype)
        if span.start:
            table = span.block_tables[group.index][first // size : -(-end // size)]
            visible = slice(first % size, end - first // size * size)
            calls.append(_SdpaCall(rows, visible, upload(table, device), mask))
        else:
            calls.append(_SdpaCall(rows, slice(begin + first, begin + end), None, mask))
    return calls


def _sdpa(
    query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, mask: torch.Tensor | None, scores: ScoreOptions
) -> torch.Tensor:
    group = query.shape[1] // key.shape[1]
    if group > 1 and query.is_cuda:
        # With grouped heads, SDPA falls back to a kernel that materializes all scores.
        key, value = (part.repeat_interleave(group, dim=1) for part in (key, value))
        group = 1
    # is_causal aligns the first query with the first key: correct only without a past.
    output = F.scaled_dot_product_attention(
        query.transpose(0, 1)[None],
        key.transpose(0, 1)[None],
        value.transpose(0, 1)[None],
        attn_mask=mask,
        is_causal=mask is None,
        scale=scores.scaling,
        enable_gqa=group > 1,
    )
    return output[0].transpose(0, 1)


def _additive_mask(visible: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    return torch.zeros(visible.shape, dtype=dtype, device=visible.device).masked_fill_(~visible, float("-inf"))


def _eager_attention(
    query: torch.Tensor,  # [.., kv_heads, group, rows, head_dim]; `group` query heads share a KV head
    key: torch.Tensor,  # [.., kv_heads, keys, head_dim], values likewise
    value: torch.Tensor,
    mask: torch.Tensor,  # [.., rows, n], added to the scores of the last `n` keys; all other keys are visible
    scores: ScoreOptions,
) -> torch.Tensor:
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


def _eager_causal_attention(
    query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, mask: torch.Tensor | None, scores: ScoreOptions
) -> torch.Tensor:
    rows, heads, _ = query.shape
    kv_heads = key.shape[1]
    past = key.shape[0] - rows
    keys, values = (part.transpose(0, 1) for part in (key, value))
    grouped = query.transpose(0, 1).reshape(kv_heads, heads // kv_heads, rows, -1)
    output = torch.empty_like(query)
    for start in range(0, rows, _MAX_EAGER_ROWS):
        stop = min(start + _MAX_EAGER_ROWS, rows)
        end = past + stop
        if mask is None:
            visible = torch.full((stop - start, stop - start), float("-inf"), device=query.device).triu_(1)
        else:
            visible = mask[start:stop, :end]
        part = _eager_attention(grouped[:, :, start:stop], keys[:, :end], values[:, :end], visible, scores)
        output[start:stop] = part.flatten(0, 1).transpose(0, 1)
    return output
