"""Decisions of the policies; limits of a request can only make them stricter."""

import math
import random
import re
from collections.abc import Callable, Sequence

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kvproxy.index.evaluation.confidence_intervals import wilson_interval
from kvproxy.index.policies.checked import CheckedPolicy
from kvproxy.index.policies.learned.learned_policy import LearnedPolicy
from kvproxy.index.policies.policy import LearningSummary, Limits, Neighbour, Policy, checked_interval
from kvproxy.index.policies.threshold import ThresholdPolicy
from kvproxy.index.store.observations import Observation
from tests.index.doubles import OverlapVerifier
from tests.reference.memory_observations import MemoryObservations


class Fixed(OverlapVerifier):
    """A verifier with a fixed score for each stored question, or for all. Records what it reads."""

    def __init__(self, scores: dict[str, float] | float) -> None:
        self.scores = scores
        self.read: list[str] = []

    def score(self, pairs: Sequence[tuple[str, str]], cosines: np.ndarray | None = None) -> np.ndarray:
        self.read += [cached for _, cached in pairs]
        scores = self.scores
        return np.array([scores[cached] if isinstance(scores, dict) else scores for _, cached in pairs], np.float32)


def taught(level: float, checked: CheckedPolicy | None = None) -> LearnedPolicy:
    """Return a learned policy that serves answers with errors up to a level."""
    policy = LearnedPolicy(MemoryObservations(), checked, 0.1, floor=0.5)
    policy.learner("").level.error_limit = level
    policy.learner("").level.expected = 100.0
    policy.learner("").level.error_factor = 1.0
    return policy


def test_threshold_compares_the_cosine_and_applies_guards() -> None:
    near = [Neighbour("How do I enable 2FA?", 0.97), Neighbour("How do I disable 2FA?", 0.96), Neighbour("x", 0.5)]
    plain = ThresholdPolicy(0.95, guards=()).decide("How do I disable 2FA?", near)
    assert [each.verdict for each in plain.decisions] == ["accepted", "accepted", "low similarity"]
    guarded = ThresholdPolicy(0.95).decide("How do I disable 2FA?", near)
    assert (guarded.decisions[0].verdict, guarded.decisions[0].guard) == ("vetoed", "opposites")
    assert guarded.chosen == 1


def test_the_verifier_reads_the_nearest_neighbour_first_and_stops_at_a_decision() -> None:
    question = "What is a?"
    near = [Neighbour("What is b?", 0.9), Neighbour("What is not a?", 0.9)]
    near += [Neighbour("What is c?", 0.8), Neighbour("What is d?", 0.8), Neighbour("far", 0.3)]

    def verdicts(**scores: float) -> list[str]:
        verifier = Fixed({f"What is {word}?": score for word, score in scores.items()})
        result = CheckedPolicy(verifier, 0.9, 0.7).decide(question, near)
        assert verifier.read == [f"What is {word}?" for word in scores]
        accepted = [place for place, each in enumerate(result.decisions) if each.verdict == "accepted"]
        assert accepted == [place for place in [result.chosen] if place is not None]
        return [each.verdict for each in result.decisions]

    below = "low probability"
    assert verdicts(b=0.95) == ["accepted", *["not compared"] * 4]
    assert verdicts(b=0.6, c=0.95) == [below, "vetoed", "accepted", "not compared", "not compared"]
    assert verdicts(b=0.6, c=0.6, d=0.6) == [below, "vetoed", below, below, "low similarity"]
    near_enough = CheckedPolicy(Fixed({"What is b?": 0.75}), 0.75, 0.7).decide(question, near)
    assert near_enough.chosen == 0
    # The score is so low that farther neighbours need not be read.
    assert verdicts(b=0.2) == [below, *["not compared"] * 4]
    assert CheckedPolicy(Fixed({}), 0.9, 0.7).decide(question, near[4:]).decisions[0].score is None
    assert CheckedPolicy(Fixed({}), 0.9, 0.7).decide(question, []).decisions == []


class Bounded(Fixed):
    """A verifier that hardly accepts cosines below 0.7."""

    def least_cosine(self, level: float) -> float:
        return 0.7


