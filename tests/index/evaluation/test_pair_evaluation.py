"""Calibration agrees with the policies, and P-CHR AUC with its definition."""

import gzip
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kvproxy.index.errors import ImportFailed
from kvproxy.index.evaluation.confidence_intervals import pairs_for_bound, wilson_interval
from kvproxy.index.evaluation.labelled_pairs import LabelledPair, read_pairs
from kvproxy.index.evaluation.pair_evaluation import LevelResult, calibrate
from kvproxy.index.evaluation.stream_replay import (
    ReplayOutcome,
    precision_hit_ratio_area,
    precision_recall_area,
)
from kvproxy.index.policies.checked import CheckedPolicy
from kvproxy.index.policies.policy import Neighbour, Policy
from kvproxy.index.policies.threshold import ThresholdPolicy
from tests.index.doubles import HashEmbedder, OverlapVerifier

WORDS = st.lists(st.sampled_from("how what block cache not 2 3 open close Paris Rome".split()), min_size=1, max_size=5)
TEXT = WORDS.map(" ".join)
PAIRS = st.lists(st.builds(LabelledPair, TEXT, TEXT, st.booleans()), min_size=1, max_size=30)
LEVELS, FLOOR = {"threshold": 0.951, "checked": 0.52}, 0.75


class ReadingSome(OverlapVerifier):
    def can_read(self, text: str) -> bool:
        return len(text) % 2 == 0


@given(st.floats(0.0001, 1.0))
def test_the_number_of_pairs_for_a_bound_is_minimal(bound: float) -> None:
    total = pairs_for_bound(bound)
    assert not total or wilson_interval(0, total)[1] <= bound + 1e-9
    assert total < 2 or wilson_interval(0, total - 1)[1] > bound - 1e-9


@settings(deadline=None, max_examples=40)
@given(PAIRS)
def test_curves_agree_with_the_policies(pairs: list[LabelledPair]) -> None:
    embedder, verifier = HashEmbedder(), ReadingSome()
    result = calibrate(pairs, embedder, verifier, LEVELS, FLOOR)
    cosine = [float(embedder.embed([pair.a])[0] @ embedder.embed([pair.b])[0]) for pair in pairs]

    def agrees(policy: Policy, point: LevelResult) -> None:
        near = [(pair, Neighbour(pair.b, score)) for pair, score in zip(pairs, cosine, strict=True)]
        served = [pair for pair, one in near if policy.decide(pair.a, [one]).chosen is not None]
        right = sum(pair.same for pair in served)
        assert point.served == len(served)
        assert point.hit_rate == pytest.approx(right / result.same if result.same else 0.0)
        assert point.wrong_share == (pytest.approx(1 - right / len(served)) if served else None)

    curves = result.curves
    for alone, guarded in zip(curves["threshold"], curves["guards"], strict=True):
        if all(abs(score - alone.level) > 1e-4 for score in cosine):  # Batches of another size round differently.
            agrees(ThresholdPolicy(alone.level, guards=()), alone)
            agrees(ThresholdPolicy(guarded.level), guarded)
    if all(abs(score - FLOOR) > 1e-4 for score in cosine):
        for point in curves["checked"][::7]:
            agrees(CheckedPolicy(verifier, point.level, FLOOR), point)
    for name, level in {"threshold": 0.951, "guards": 0.951, "checked": 0.52}.items():
        assert result.default[name] == level
        assert level in [point.level for point in curves[name]]
        assert [point.level for point in curves[name]] == sorted({point.level for point in curves[name]})


def test_questions_with_exact_hits_only_are_never_served() -> None:
    class Short(HashEmbedder):
        def can_read(self, text: str) -> bool:
            return len(text) < 50

    same = LabelledPair("How do I open the window?", "How do I open the window?", True)
    foreign = [
        LabelledPair("Wie kann ich meinen Zugang aktivieren?", "Wie kann ich meinen Zugang deaktivieren?", False),
        LabelledPair("How do I open the window\U000e0041?", same.b, False),
        LabelledPair(f"{same.a} {same.a}", f"{same.a} {same.a}", True),
    ]
    levels = {"threshold": 0.1, "checked": 0.01}
    every = calibrate([same, *foreign], HashEmbedder(), OverlapVerifier(), levels, 0.1, guards=())
    english = calibrate([same, *foreign], Short(), OverlapVerifier(), levels, 0.1, guards=(), languages=("en",))
    for name, curve in english.curves.items():
        assert curve[0].served == 1
        assert every.curves[name][0].served == 3


