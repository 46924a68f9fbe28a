"""Attention by `scaled_dot_product_attention` over gathered blocks: on every device, in every data type.

Where scores are capped or heads have sinks, which SDPA does not know, the scores are written out.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F

from kvproxy.engine.attention.eager import eager_attention, eager_causal_attention
from kvproxy.engine.attention.interface import KV, AttentionOp, ScoreOptions
from kvproxy.engine.kernels.packed_linear import can_pack
from kvproxy.engine.models.layer_groups import FULL, LayerGroup
from kvproxy.engine.scheduler.token_span import TokenSpan
from kvproxy.engine.worker.kv_pool import KVPool
from kvproxy.engine.worker.transfer import upload

_LONGEST_RUN = 256
"""Most rows that are computed together where attention is limited: each run reads its rows' keys and no others."""
_MANY_SCORES = 4096
"""So many scores of a run on are computed as products of matrices on a CPU that multiplies bfloat16: torch's own attention
does not use that, and takes three times as long."""


class SdpaPrefill:
    """One call a span, or one for each run of a span where attention is limited."""

    name = "sdpa"

    def prepare(self, spans: Sequence[TokenSpan], pool: KVPool, group: LayerGroup = FULL) -> AttentionOp:
        runs: list[_Run] = []
        begin = 0
        for span in spans:
            runs += _runs(span, begin, pool, group)
            begin += len(span.tokens)
        kind = pool.data.dtype
        return _PrefillRuns(tuple(runs), kind == torch.bfloat16 and can_pack(pool.data.device, kind))


class SdpaDecode:
    """One call for all rows, over a batch that is padded to the row that sees most."""

    name = "sdpa"
    capturable = False

    def prepare(
        self, table: torch.Tensor, lengths: torch.Tensor, pool: KVPool, group: LayerGroup = FULL
    ) -> AttentionOp:
        size = pool.block_size
        places = torch.arange(table.shape[1] * size, device=table.device)[None]
        seen = places < lengths[:, None]
        # Where no row has a token beyond the window, there is nothing to leave out.
        if group.kind != "full" and table.shape[1] * size > group.reach:
            first = group.first_seen(lengths - 1)
            # Each row's table begins with the first block that it sees.
            width = min(table.shape[1], -(-group.reach // size) + 1)
            blocks = (first // size)[:, None] + torch.arange(width, device=table.device)[None]
            table = table.gather(1, blocks.clamp(max=table.shape[1] - 1))
            places = (blocks[:, :, None] * size + torch.arange(size, device=table.device)).flatten(1)
            seen = (places < lengths[:, None]) & (places >= first[:, None])
        return _DecodeRows(table, _additive(seen, pool.data.dtype)[:, None, None])


@dataclass(frozen=True, slots=True)
class _Run:
    """Tokens of one sequence and what they see.

    Attributes:
        rows: of the step.
        keys: of the step's own rows, where the sequence has no past; else the tokens of `blocks` that are seen.
        blocks: the sequence's blocks from the first that is seen on; None without a past.
        mask: who sees what; None where each row sees all keys up to itself.
    """

    rows: slice
    keys: slice
    blocks: torch.Tensor | None
    mask: torch.Tensor | None


def _runs(span: TokenSpan, begin: int, pool: KVPool, group: LayerGroup) -> list[_Run]:
    """The runs of a span whose first row is `begin`."""
    device, size = pool.data.device, pool.block_size
    runs = []
    for first, start, end in group.runs(span.start, span.end, _LONGEST_RUN):
        rows = slice(begin + start - span.start, begin + end - span.start)
        mask = None
        if first < start or first < group.first_seen(end - 1):
            at = torch.arange(start, end, device=device)[:, None]
            keys = torch.arange(first, end, device=device)[None]
            mask = _additive((keys <= at) & (keys >= group.first_seen(at)), pool.data.dtype)
        if span.start:
            table = span.tables[group.number][first // size : -(-end // size)]
            seen = slice(first % size, end - first // size * size)
            runs.append(_Run(rows, seen, upload(table, device), mask))
        else:
            runs.append(_Run(rows, slice(begin + first, begin + end), None, mask))
    return runs


@dataclass(frozen=True, slots=True)
class _PrefillRuns:
    """`has_products`: products of matrices are faster than SDPA."""

    runs: tuple[_Run, ...]
    has_products: bool

    def __call__(self, query: torch.Tensor, new: KV, cached: KV, scores: ScoreOptions) -> torch.Tensor:
        output = torch.empty_like(query)
        for run in self.runs:
            parts = new if run.blocks is None else _gather(cached, run.blocks)
            key, value = (part[run.keys] for part in parts)
            rows = query[run.rows]
            is_large = self.has_products and len(rows) * len(key) >= _MANY_SCORES
            attend = _attend if scores.is_plain and not is_large else eager_causal_attention
            output[run.rows] = attend(rows, key, value, run.mask, scores)
        return output


def _gather(cached: KV, blocks: torch.Tensor) -> KV:
    """The tokens of blocks, `[tokens, kv_heads, head_dim]` each."""
    keys, values = cached
    return keys.index_select(0, blocks).flatten(0, 1), values.index_select(0, blocks).flatten(0, 1)


def _attend(
    query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, mask: torch.Tensor | None, scores: ScoreOptions
) -> torch.Tensor:
    group = query.shape[1] // key.shape[1]
    if group > 1 and query.is_cuda:
        # Grouped heads keep SDPA off its memory-efficient kernel, and what is left writes out the whole score matrix.
        key, value = (part.repeat_interleave(group, dim=1) for part in (key, value))
        group = 1
    # SDPA's is_causal aligns queries and keys at their first element: right only for rows that see nothing before them.
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


@dataclass(frozen=True, slots=True)
class _DecodeRows:
    """`mask` is `[rows, 1, 1, blocks * block_size]`, 0 where a row may look and -inf elsewhere."""

    table: torch.Tensor
    mask: torch.Tensor

    def __call__(self, query: torch.Tensor, new: KV, cached: KV, scores: ScoreOptions) -> torch.Tensor:
        rows, heads, head_dim = query.shape
        kv_heads = cached[0].shape[2]
        blocks = self.table.flatten()
        key, value = (
            part.index_select(0, blocks).view(rows, -1, kv_heads, head_dim).transpose(1, 2) for part in cached
        )
        # The query heads that share a key head become rows of one small matrix product.
        grouped = query.reshape(rows, kv_heads, heads // kv_heads, head_dim)
        if scores.is_plain:
            output = F.scaled_dot_product_attention(grouped, key, value, attn_mask=self.mask, scale=scores.scaling)
        else:
            output = eager_attention(grouped[:, :, :, None], key, value, self.mask[:, :, None], scores)
        return output.reshape(rows, heads, head_dim)


def _additive(seen: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """A mask to add to the scores; made once a step, where SDPA would convert a boolean one in every layer."""
    return torch.zeros(seen.shape, dtype=dtype, device=seen.device).masked_fill_(~seen, float("-inf"))
