"""Replays of streams: the policy keeps its bound, serves much, tolerates errors of the judge, and detects changes."""

import gzip
import json
from pathlib import Path

import numpy as np
import pytest

from kvproxy.index.errors import ImportFailed
from kvproxy.index.evaluation.stream_evaluation import (
    _THRESHOLDS,
    StreamLine,
    _NearestOnlyPolicy,
    add_judge_errors,
    best_threshold,
    cumulative_counts,
    embed_stream,
    read_stream,
)
from kvproxy.index.evaluation.stream_replay import InMemoryObservations, ReplayOutcome, Stream, replay
from kvproxy.index.policies.checked import CheckedPolicy
from kvproxy.index.policies.learned.learned_policy import LearnedPolicy
from tests.index.doubles import HashEmbedder, OverlapVerifier


def cluster_stream(count: int, seed: int = 0, intents: int = 20, changed: int = 0) -> Stream:
    """Return questions around intents, some between two. In the second half, `changed` intents have another answer."""
    generator = np.random.default_rng(seed)
    # All texts have something in common, like those of the customers of one bank.
    centres = generator.normal(size=(intents, 24)) + 1.5 * generator.normal(size=24)
    of = generator.integers(0, intents, count)
    stray = generator.integers(0, intents, count)
    share = np.minimum(generator.beta(0.6, 4.0, count), 0.5)[:, None]
    vectors = (1 - share) * centres[of] + share * centres[stray] + generator.normal(size=(count, 24)) * 0.45
    vectors = (vectors / np.linalg.norm(vectors, axis=1, keepdims=True)).astype(np.float32)
    later = np.arange(count) >= count // 2
    answers = [f"answer {intent + 100 * (intent < changed and late)}" for intent, late in zip(of, later, strict=True)]
    texts = [f"question {number}" for number in range(count)]
    return Stream(texts, answers, vectors, lambda one, other: answers[one] == answers[other])


def learned(max_error: float) -> LearnedPolicy:
    return LearnedPolicy(
        InMemoryObservations(), CheckedPolicy(OverlapVerifier(), 0.99, 0.0, ()), max_error, 0.0, guards=()
    )


@pytest.fixture(scope="module")
def stream() -> Stream:
    return cluster_stream(1500)