def test_the_verifier_reads_only_pairs_that_could_be_served() -> None:
    asked: list[tuple[str, str]] = []

    class Counting(OverlapVerifier):
        def score(self, pairs: Sequence[tuple[str, str]], cosines: np.ndarray | None = None) -> np.ndarray:
            asked.extend(pairs)
            return super().score(pairs)

    pairs = [
        LabelledPair("what is a block", "what is a block here", True),
        LabelledPair("what is a block", "coffee", False),
    ]
    pairs += [LabelledPair("open port 2 here please", "open port 3 here please", False)]
    calibrate(pairs, HashEmbedder(), Counting(), LEVELS, FLOOR)
    assert asked == [("what is a block", "what is a block here")]
    assert "checked" not in calibrate(pairs, HashEmbedder(), None, LEVELS, FLOOR).curves


class Angles(HashEmbedder):
    """A text is an angle in degrees."""

    def embed(self, texts: Sequence[str]) -> np.ndarray:
        angles = np.radians([float(text) for text in texts])
        return np.stack([np.cos(angles), np.sin(angles)], axis=1).astype(np.float32)


def test_the_lowest_level_within_the_target_is_recommended() -> None:
    # cos 10 = 0.985, cos 20 = 0.940, cos 35 = 0.819: right, right, wrong.
    pairs = (
        [LabelledPair("0", "10", True)] * 200
        + [LabelledPair("0", "20", True)] * 200
        + [LabelledPair("0", "35", False)] * 200
    )
    result = calibrate(pairs, Angles(), None, LEVELS, FLOOR, guards=())
    assert result.recommended == {"threshold": 0.82, "guards": 0.82}
    few = calibrate(pairs[:3], Angles(), None, LEVELS, FLOOR, guards=())
    assert few.recommended["threshold"] is None


@pytest.mark.parametrize("name", ["pairs.jsonl", "pairs.jsonl.gz"])
def test_an_invalid_line_of_pairs_is_named(tmp_path: Path, name: str) -> None:
    path = tmp_path / name
    write = gzip.compress if name.endswith(".gz") else bytes
    path.write_bytes(write(b'{"a": "x", "b": "y", "same": 1, "source": "s"}\n\n{"a": "x", "b": "z", "same": false}\n'))
    assert list(read_pairs(path)) == [LabelledPair("x", "y", True), LabelledPair("x", "z", False)]
    for bad in (b"{", b"[]", b'{"a": "x", "b": 1, "same": 1}', b'{"a": "x", "b": "y", "same": 2}', b"\xff\n"):
        path.write_bytes(write(b'{"a": "x", "b": "y", "same": 1}\n' + bad))
        with pytest.raises(ImportFailed, match=r"line [12]"):
            list(read_pairs(path))


def test_a_file_of_pairs_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    for name in ("missing.jsonl", "missing.jsonl.gz"):
        with pytest.raises(ImportFailed, match=rf"^no file {tmp_path / name}: check the path$"):
            list(read_pairs(tmp_path / name))
    with pytest.raises(ImportFailed, match=rf"^cannot read {tmp_path}: Is a directory$"):
        list(read_pairs(tmp_path))


def test_wilson_interval() -> None:
    assert wilson_interval(0, 0) == (0.0, 1.0)
    assert wilson_interval(5, 100) == pytest.approx((0.0215, 0.1118), abs=1e-3)  # The textbook's value.
    assert wilson_interval(0, 50)[0] == 0.0


def test_the_area_is_the_mean_precision_over_all_hit_rates() -> None:
    right = np.array([True, False, True, True])
    assert precision_hit_ratio_area(np.array([0.9, 0.8, 0.7, 0.6]), right) == pytest.approx(
        (1 + 1 / 2 + 2 / 3 + 3 / 4) / 4
    )
    # An answer that is never served adds nothing.
    assert precision_hit_ratio_area(np.array([0.9, -1.0, 0.7, 0.6]), right) == pytest.approx(3 / 4)
    assert precision_hit_ratio_area(np.empty(0), np.empty(0)) == 0.0


def test_crr_compares_the_precision_of_hits_with_the_ranking() -> None:
    scores, right = np.array([0.9, 0.8, 0.7, 0.6, -1.0]), np.array([True, False, True, False, False])
    assert precision_recall_area(scores, right) == pytest.approx((1 + 2 / 3) / 2)
    outcome = ReplayOutcome(scores > 0.65, ~right, scores, right)
    assert outcome.p_chr_auc == pytest.approx((1 + 1 / 2 + 2 / 3 + 1 / 2) / 5)
    assert outcome.crr == pytest.approx(outcome.p_chr_auc / (5 / 6))
    assert np.isnan(ReplayOutcome(scores > 1, right, scores, np.zeros(5, bool)).crr)
