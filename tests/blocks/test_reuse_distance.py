"""One pass over a trace gives the hits of every pool size."""

from dataclasses import replace
from itertools import accumulate

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kvproxy.analyse.simulate.pool_simulation import ChainRequest, lru_hits, simulate
from kvproxy.blocks import reuse_distance
from kvproxy.blocks.reuse_distance import HitCurve, LiveHitCurve, LRUStack

PROMPTS = st.lists(
    st.tuples(st.lists(st.integers(0, 2), max_size=6), st.integers(0, 1), st.booleans()), min_size=1, max_size=40
)


def chains(prompts: list[tuple[list[int], int, bool]]) -> list[ChainRequest]:
    ids: dict[tuple[int, ...], int] = {}
    return [
        ChainRequest(
            [ids.setdefault(tuple(path[: end + 1]), len(ids)) for end in range(len(path))],
            max(0, len(path) - computed),
            partial,
        )
        for path, computed, partial in prompts
    ]


@settings(max_examples=60, deadline=None)
@given(PROMPTS, st.integers(0, 4))
def test_every_size_equals_its_simulation(prompts: list[tuple[list[int], int, bool]], least: int) -> None:
    requests = [replace(chain, least=least) for chain in chains(prompts)]
    sizes = list(range(1, 60))
    assert lru_hits(requests, [*sizes, None]) == [simulate(requests, size, "lru").hits for size in [*sizes, None]]


def test_old_segments_are_numbered_anew(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reuse_distance, "_LEAST_SEGMENTS", 4)
    requests = chains([([turn % 3, turn % 5, 0][: 1 + turn % 3], 0, False) for turn in range(100)])
    assert lru_hits(requests, list(range(3, 20))) == [simulate(requests, size, "lru").hits for size in range(3, 20)]


def test_a_bounded_stack_forgets_the_least_recently_used() -> None:
    stack = LRUStack(max_ids=10)
    for number in range(100):
        stack.add([number])
    assert stack.add([99])
    assert not stack.add([0])
    assert stack.num_units <= 12


@settings(max_examples=60, deadline=None)
@given(PROMPTS)
def test_a_live_curve_weighs_each_region(prompts: list[tuple[list[int], int, bool]]) -> None:
    """A region of n KiB counts as n blocks of 1 KiB, here of 16 tokens, that are used together."""
    curve, blocks, ids = LiveHitCurve(), HitCurve(), dict[tuple[int, ...], int]()
    for path, _, _ in prompts:
        prefixes = [tuple(path[: end + 1]) for end in range(len(path))]
        sizes = [1 + token for token in path]
        curve.add(prefixes, [1024 * end for end in accumulate(sizes)], 16 * sum(sizes))
        parts = [(*prefix, -1, part) for prefix, size in zip(prefixes, sizes, strict=True) for part in range(size)]
        blocks.add([ids.setdefault(part, len(ids)) for part in parts], max(0, len(parts) - 1), ends_partially=False)
    if curve.units:
        hits = blocks.hits_by_pool_size()
        for size in (1, 2, 4, 8, 16, 32, 64):
            expected = hits[min(size, len(hits) - 1)] * 1024 / curve.units
            assert curve.hit_rate(16 * size) == pytest.approx(expected)
