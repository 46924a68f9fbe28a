"""Attention by `scaled_dot_product_attention` over gathered blocks: on every device, in every data type."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F

from kvproxy.engine.attention.interface import KV, Attend
from kvproxy.engine.pool import KVPool
from kvproxy.engine.span import Span
from kvproxy.engine.transfer import upload


class SdpaPrefill:
    """One call a span."""

    name = "sdpa"

    def prepare(self, spans: Sequence[Span], pool: KVPool) -> Attend:
        runs, begin = [], 0
        for span in spans:
            rows = slice(begin, begin := begin + len(span.tokens))
            runs.append(_Run(rows, span.end, *(_past(span, pool) if span.start else (None, None))))
        return _PrefillRuns(tuple(runs))


class SdpaDecode:
    """One call for all rows, over a batch that is padded to the longest sequence."""

    name = "sdpa"
    capturable = False

    def prepare(self, table: torch.Tensor, lengths: torch.Tensor, pool: KVPool) -> Attend:
        places = torch.arange(table.shape[1] * pool.block_size, device=table.device)
        mask = _additive(places[None] < lengths[:, None], pool.data.dtype)
        return _DecodeRows(table, mask[:, None, None])


@dataclass(frozen=True, slots=True)
class _Run:
    """Tokens of one sequence: their rows, what they see, its blocks; without blocks and mask where it has no past."""

    rows: slice
    context: int
    blocks: torch.Tensor | None
    mask: torch.Tensor | None


@dataclass(frozen=True, slots=True)
class _PrefillRuns:
    runs: tuple[_Run, ...]

    def __call__(self, query: torch.Tensor, new: KV, cached: KV, scaling: float | None) -> torch.Tensor:
        output = torch.empty_like(query)
        for run in self.runs:
            key, value = (part[run.rows] for part in new)
            if run.blocks is not None:
                key, value = (part.index_select(0, run.blocks).flatten(0, 1)[: run.context] for part in cached)
            output[run.rows] = _attend(query[run.rows], key, value, run.mask, scaling)
        return output


def _attend(
    query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, mask: torch.Tensor | None, scaling: float | None
) -> torch.Tensor:
    group = query.shape[1] // key.shape[1]
    if group > 1 and query.is_cuda:
        # Grouped heads keep SDPA off its memory-efficient kernel, and what is left writes out the whole score matrix.
        key, value = (part.repeat_interleave(group, dim=1) for part in (key, value))
        group = 1
    # SDPA's is_causal aligns queries and keys at their first element: right only for a span without a past.
    output = F.scaled_dot_product_attention(
        query.transpose(0, 1)[None],
        key.transpose(0, 1)[None],
        value.transpose(0, 1)[None],
        attn_mask=mask,
        is_causal=mask is None,
        scale=scaling,
        enable_gqa=group > 1,
    )
    return output[0].transpose(0, 1)


@dataclass(frozen=True, slots=True)
class _DecodeRows:
    """`mask` is `[rows, 1, 1, blocks * block_size]`, 0 where a row may look and -inf elsewhere."""

    table: torch.Tensor
    mask: torch.Tensor

    def __call__(self, query: torch.Tensor, new: KV, cached: KV, scaling: float | None) -> torch.Tensor:
        rows, heads, head_dim = query.shape
        kv_heads = cached[0].shape[2]
        blocks = self.table.flatten()
        key, value = (
            part.index_select(0, blocks).view(rows, -1, kv_heads, head_dim).transpose(1, 2) for part in cached
        )
        # The query heads that share a key head become rows of one small matrix product.
        grouped = query.reshape(rows, kv_heads, heads // kv_heads, head_dim)
        output = F.scaled_dot_product_attention(grouped, key, value, attn_mask=self.mask, scale=scaling)
        return output.reshape(rows, heads, head_dim)


def _past(span: Span, pool: KVPool) -> tuple[torch.Tensor, torch.Tensor]:
    device = pool.data.device
    blocks = upload(span.blocks[: -(-span.end // pool.block_size)], device)
    rows = torch.arange(span.start, span.end, device=device)[:, None]
    return blocks, _additive(torch.arange(span.end, device=device)[None] <= rows, pool.data.dtype)


def _additive(seen: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """A mask to add to the scores; made once a step, where SDPA would convert a boolean one in every layer."""
    return torch.zeros(seen.shape, dtype=dtype, device=seen.device).masked_fill_(~seen, float("-inf"))