def test_below_the_bound_of_the_verifier_only_equal_wordings_are_served() -> None:
    near = [Neighbour("How do I buy a ticket?", 0.69), Neighbour("Where can I buy tickets?", 0.69)]
    verifier = Bounded(0.9)
    policy = CheckedPolicy(verifier, 0.8, 0.6, guards=())
    decisions = policy.decide("How can I purchase a ticket?", near).decisions
    assert ([each.verdict for each in decisions], verifier.read) == (["low similarity", "not compared"], [])
    assert policy.decide("How could I buy a ticket, please?", near).chosen == 0
    assert policy.decide("How can I purchase a ticket?", [Neighbour("How do I buy a ticket?", 0.7)]).chosen == 0


POLICIES = st.sampled_from(
    [
        ThresholdPolicy(0.8),
        ThresholdPolicy(0.8, guards=()),
        CheckedPolicy(OverlapVerifier(), 0.5, 0.6),
        taught(0.0, CheckedPolicy(OverlapVerifier(), 0.5, 0.6)),
        taught(0.5, CheckedPolicy(OverlapVerifier(), 0.5, 0.6)),
        taught(0.9),
    ]
)
NUMBER = st.one_of(st.none(), st.floats(-2, 2), st.just(float("inf")))
TEXT = st.lists(st.sampled_from("open close block cache 2 3".split()), min_size=1, max_size=4).map(" ".join)
NEAR = st.lists(st.builds(Neighbour, TEXT, st.floats(0, 1), st.sampled_from("abc")), max_size=5)


@settings(deadline=None, max_examples=150)
@given(POLICIES, TEXT, NEAR, st.builds(Limits, NUMBER, NUMBER, NUMBER))
def test_a_request_makes_matching_stricter_never_looser(
    policy: Policy, question: str, near: list[Neighbour], limits: Limits
) -> None:
    near = sorted(near, key=lambda each: -each.similarity)
    plain, limited = (policy.decide(question, near, asked) for asked in (Limits(), limits))
    assert limited.chosen is None or plain.chosen is not None


def near_class(*classes: str) -> list[Neighbour]:
    return [
        Neighbour(f"how do I open the account {place}", 0.98 - place / 100, name) for place, name in enumerate(classes)
    ]


def test_a_single_entry_needs_the_verifier() -> None:
    alone, together = near_class("a", "b", "b"), near_class("a", "a", "b")
    for score, verdict in ((0.1, "low probability"), (0.92, "low probability"), (0.97, "accepted")):
        policy = taught(1.0, CheckedPolicy(Fixed(score), 0.9, 0.5, guards=()))
        assert policy.decide("how do I open the account", alone).decisions[0].verdict == verdict
        assert policy.decide("how do I open the account", together).chosen == 0
        # After many right answers, the verifier may be less sure.
        policy.learner("").num_checked = 100
        assert (policy.decide("how do I open the account", alone).chosen == 0) is (score > 0.9)
    assert taught(1.0).decide("how do I open the account", alone).chosen is None


def test_a_veto_stands_until_it_is_lifted_for_the_class() -> None:
    policy, question, near = taught(1.0), "how do I close the account", near_class("a", "a")
    assert policy.decide(question, near).decisions[0].guard == "opposites"
    policy.learner("").class_evidence.update_guards("a", ["opposites"], right=True)
    assert policy.decide(question, near).chosen == 0
    policy.learner("").class_evidence.update_guards("a", ["opposites"], right=False)
    assert policy.decide(question, near).decisions[0].guard == "opposites"


def test_checked_decides_in_a_new_namespace() -> None:
    policy = LearnedPolicy(MemoryObservations(), CheckedPolicy(Fixed(0.95), 0.9, 0.5, guards=()), 0.02, floor=0.5)
    result = policy.decide("how do I open the account", near_class("a"))
    assert (result.chosen, result.exploration_share) == (0, 0.0)
    assert result.record is not None
    assert result.record.checked
    assert policy.status("").serves_checked
    policy.learner("").num_checked, policy.learner("").num_checked_wrong = 20, 4
    assert policy.decide("how do I open the account", near_class("a")).chosen is None
    status = policy.status("")
    assert (status.serves, status.serves_checked) == (False, False)


def explored_hits(right: Callable[[int], bool], most: int) -> tuple[int, int, LearnedPolicy]:
    """Serve reworded questions in a new namespace; return the numbers of hits and of wrong hits."""
    policy = LearnedPolicy(MemoryObservations(), CheckedPolicy(Fixed(0.95), 0.9, 0.5, guards=()), 0.02, floor=0.5)
    chance, near = random.Random(0), near_class("a")
    hits = wrong = 0
    for number in range(most):
        result = policy.decide("how do I open the account", near)
        if (record := result.record) is None:
            continue
        is_hit = result.chosen is not None and chance.random() >= result.exploration_share
        if is_hit:
            hits, wrong = hits + 1, wrong + (not right(number))
            policy.record_served("", record.risk, by_checked=bool(record.checked), answer_class="a")
        else:
            seen = {"features": record.features, "error": record.error, "answer": "a", "checked": True}
            policy.learn([Observation("a", right(number), "answer", is_hit, 0.0, **seen)])  # type: ignore[arg-type]
    return hits, wrong, policy


