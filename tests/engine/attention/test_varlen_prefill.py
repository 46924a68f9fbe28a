"""Prompts packed for FlashAttention: where their keys are gathered from, and which rows belong together."""

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st

from kvproxy.blocks.single_type_manager import GroupKind
from kvproxy.engine.attention.interface import PrefillBackend, ScoreOptions
from kvproxy.engine.attention.sdpa_attention import SdpaPrefill
from kvproxy.engine.attention.varlen_prefill import PackedLayout, VarlenPrefill, apply_sinks, unsupported_reason
from kvproxy.engine.models.layer_groups import FULL_ATTENTION, LayerGroup
from kvproxy.engine.models.linear_layers import can_pack
from tests.gpu.paged import CPU, TOLERANCE, Heads, prefill_error


def packed_attention(
    query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, packing: PackedLayout, scores: ScoreOptions
) -> torch.Tensor:
    """FlashAttention's contract on any device: causal, the last query aligned with the last key."""
    parts = []
    assert packing.query_ends.dtype == packing.key_ends.dtype == torch.int32
    queries, keys = packing.query_ends.tolist(), packing.key_ends.tolist()
    assert (len(query), len(key)) == (queries[-1], keys[-1])
    for at in range(len(queries) - 1):
        rows, seen = slice(queries[at], queries[at + 1]), slice(keys[at], keys[at + 1])
        count, context = rows.stop - rows.start, seen.stop - seen.start
        assert count <= packing.max_query_len
        assert context <= packing.max_key_len
        mask = torch.ones(count, context, dtype=torch.bool).tril(context - count)
        if packing.window is not None:
            mask &= torch.ones(count, context, dtype=torch.bool).triu(context - count - packing.window + 1)
        repeated = key[seen].repeat_interleave(query.shape[1] // key.shape[1], dim=1)
        weights = torch.einsum("qhd,khd->qhk", query[rows], repeated) * (scores.scaling or query.shape[-1] ** -0.5)
        weights = weights.masked_fill(~mask[:, None], float("-inf"))
        output = F.scaled_dot_product_attention(
            query[rows].transpose(0, 1),
            key[seen].transpose(0, 1),
            value[seen].transpose(0, 1),
            attn_mask=mask,
            scale=scores.scaling,
            enable_gqa=True,
        ).transpose(0, 1)
        parts.append(output if scores.sinks is None else apply_sinks(output, weights.logsumexp(dim=-1), scores.sinks))
    return torch.cat(parts)


def check(
    shape: list[tuple[int, int]],
    block_size: int,
    shared: int,
    scores: ScoreOptions,
    group: LayerGroup = FULL_ATTENTION,
    dtype: torch.dtype = torch.float32,
) -> None:
    """Both backends for prompts of (past, new) tokens."""
    backends: list[PrefillBackend] = [SdpaPrefill()]
    if scores.softcap is None and dtype == torch.float32:
        backends.append(VarlenPrefill(packed_attention))
    for backend in backends:
        found = prefill_error(
            backend, Heads(4, 2, 8), shape, block_size, dtype, shared=shared, scores=scores, group=group
        )
        assert found < TOLERANCE[dtype]


@settings(deadline=None)
@given(
    st.lists(st.tuples(st.integers(0, 40), st.integers(1, 40)), min_size=1, max_size=3),
    st.integers(1, 7),
    st.sampled_from(["full", "sliding_window", "chunked_local"]),
    st.integers(1, 50),
    st.sampled_from([None, 0.5, 30.0]),
    st.booleans(),
    st.integers(0, 2),
)
def test_packed_prompts_equal_plain_attention(
    shape: list[tuple[int, int]],
    block_size: int,
    kind: GroupKind,
    reach: int,
    cap: float | None,
    has_sinks: bool,
    shared: int,
) -> None:
    """Also with limited attention, capped scores, sinks, and shared blocks."""
    scores = ScoreOptions(0.4 if shared else None, cap, torch.randn(4) if has_sinks else None)
    check(shape, block_size, shared, scores, LayerGroup(0, kind, reach))


@pytest.mark.parametrize("group", [LayerGroup(0, "sliding_window", 100), LayerGroup(0, "chunked_local", 300)], ids=str)
@pytest.mark.parametrize("scores", [ScoreOptions(), ScoreOptions(None, 20.0, torch.zeros(4))], ids=["plain", "capped"])
def test_long_prompts_are_computed_in_runs(group: LayerGroup, scores: ScoreOptions) -> None:
    check([(0, 700), (333, 290)], 16, 0, scores, group)


@pytest.mark.parametrize(
    "group",
    [FULL_ATTENTION, LayerGroup(0, "sliding_window", 100), LayerGroup(0, "chunked_local", 300)],
    ids=["full", "window", "chunks"],
)
def test_prompts_in_bfloat16(group: LayerGroup) -> None:
    """Those with many scores are computed as products of matrices."""
    if not can_pack(CPU, torch.bfloat16):
        pytest.skip("this processor does not multiply bfloat16")
    check([(0, 40), (0, 300), (333, 290), (700, 20), (5, 3)], 16, 0, ScoreOptions(), group, torch.bfloat16)


@pytest.mark.parametrize("device", ["cpu", "meta"])
def test_flash_attention_says_where_it_cannot_run(device: str) -> None:
    assert "needs a CUDA device" in (unsupported_reason(torch.device(device), torch.bfloat16, 64) or "")
