"""Attention backends, compared with attention computed token by token."""

from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st

from kvproxy.blocks.single_type_manager import GroupKind
from kvproxy.engine.attention import triton_kernels
from kvproxy.engine.attention.interface import PrefillBackend, ScoreOptions
from kvproxy.engine.attention.sdpa_attention import SdpaDecode, SdpaPrefill
from kvproxy.engine.attention.selector import select_backends
from kvproxy.engine.attention.triton_decode import TritonDecode
from kvproxy.engine.attention.varlen_prefill import PackedLayout, VarlenPrefill, apply_sinks
from kvproxy.engine.models.layer_groups import FULL_ATTENTION, LayerGroup
from kvproxy.engine.models.linear_layers import supports_packed_linear
from kvproxy.errors import SettingsError
from tests.gpu.paged import CPU, TOLERANCE, Heads, decode_error, poisoned_pool, prefill_error


def test_a_cpu_uses_sdpa_unless_told_otherwise() -> None:
    for name in ("auto", "sdpa"):
        backends = select_backends(CPU, torch.float32, 64, prefill=name, decode=name)
        assert isinstance(backends.prefill, SdpaPrefill)
        assert isinstance(backends.decode, SdpaDecode)
    # The interpreter is on in these tests.
    assert isinstance(select_backends(CPU, torch.float32, 64, decode="triton").decode, TritonDecode)