def test_learned_keeps_the_bound_and_serves_more_than_the_best_fixed_threshold(
    stream: Stream, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("kvproxy.index.evaluation.stream_evaluation._THRESHOLDS", _THRESHOLDS[::16])
    policy = learned(0.05)
    found = replay(stream, policy)
    assert found.worst_wrong_share <= 0.05
    assert found.wrong.sum() <= policy.status("").most_wrong <= 0.05 * found.served.sum()
    _, fixed = best_threshold(stream, found.wrong_share, lambda share: None)
    assert found.hit_rate > 1.2 * fixed.hit_rate
    assert found.hit_rate > 0.65
    assert found.served[750:].sum() > 1.1 * found.served[:750].sum()


def test_a_replay_is_deterministic_and_counts_its_hits() -> None:
    short, policy = cluster_stream(600), learned(0.05)
    found, again = replay(short, policy, seed=3), replay(short, learned(0.05), seed=3)
    assert (found.served == again.served).all()
    policy.flush()
    assert policy.status("").served == found.served.sum() > 0
    assert policy.status("").expected_wrong > 0


def test_the_bound_holds_although_the_judge_errs(stream: Stream) -> None:
    found = replay(stream, learned(0.05), judge=add_judge_errors(stream.answers_equal, 0.01, 0))
    assert found.worst_wrong_share <= 0.05
    assert found.hit_rate > 0.2


def test_a_change_of_answers_is_detected() -> None:
    changing = cluster_stream(2000, changed=1)
    found = replay(changing, learned(0.05))
    assert found.wrong[1300:].sum() <= 0.05 * found.served[1300:].sum()
    # The new answers are served.
    late = [place for place in range(1300, 2000) if changing.answers[place] == "answer 100"]
    assert (found.served & ~found.wrong)[late].any()


def test_hits_return_after_all_answers_have_changed_together() -> None:
    found = replay(cluster_stream(1600, changed=20), learned(0.05))
    assert found.worst_wrong_share <= 0.05
    assert found.served[1200:].mean() > 0.5 * found.served[400:800].mean()


def test_shares_of_an_outcome() -> None:
    served, wrong = np.array([True, False, True, False]), np.array([True, False, False, False])
    assert (ReplayOutcome(served, wrong).hit_rate, ReplayOutcome(served, wrong).wrong_share) == (0.5, 0.5)
    nothing = ReplayOutcome(np.zeros(3, bool), np.zeros(3, bool))
    assert (nothing.hit_rate, nothing.wrong_share, nothing.worst_wrong_share) == (0.0, 0.0, 0.0)
    # The running share counts from the 500th served answer on.
    served, wrong = np.ones(600, bool), np.arange(600) < 10
    for _ in range(2):
        assert ReplayOutcome(served, wrong).worst_wrong_share == pytest.approx(10 / 500)
        wrong[599] = True
    assert ReplayOutcome(served[:100], wrong[:100]).worst_wrong_share == pytest.approx(0.1)
    assert cumulative_counts(ReplayOutcome(served, wrong))[-1] == (600, 600, 11)


def test_the_best_threshold_has_the_highest_hit_rate_within_the_bound() -> None:
    small = cluster_stream(60)
    each = {threshold: replay(small, _NearestOnlyPolicy(threshold)) for threshold in _THRESHOLDS}
    for bound in (0.02, 0.1):
        level, found = best_threshold(small, bound, lambda share: None)
        fits = {threshold: one.hit_rate for threshold, one in each.items() if one.wrong_share <= bound}
        assert 0 < found.hit_rate == max(fits.values())
        assert level is not None
        assert fits[level] == found.hit_rate
    level, found = best_threshold(small, -1.0, lambda share: None)
    assert (level, found.served.sum()) == (None, 0)


def test_an_invalid_line_of_a_stream_is_named(tmp_path: Path) -> None:
    path = tmp_path / "s.jsonl.gz"
    with gzip.open(path, "wt") as file:
        file.write('{"text": "a", "answer": "b"}\n\n{"text": "c", "answer": "d"}\n')
    assert read_stream(path) == [StreamLine("a", "b"), StreamLine("c", "d")]
    for bad in ('{"text": "a"}', '{"text": 1, "answer": "b"}', "x", "[]"):
        plain = tmp_path / "bad.jsonl"
        plain.write_text(json.dumps({"text": "a", "answer": "b"}) + "\n" + bad + "\n")
        with pytest.raises(ImportFailed, match="line 2"):
            read_stream(plain)
    (tmp_path / "none.jsonl").write_text("\n")
    with pytest.raises(ImportFailed, match="no lines"):
        read_stream(tmp_path / "none.jsonl")


def test_answers_are_compared_by_words_or_by_cosine() -> None:
    lines = [
        StreamLine("one", "the pool has blocks for all of the requests"),
        StreamLine("two", "The pool has blocks for all of the requests!"),
        StreamLine("one", "no idea at all, since nobody has asked before"),
        StreamLine("two", "the pool has no blocks for all of the requests"),
        StreamLine("two", "At present, there are blocks for all requests in the pool."),
    ]
    strict = embed_stream(lines, HashEmbedder(), None, lambda share: None)
    loose = embed_stream(lines, HashEmbedder(), -1.0, lambda share: None)
    assert (strict.answers_equal(0, 1), strict.answers_equal(0, 4), loose.answers_equal(0, 4)) == (True, False, True)
    assert loose.answers_equal(0, 2) is False, "they have nothing in common"
    assert loose.answers_equal(0, 3) is False, "a few words change the meaning"
    assert (strict.vectors[0] == strict.vectors[2]).all()
    turned = strict.reordered([2, 0, 1])
    assert (turned.texts, turned.answers_equal(1, 2), turned.answers_equal(0, 1)) == (
        ["one", "one", "two"],
        True,
        False,
    )
