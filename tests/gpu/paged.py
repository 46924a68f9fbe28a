"""Random pools and block tables for attention, and the expected output, token by token."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from kvproxy.engine.attention.interface import DecodeBackend, PrefillBackend, ScoreOptions
from kvproxy.engine.attention.paged_attention import decode_block_table
from kvproxy.engine.models.layer_groups import FULL_ATTENTION, LayerGroup
from kvproxy.engine.scheduler.scheduler_output import TokenSpan
from kvproxy.engine.worker.kv_pool import KVPool, KVShape

CPU = torch.device("cpu")
TOLERANCE = {torch.float32: 2e-5, torch.float16: 2e-3, torch.bfloat16: 1e-2}
"""Largest error allowed, |output - exact| / |exact| over a whole tensor; the 16-bit ones round their output."""


@dataclass(frozen=True, slots=True)
class Heads:
    heads: int
    kv_heads: int
    head_dim: int


def poisoned_pool(
    heads: Heads, blocks: int, block_size: int, dtype: torch.dtype, device: torch.device, seed: int = 0
) -> KVPool:
    torch.manual_seed(seed)
    pool = KVPool(KVShape(1, heads.kv_heads, heads.head_dim), blocks, block_size, dtype, device)
    pool.data.fill_(float("nan"))
    return pool


def fill(pool: KVPool, tables: Sequence[Sequence[int]], lengths: Sequence[int]) -> None:
    for table, length in zip(tables, lengths, strict=True):
        for at, block in enumerate(table):
            used = min(pool.block_size, length - at * pool.block_size)
            if used > 0:
                part = pool.data[:, :, block, :used]
                part.copy_(torch.where(part.isnan(), torch.randn_like(part), part))


def random_tables(
    lengths: Sequence[int], block_size: int, blocks: int, shared: int = 0, seed: int = 0
) -> list[list[int]]:
    order = (torch.randperm(blocks - 1, generator=torch.Generator().manual_seed(seed)) + 1).tolist()
    common, rest = order[:shared], iter(order[shared:])
    return [[common[at] if at < shared else next(rest) for at in range(-(-length // block_size))] for length in lengths]


def expected_rows(
    query: torch.Tensor,
    pool: KVPool,
    spans: Sequence[TokenSpan],
    scores: ScoreOptions = ScoreOptions(),
    group: LayerGroup = FULL_ATTENTION,
) -> torch.Tensor:
    outputs, begin = [], 0
    scaling = query.shape[-1] ** -0.5 if scores.scaling is None else scores.scaling
    for span in spans:
        rows = query[begin : (begin := begin + len(span.tokens))].double()
        blocks = torch.tensor(span.block_tables[group.index], device=query.device)
        key, value = (
            part[blocks].flatten(0, 1)[: span.end].double().nan_to_num().repeat_interleave(
                query.shape[1] // part.shape[2], dim=1
            )
            for part in pool.layers[0]
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
    if group.kind == "sliding_window":
        return (key <= at) & (key > at - group.window)
    if group.kind == "chunked_local":
        return (key <= at) & (key // group.window == at // group.window)
    return key <= at


def error(output: torch.Tensor, exact: torch.Tensor) -> float:
    return float((output.double() - exact).norm() / exact.norm())


def decode_error(
    backend: DecodeBackend,
    heads: Heads,
    lengths: list[int],
    block_size: int = 16,
    dtype: torch.dtype = torch.float32,
    device: torch.device = CPU,
    *,
    shared: int = 0,
    scores: ScoreOptions = ScoreOptions(),
    group: LayerGroup = FULL_ATTENTION,
) -> float:
    tables, pool = _paged(heads, lengths, block_size, dtype, device, shared)
    if not backend.supports_capture:
        pool.data.nan_to_num_()
    query = torch.randn(len(lengths), heads.heads, heads.head_dim, device=device).to(dtype)
    spans = [TokenSpan([0], length - 1, [table]) for table, length in zip(tables, lengths, strict=True)]
    exact = expected_rows(query, pool, spans, scores, group)
    _forget_out_of_reach(spans, block_size, group)
    new = (torch.full((len(lengths), heads.kv_heads, heads.head_dim), float("nan"), device=device),) * 2
    attend = backend.prepare(
        decode_block_table(spans, block_size, device), torch.tensor(lengths, device=device), pool, group
    )
    output = attend(query, new, pool.layers[0], scores)
    assert output.dtype == dtype
    return error(output, exact)


def prefill_error(
    backend: PrefillBackend,
    heads: Heads,
    shape: list[tuple[int, int]],
    block_size: int = 16,
    dtype: torch.dtype = torch.float32,
    device: torch.device = CPU,
    *,
    shared: int = 0,
    scores: ScoreOptions = ScoreOptions(),
    group: LayerGroup = FULL_ATTENTION,
) -> float:
    lengths = [past + count for past, count in shape]
    tables, pool = _paged(heads, lengths, block_size, dtype, device, shared)
    spans = [TokenSpan([0] * count, past, [table]) for (past, count), table in zip(shape, tables, strict=True)]
    rows = sum(count for _, count in shape)
    query = torch.randn(rows, heads.heads, heads.head_dim, device=device).to(dtype)
    slots = torch.tensor([slot for span in spans for slot in span.slot_mapping(block_size)], device=device)
    key, value = (part.flatten(0, 1)[slots] for part in pool.layers[0])
    exact = expected_rows(query, pool, spans, scores, group)
    _forget_out_of_reach(spans, block_size, group)
    return error(backend.prepare(spans, pool, group)(query, (key, value), pool.layers[0], scores), exact)


def _paged(
    heads: Heads, lengths: list[int], block_size: int, dtype: torch.dtype, device: torch.device, shared: int
) -> tuple[list[list[int]], KVPool]:
    blocks = sum(-(-length // block_size) for length in lengths) + 2
    tables = random_tables(lengths, block_size, blocks, shared)
    pool = poisoned_pool(heads, blocks, block_size, dtype, device)
    fill(pool, tables, lengths)
    return tables, pool


def _forget_out_of_reach(spans: Sequence[TokenSpan], block_size: int, group: LayerGroup) -> None:
    for span in spans:
        (table,) = span.block_tables
        out_of_reach = group.first_visible_key(span.start) // block_size
        table[:out_of_reach] = [0] * out_of_reach