def test_a_backend_that_needs_a_gpu_is_refused_on_a_cpu(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(SettingsError, match=r"prefill_attention = varlen cannot run on cpu.*use auto or sdpa"):
        select_backends(CPU, torch.bfloat16, 64, prefill="varlen")
    # Without the interpreter, the kernels are not its functions.
    monkeypatch.setattr(triton_kernels, "split_kv_attention", object())
    with pytest.raises(SettingsError, match="decode_attention = triton cannot run on cpu: it needs a CUDA device"):
        select_backends(CPU, torch.float32, 64, decode="triton")
    assert isinstance(select_backends(CPU, torch.float32, 64).decode, SdpaDecode)


@pytest.mark.parametrize(
    ("heads", "block_size", "lengths", "dtype"),
    [
        (Heads(4, 4, 32), 16, [1, 16, 17], torch.float32),
        (Heads(8, 2, 64), 16, [33, 5], torch.bfloat16),
        (Heads(4, 1, 80), 8, [70], torch.float16),
        (Heads(6, 2, 96), 5, [40, 3], torch.bfloat16),
        (Heads(16, 2, 128), 32, [31], torch.float32),
        (Heads(32, 1, 16), 16, [130], torch.float16),
    ],
    ids=str,
)
def test_kernels_equal_plain_attention(heads: Heads, block_size: int, lengths: list[int], dtype: torch.dtype) -> None:
    assert decode_error(TritonDecode(), heads, lengths, block_size, dtype) < TOLERANCE[dtype]


@pytest.mark.parametrize("lengths", [[127], [128, 129], [1025]])
def test_stretches_are_merged(lengths: list[int]) -> None:
    for most in (1, 8):
        assert decode_error(TritonDecode(most), Heads(2, 1, 16), lengths) < TOLERANCE[torch.float32]


def test_how_many_programs_share_the_stretches_changes_no_bit() -> None:
    heads = Heads(4, 2, 16)
    pool = poisoned_pool(heads, 17, 16, torch.float32, CPU)
    pool.data.normal_()
    lengths = [1, 130, 250]
    table = (torch.arange(16, dtype=torch.int32) + 1).expand(3, 16).contiguous()
    query = torch.randn(3, 4, 16)

    def rows(programs: int) -> torch.Tensor:
        attend = TritonDecode(8, num_programs=programs).prepare(table, torch.tensor(lengths), pool)
        return attend(query, pool.layers[0], pool.layers[0], ScoreOptions())

    one_each = rows(10_000)
    for programs in (1, 12):
        assert torch.equal(rows(programs), one_each)


@pytest.mark.parametrize(("rows", "launched"), [(1, 64), (8, 32), (64, 4), (384, 1)])
def test_a_launch_does_not_grow_with_what_a_step_was_captured_for(
    rows: int, launched: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    grids: list[tuple[int, ...]] = []

    class Kernel:
        def __getitem__(self, grid: tuple[int, ...]) -> Callable[..., None]:
            grids.append(grid)
            return lambda *arguments, **options: None

    for name in ("split_kv_attention", "merge_splits"):
        monkeypatch.setattr(f"kvproxy.engine.attention.triton_kernels.{name}", Kernel())
    pool = poisoned_pool(Heads(32, 8, 16), 3, 16, torch.float32, CPU)
    table = torch.zeros((rows, 1024), dtype=torch.int32)
    attend = TritonDecode().prepare(table, torch.ones(rows, dtype=torch.int64), pool)
    attend(torch.zeros(rows, 32, 16), pool.layers[0], pool.layers[0], ScoreOptions())
    assert grids == [(rows, 8, launched), (rows, 32)]


@settings(max_examples=10, deadline=None)
@given(
    st.builds(Heads, heads=st.sampled_from([3, 6, 21]), kv_heads=st.sampled_from([1, 3]), head_dim=st.integers(1, 40)),
    st.builds(LayerGroup, st.just(0), st.sampled_from(["full", "sliding_window", "chunked_local"]), st.integers(1, 50)),
    st.sampled_from([1, 5, 16, 64]),
    st.lists(st.integers(1, 200), min_size=1, max_size=3),
    st.integers(0, 3),
    st.sampled_from([None, 0.4]),
    st.sampled_from([None, 0.5, 30.0]),
    st.booleans(),
)
def test_any_shape_limits_caps_and_sinks(
    heads: Heads,
    group: LayerGroup,
    block_size: int,
    lengths: list[int],
    shared: int,
    scaling: float | None,
    cap: float | None,
    has_sinks: bool,
) -> None:
    scores = ScoreOptions(scaling, cap, torch.randn(heads.heads) if has_sinks else None)
    for backend in (TritonDecode(4, min_split=16), SdpaDecode()):
        found = decode_error(backend, heads, lengths, block_size, shared=shared, scores=scores, group=group)
        assert found < TOLERANCE[torch.float32]


def packed_attention(
    query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, packing: PackedLayout, scores: ScoreOptions
) -> torch.Tensor:
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
    backends: list[PrefillBackend] = [SdpaPrefill()]
    if scores.softcap is None and dtype == torch.float32:
        backends.append(VarlenPrefill(packed_attention))
    for backend in backends:
        heads = Heads(4, 2, 8)
        found = prefill_error(backend, heads, shape, block_size, dtype, shared=shared, scores=scores, group=group)
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
    scores = ScoreOptions(0.4 if shared else None, cap, torch.randn(4) if has_sinks else None)
    check(shape, block_size, shared, scores, LayerGroup(0, kind, reach))


@pytest.mark.parametrize("group", [LayerGroup(0, "sliding_window", 100), LayerGroup(0, "chunked_local", 300)], ids=str)
@pytest.mark.parametrize("scores", [ScoreOptions(), ScoreOptions(None, 20.0, torch.zeros(4))], ids=["plain", "capped"])
def test_long_prompts_are_computed_in_runs(group: LayerGroup, scores: ScoreOptions) -> None:
    check([(0, 700), (333, 290)], 16, 0, scores, group)


@pytest.mark.parametrize(
    "group", [FULL_ATTENTION, LayerGroup(0, "sliding_window", 100), LayerGroup(0, "chunked_local", 300)], ids=str
)
def test_prompts_in_bfloat16(group: LayerGroup) -> None:
    if not supports_packed_linear(CPU, torch.bfloat16):
        pytest.skip("this processor does not multiply bfloat16")
    check([(0, 40), (0, 300), (333, 290), (700, 20), (5, 3)], 16, 0, ScoreOptions(), group, torch.bfloat16)
