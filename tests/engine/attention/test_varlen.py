"""Prompts packed for FlashAttention: where their keys are gathered from, and which rows belong together."""

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st

from kvproxy.engine.attention.sdpa import SdpaPrefill
from kvproxy.engine.attention.varlen import Packing, VarlenPrefill, why_not
from kvproxy.engine.span import Span
from tests.gpu.paged import TOLERANCE, Heads, error, expected_rows, fill, poisoned_pool, random_tables

CPU = torch.device("cpu")


def packed_attention(
    query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, packing: Packing, scaling: float | None
) -> torch.Tensor:
    """FlashAttention's contract on any device: causal, the last query aligned with the last key."""
    parts = []
    assert packing.query_ends.dtype == packing.key_ends.dtype == torch.int32
    queries, keys = packing.query_ends.tolist(), packing.key_ends.tolist()
    assert (len(query), len(key)) == (queries[-1], keys[-1])
    for at in range(len(queries) - 1):
        rows, seen = slice(queries[at], queries[at + 1]), slice(keys[at], keys[at + 1])
        count, context = rows.stop - rows.start, seen.stop - seen.start
        assert count <= packing.longest_query
        assert context <= packing.longest_key
        mask = torch.ones(count, context, dtype=torch.bool).tril(context - count)
        parts.append(
            F.scaled_dot_product_attention(
                query[rows].transpose(0, 1),
                key[seen].transpose(0, 1),
                value[seen].transpose(0, 1),
                attn_mask=mask,
                scale=scaling,
                enable_gqa=True,
            ).transpose(0, 1)
        )
    return torch.cat(parts)


@settings(deadline=None)
@given(
    st.lists(st.tuples(st.integers(0, 20), st.integers(1, 20)), min_size=1, max_size=4),
    st.integers(1, 7),
    st.integers(0, 2),
    st.sampled_from([None, 0.4]),
)
def test_packed_prompts_equal_plain_attention(
    shape: list[tuple[int, int]], block_size: int, shared: int, scaling: float | None
) -> None:
    heads = Heads(4, 2, 8)
    lengths = [past + count for past, count in shape]
    blocks = sum(-(-length // block_size) for length in lengths) + 2
    tables = random_tables(lengths, block_size, blocks, shared)
    pool = poisoned_pool(heads, blocks, block_size, torch.float32, CPU)
    fill(pool, tables, lengths)
    spans = [Span([0] * count, past, table) for (past, count), table in zip(shape, tables, strict=True)]
    query = torch.randn(sum(count for _, count in shape), heads.heads, heads.head_dim)
    slots = torch.tensor([slot for span in spans for slot in span.slots(block_size)])
    new = tuple(part.flatten(0, 1)[slots] for part in pool.layer(0))
    exact = expected_rows(query, pool, spans, scaling)
    for backend in (VarlenPrefill(packed_attention), SdpaPrefill()):
        output = backend.prepare(spans, pool)(query, new, pool.layer(0), scaling)  # type: ignore[arg-type]
        assert error(output, exact) < TOLERANCE[torch.float32]


@pytest.mark.parametrize(("device", "reason"), [("cpu", "needs a CUDA device"), ("meta", "needs a CUDA device")])
def test_flash_attention_says_where_it_cannot_run(device: str, reason: str) -> None:
    assert reason in (why_not(torch.device(device), torch.bfloat16, 64) or "")