def test_hits_of_checked_are_explored_so_that_wrong_ones_end_them() -> None:
    hits, wrong, policy = explored_hits(lambda number: number % 2 == 0, 400)
    assert 10 <= hits <= 40
    assert wrong <= 20
    expected = policy.status("").expected_wrong
    assert expected is not None
    assert expected > 0.02 * hits


def test_undecided_comparisons_of_checked_widen_the_bound_of_wrong_hits() -> None:
    _, _, policy = explored_hits(lambda number: True, 60)
    before = policy.status("")
    for _ in range(3):
        policy.learn([Observation("a", False, "undecided", True, 0.0, "", checked=True)])
    after = policy.status("")
    assert (after.checked_equal, after.checked_different) == (before.checked_equal, 0)
    assert (before.checked_undecided, after.checked_undecided) == (0, 3)
    assert after.expected_wrong == before.expected_wrong
    assert before.most_wrong < after.most_wrong
    share = checked_interval(after.checked_equal, 0, 3)[1]
    assert after.most_wrong >= math.ceil(share * after.by_checked)
    assert policy.learner("").num_checked_undecided == pytest.approx(3, abs=0.1)


def test_the_interval_of_checked_counts_undecided_comparisons_both_ways() -> None:
    assert checked_interval(0, 0, 0) == (0.0, 1.0)
    least, most = checked_interval(9, 1, 3)
    assert least == wilson_interval(1, 13)[0]
    assert most == wilson_interval(4, 13)[1]


def test_a_model_that_contradicts_itself_keeps_the_hits_of_checked_with_a_warning() -> None:
    policy = LearnedPolicy(MemoryObservations(), CheckedPolicy(Fixed(0.95), 0.9, 0.5, guards=()), 0.02, floor=0.5)
    near, learner = near_class("a"), policy.learner("")
    learner.level.served = 300
    learner.num_comparisons, learner.num_checked, learner.num_checked_wrong = 60, 20, 19
    assert policy.decide("how do I open the account", near).chosen == 0
    status = policy.status("")
    assert (status.expected_wrong, status.most_wrong) == (None, 300)
    assert re.match(
        r"19 fresh answers .* differ .* the model contradicts itself, or hits are wrong: ", status.warning or ""
    )
    learner.num_checked_wrong = 17
    assert policy.decide("how do I open the account", near).chosen is None
    assert policy.status("").warning is None
    learner.num_checked_wrong, learner.num_equal = 20, 10
    assert policy.decide("how do I open the account", near).chosen is None


def test_the_first_hits_are_not_explored_and_later_ones_less() -> None:
    hits, _, policy = explored_hits(lambda number: True, 10)
    assert hits == 10
    assert policy.status("").expected_wrong is None
    assert policy.status("").most_wrong == 10
    assert LearningSummary.from_statuses([policy.status("")]).expected_wrong is None
    hits, wrong, policy = explored_hits(lambda number: True, 500)
    assert wrong == 0
    assert hits >= 0.85 * 500
    assert policy.learner("").num_checked >= 20


@pytest.mark.parametrize(
    "policy",
    [
        ThresholdPolicy(0.5),
        CheckedPolicy(Fixed(1.0), 0.5, 0.5),
        taught(1.0),
        taught(0.0, CheckedPolicy(Fixed(1.0), 0.5, 0.5)),
    ],
    ids=["threshold", "checked", "learned", "learned by checked"],
)
def test_a_minimum_similarity_of_1_allows_no_semantic_hit(policy: Policy) -> None:
    # The cosine of two float32 unit vectors may exceed 1.
    near = [Neighbour("what is a block?", float(np.float32(1.0000002)), "a"), Neighbour("what is a block", 1.0, "a")]
    assert policy.decide("What is a block?", near).chosen is not None
    assert policy.decide("What is a block?", near, Limits(min_similarity=0.9999)).chosen is not None
    assert policy.decide("What is a block?", near, Limits(min_similarity=1.0)).chosen is None
