"""The training pairs of the verifier."""

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvproxy.index.evaluation.labelled_pairs import Pair
from training.verifier.implied import implied
from training.verifier.splits import cluster_sizes, hold_out, split_clusters

EDGES = st.lists(st.tuples(st.integers(0, 60), st.integers(0, 60)), max_size=120)


@given(EDGES, st.integers(0, 5))
def test_no_question_is_in_two_parts(edges: list[tuple[int, int]], seed: int) -> None:
    pairs = [Pair(str(one), str(other), True) for one, other in edges]
    parts = split_clusters(pairs, (0.2, 0.3), seed)
    texts = [{text for pair in part for text in (pair.a, pair.b)} for part in parts]
    assert not texts[0] & texts[1]
    assert not texts[0] & texts[2]
    assert not texts[1] & texts[2]
    assert sorted(repr(pair) for part in parts for pair in part) == sorted(map(repr, pairs))


def test_the_split_is_deterministic_and_has_the_documented_size() -> None:
    rng = random.Random(1)
    pairs = [Pair(f"q{rng.randrange(5000)}", f"q{rng.randrange(5000)}", bool(n % 2)) for n in range(2000)]
    parts = hold_out(pairs)
    assert parts == hold_out(pairs)
    assert len(parts.calibrate) == pytest.approx(100, abs=20)
    assert len(parts.report) == pytest.approx(140, abs=20)


def test_a_cluster_contains_all_connected_questions() -> None:
    pairs = [Pair(one, other, True) for one, other in ("ab", "bc", "xy", "ca")]
    assert cluster_sizes(pairs) == [3, 3, 1, 3]


def test_implied_pairs_follow_from_labelled_ones() -> None:
    labelled = [Pair("a", "b", True), Pair("b", "c", True), Pair("c", "x", False), Pair("x", "y", True)]
    found = {(*sorted((pair.a, pair.b)), pair.same) for pair in implied(labelled)}
    assert found == {("a", "c", True), ("a", "x", False), ("a", "y", False), ("b", "x", False)} | {
        ("b", "y", False),
        ("c", "y", False),
    }
    assert implied(labelled, largest=2) == []


@given(st.lists(st.tuples(st.integers(0, 8), st.integers(0, 8)), max_size=30), st.integers(0, 3))
def test_consistent_labels_imply_only_true_pairs(edges: list[tuple[int, int]], seed: int) -> None:
    truth = random.Random(seed).choices(range(3), k=9)
    labelled = [Pair(str(a), str(b), truth[a] == truth[b]) for a, b in edges if a != b]
    for pair in implied(labelled):
        assert pair.same == (truth[int(pair.a)] == truth[int(pair.b)])
        assert Pair(pair.a, pair.b, pair.same) not in labelled
