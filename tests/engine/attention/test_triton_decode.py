"""The decode kernels under Triton's interpreter, compared with attention computed token by token."""

from collections.abc import Callable

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from kvproxy.blocks.single_type_manager import GroupKind
from kvproxy.engine.attention.interface import ScoreOptions
from kvproxy.engine.attention.sdpa_attention import SdpaDecode
from kvproxy.engine.attention.triton_decode import TritonDecode
from kvproxy.engine.models.layer_groups import LayerGroup
from tests.gpu.paged import CPU, TOLERANCE, Heads, decode_error, poisoned_pool


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


@pytest.mark.parametrize("lengths", [[127], [128, 129], [1024, 300], [1025]])
def test_stretches_are_merged(lengths: list[int]) -> None:
    for most in (1, 8):
        assert decode_error(TritonDecode(most), Heads(2, 1, 16), lengths) < TOLERANCE[torch.float32]


@settings(max_examples=8, deadline=None)
@given(
    st.sampled_from([(1, 1), (2, 1), (4, 2), (3, 3), (7, 1), (20, 1)]),
    st.integers(1, 40),
    st.sampled_from([1, 3, 16, 64]),
    st.lists(st.integers(1, 200), min_size=1, max_size=3),
    st.integers(0, 3),
    st.sampled_from([None, 0.3]),
)
def test_any_shape(
    heads: tuple[int, int], head_dim: int, block_size: int, lengths: list[int], shared: int, scaling: float | None
) -> None:
    found = decode_error(
        TritonDecode(4), Heads(*heads, head_dim), lengths, block_size, shared=shared, scores=ScoreOptions(scaling)
    )
    assert found < TOLERANCE[torch.float32]


def test_how_many_programs_share_the_stretches_changes_no_bit() -> None:
    """A step captured for long sequences launches as many programs as keep the GPU busy, not one for each stretch."""
    heads = Heads(4, 2, 16)
    pool = poisoned_pool(heads, 41, 16, torch.float32, CPU)
    pool.data.normal_()
    lengths = [1, 130, 500]
    table = (torch.arange(40, dtype=torch.int32) + 1).expand(3, 40).contiguous()
    query = torch.randn(3, 4, 16)

    def rows(programs: int) -> torch.Tensor:
        backend = TritonDecode(8, num_programs=programs)
        return backend.prepare(table, torch.tensor(lengths), pool)(
            query, pool.layers[0], pool.layers[0], ScoreOptions()
        )

    one_each = rows(10_000)
    for programs in (1, 12):
        assert torch.equal(rows(programs), one_each)


@pytest.mark.parametrize(("rows", "launched"), [(1, 64), (8, 32), (64, 4), (384, 1)])
def test_a_launch_does_not_grow_with_what_a_step_was_captured_for(
    rows: int, launched: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """At 64 rows of 8 key heads and 16k tokens, seven eighths of 32,768 programs had nothing to do."""
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


@settings(max_examples=8, deadline=None)
@given(
    st.sampled_from(["full", "sliding_window", "chunked_local"]),
    st.integers(1, 50),
    st.sampled_from([1, 5, 16]),
    st.lists(st.integers(1, 150), min_size=1, max_size=3),
    st.sampled_from([None, 0.5, 30.0]),
    st.booleans(),
)
def test_limited_attention_capped_scores_and_sinks(
    kind: GroupKind, reach: int, block_size: int, lengths: list[int], cap: float | None, has_sinks: bool
) -> None:
    group = LayerGroup(0, kind, reach)
    scores = ScoreOptions(0.4, cap, torch.randn(4) if has_sinks else None)
    for backend in (TritonDecode(4, min_split=16), SdpaDecode()):
        found = decode_error(backend, Heads(4, 2, 8), lengths, block_size, scores=scores, group=group)
        assert found < TOLERANCE[torch.float32]
