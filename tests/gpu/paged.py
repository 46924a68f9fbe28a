"""Random pools and tables to try attention on, and what it should give, token by token."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from kvproxy.engine.attention.interface import DEFAULT_SCORES, ScoreOptions
from kvproxy.engine.models.layer_groups import FULL_ATTENTION, LayerGroup
from kvproxy.engine.scheduler.output import TokenSpan
from kvproxy.engine.worker.kv_pool import KVPool, KVShape

TOLERANCE = {torch.float32: 2e-5, torch.float16: 2e-3, torch.bfloat16: 1e-2}
"""Largest error allowed, |output - exact| / |exact| over a whole tensor; the 16-bit ones round their output."""


@dataclass(frozen=True, slots=True)
class Heads:
    """How wide attention is."""

    heads: int
    kv_heads: int
    head_dim: int


def poisoned_pool(
    heads: Heads, blocks: int, block_size: int, dtype: torch.dtype, device: torch.device, seed: int = 0
) -> KVPool:
    """One layer of random content, in which every token that `fill` does not write is NaN."""
    torch.manual_seed(seed)
    pool = KVPool(KVShape(1, heads.kv_heads, heads.head_dim), blocks, block_size, dtype, device)
    pool.data.fill_(float("nan"))
    return pool


def fill(pool: KVPool, tables: Sequence[Sequence[int]], lengths: Sequence[int]) -> None:
    """Random keys and values for the tokens that the tables hold."""
    for table, length in zip(tables, lengths, strict=True):
        for at, block in enumerate(table):
            used = min(pool.block_size, length - at * pool.block_size)
            if used > 0:
                part = pool.data[:, :, block, :used]
                part.copy_(torch.where(part.isnan(), torch.randn_like(part), part))


def random_tables(
    lengths: Sequence[int], block_size: int, blocks: int, shared: int = 0, seed: int = 0
) -> list[list[int]]:
    """Tables of sequences whose first `shared` blocks are the same; no other block is used twice, and block 0 never."""
    order = (torch.randperm(blocks - 1, generator=torch.Generator().manual_seed(seed)) + 1).tolist()
    common, rest = order[:shared], iter(order[shared:])
    return [[common[at] if at < shared else next(rest) for at in range(-(-length // block_size))] for length in lengths]


def expected_rows(
    query: torch.Tensor,
    pool: KVPool,
    spans: Sequence[TokenSpan],
    scores: ScoreOptions = DEFAULT_SCORES,
    group: LayerGroup = FULL_ATTENTION,
) -> torch.Tensor:
    """Attention of the spans' rows in float64, one sequence after the other, `[rows, heads, head_dim]`."""
    outputs, begin = [], 0
    scaling = query.shape[-1] ** -0.5 if scores.scaling is None else scores.scaling
    for span in spans:
        rows = query[begin : (begin := begin + len(span.tokens))].double()
        blocks = torch.tensor(span.block_tables[group.index], device=query.device)
        key, value = (
            part[blocks].flatten(0, 1)[: span.end].double().nan_to_num().repeat_interleave(
                query.shape[1] // part.shape[2], dim=1
            )
            for part in pool.layer(0)
        )  # fmt: skip
        weights = torch.einsum("qhd,khd->hqk", rows, key) * scaling
        if scores.softcap is not None:
            weights = scores.softcap * torch.tanh(weights / scores.softcap)
        at = torch.arange(span.start, span.end, device=query.device)[:, None]
        seen = _seen(at, torch.arange(span.end, device=query.device)[None], group)
        weights = weights.exp().masked_fill(~seen, 0.0)
        total = weights.sum(dim=-1, keepdim=True)
        if scores.sinks is not None:
            total = total + scores.sinks.double().exp()[:, None, None]
        outputs.append(torch.einsum("hqk,khd->qhd", weights / total, value))
    return torch.cat(outputs)


def _seen(at: torch.Tensor, key: torch.Tensor, group: LayerGroup) -> torch.Tensor:
    """Whether the token at a place sees a key, by transformers' rules."""
    if group.kind == "sliding_window":
        return (key <= at) & (key > at - group.reach)
    if group.kind == "chunked_local":
        return (key <= at) & (key // group.reach == at // group.reach)
    return key <= at


def error(output: torch.Tensor, exact: torch.Tensor) -> float:
    """|output - exact| / |exact|; NaN where the output has any."""
    return float((output.double() - exact).norm() / exact.norm())
