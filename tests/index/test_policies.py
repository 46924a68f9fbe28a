"""Policies accept what they say they accept, and requests only ever make them stricter."""

from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from kvproxy.index.policies.population import Population, coordinate, likelihood
from kvproxy.index.policies.verified import VerifiedPolicy
from tests.benchmarks.verified_policy import simulate

from kvproxy.index.guards import GUARDS
from kvproxy.index.observations import History, Observation
from kvproxy.index.policies.checked import CheckedPolicy
from kvproxy.index.policies.policy import Decision, Limits, Neighbour, Policy, best
from kvproxy.index.policies.threshold import ThresholdPolicy
from kvproxy.index.verifier.overlap import OverlapVerifier
from tests.reference.memory_observations import MemoryObservations


class Fixed:
    """A verifier that says what it was given, and remembers what it was asked."""

    name = "fixed"

    def __init__(self, *scores: float) -> None:
        self.scores = scores
        self.asked: list[list[tuple[str, str]]] = []

    def score(self, pairs: Sequence[tuple[str, str]], cosines: np.ndarray) -> np.ndarray:
        self.asked.append(list(pairs))
        return np.array(self.scores[: len(pairs)], dtype=np.float32)


def taught(error_share: float, max_error: float = 0.05, count: int = 1200) -> VerifiedPolicy:
    """A policy that saw many entries be right from 0.9 on, but for a share of them."""
    policy, observations = VerifiedPolicy(Fixed(0.99), max_error, floor=0.5), MemoryObservations()
    generator = np.random.default_rng(0)
    for number in range(count):
        high = bool(number % 2)
        right = high and generator.random() >= error_share
        observations.add([Observation(f"{number}", 0.99 if high else 0.2, right, "fixed", "answer", False, 0.0)])
    policy.learn(observations, count)
    return policy


def test_threshold_is_the_cosine_alone_without_guards() -> None:
    near = [Neighbour("How do I enable 2FA?", 0.97), Neighbour("How do I disable 2FA?", 0.96), Neighbour("x", 0.5)]
    verdicts = [each.verdict for each in ThresholdPolicy(0.95, guards=()).decide("How do I disable 2FA?", near)]
    assert verdicts == ["accepted", "accepted", "below threshold"]
    guarded = ThresholdPolicy(0.95).decide("How do I disable 2FA?", near)
    assert (guarded[0].verdict, guarded[0].guard) == ("vetoed", "opposites")
    assert best(guarded) == 1


def test_the_verifier_is_asked_once_and_only_about_what_is_left() -> None:
    verifier = Fixed(0.6, 0.95)
    near = [
        Neighbour("What is b?", 0.9),
        Neighbour("What is not a?", 0.9),
        Neighbour("far", 0.3),
        Neighbour("What is c?", 0.8),
    ]
    decisions = CheckedPolicy(verifier, 0.9, 0.7).decide("What is a?", near)
    assert verifier.asked == [[("What is a?", "What is b?"), ("What is a?", "What is c?")]]
    assert [each.verdict for each in decisions] == ["below level", "vetoed", "below threshold", "accepted"]
    assert decisions[3].score == pytest.approx(0.95)
    assert best(decisions) == 3
    verifier.asked.clear()
    assert CheckedPolicy(verifier, 0.9, 0.7).decide("What is a?", near[2:3])[0].score is None
    assert verifier.asked == []
    assert CheckedPolicy(verifier, 0.9, 0.7).decide("What is a?", []) == []


def test_the_best_is_the_surest_then_the_nearest() -> None:
    accepted = [
        Decision("accepted", score=score, error=error) for score, error in ((0.9, 0.02), (0.8, 0.01), (0.9, 0.01))
    ]
    assert best([Decision("vetoed", score=1.0), *accepted]) == 3
    assert best([Decision("accepted", score=0.9)] * 2) == 0
    assert best([Decision("uncertain", score=1.0, error=0.0)]) is None


POLICIES = st.sampled_from(
    [
        ThresholdPolicy(0.8),
        ThresholdPolicy(0.8, guards=()),
        CheckedPolicy(OverlapVerifier(), 0.5, 0.6),
        VerifiedPolicy(OverlapVerifier(), 0.5, 0.6),
        VerifiedPolicy(None, 0.5, 0.6),
    ]
)
NUMBER = st.one_of(st.none(), st.floats(-2, 2), st.just(float("inf")))
TEXT = st.lists(st.sampled_from("open close block cache 2 3".split()), min_size=1, max_size=4).map(" ".join)
NEAR = st.lists(
    st.builds(
        Neighbour,
        TEXT,
        st.floats(0, 1),
        st.builds(lambda rights: History((0.7,) * len(rights), tuple(rights)), st.lists(st.booleans(), max_size=5)),
    ),
    max_size=5,
)


@settings(deadline=None, max_examples=150)
@given(POLICIES, TEXT, NEAR, st.builds(Limits, NUMBER, NUMBER, NUMBER))
def test_a_request_makes_matching_stricter_never_looser(
    policy: Policy, question: str, near: list[Neighbour], limits: Limits
) -> None:
    plain, limited = policy.decide(question, near), policy.decide(question, near, limits)
    for before, after in zip(plain, limited, strict=True):
        assert after.verdict != "accepted" or before.verdict == "accepted"


def test_nothing_is_served_before_anything_was_observed() -> None:
    for verifier in (None, Fixed(1.0)):
        policy = VerifiedPolicy(verifier, 0.05, 0.5)
        assert policy.decide("a b", [Neighbour("a b", 1.0)])[0].verdict == "uncertain"


def test_what_many_entries_taught_serves_a_new_one() -> None:
    (decision,) = taught(0.0).decide("a b", [Neighbour("a b", 0.9)])
    assert decision.verdict == "accepted"
    assert decision.error is not None
    assert 0.0 < decision.error <= 0.05
    assert taught(0.2).decide("a b", [Neighbour("a b", 0.9)])[0].verdict == "uncertain"


def test_an_entrys_own_mistakes_count_at_once() -> None:
    policy = taught(0.0)
    clean, burnt = History(), History((0.99,), (False,))
    first, second = (policy.decide("a b", [Neighbour("a b", 0.9, history)])[0] for history in (clean, burnt))
    assert (first.verdict, second.verdict) == ("accepted", "uncertain")


def test_an_entry_proves_itself_where_entries_in_general_do_not() -> None:
    policy = taught(0.2)
    proven = History((0.99,) * 100, (True,) * 100)
    assert policy.decide("a b", [Neighbour("a b", 0.9, proven)])[0].verdict == "accepted"


SEEN = st.lists(st.tuples(st.floats(-6, 6), st.booleans()), max_size=12)


@settings(deadline=None, max_examples=60)
@given(SEEN, SEEN, st.floats(-6, 6), st.floats(0, 3))
def test_the_bound_is_above_the_expected_error_and_falls_with_the_score(
    others: list[tuple[float, bool]], own: list[tuple[float, bool]], z: float, more: float
) -> None:
    def split(seen: list[tuple[float, bool]]) -> tuple[np.ndarray, np.ndarray]:
        return np.array([each for each, _ in seen]), np.array([right for _, right in seen], dtype=bool)

    population = Population.unknown().fitted(*split(others), [str(number // 2) for number in range(len(others))])
    assert population.weights.sum() == pytest.approx(1.0, abs=1e-5)
    seen, rights = split(own)
    bound = population.error_bound(z, seen, rights)
    posterior = population.weights * np.exp(likelihood(seen, rights).sum(axis=0))
    expected = posterior @ np.exp(likelihood(np.array([z]), np.array([False]))[0]) / posterior.sum()
    assert expected - 1e-9 <= bound <= 1.0
    assert population.error_bound(z + more, seen, rights) <= bound + 1e-9
    assert population.error_bound(z, np.append(seen, z), np.append(rights, False)) >= expected - 1e-9


def test_the_population_is_fitted_again_only_after_a_tenth_more() -> None:
    policy, observations = VerifiedPolicy(None, 0.05, 0.5), MemoryObservations()
    policy.learn(observations, 0)
    unknown = policy.population
    observations.add([Observation("a", 0.99, True, "cosine", "answer", False, 0.0)] * 30)
    policy.learn(observations, 10)
    assert policy.population is unknown
    policy.learn(observations, 20)
    assert policy.population.entries == 1


def test_coordinates_keep_the_order_of_scores() -> None:
    for scorer in ("cosine", "built-in"):
        z = coordinate(np.linspace(0, 1, 50), scorer)
        assert np.isfinite(z).all()
        assert (np.diff(z) >= 0).all()


def test_every_guard_is_named_once() -> None:
    assert len({guard.name for guard in GUARDS}) == len(GUARDS)


def test_simulated_traffic_stays_under_the_bound_and_hits_more_and_more() -> None:
    outcome = simulate(0.05, requests=3000, seed=1)
    assert outcome.wrong.sum() <= 0.05 * outcome.served.sum()
    assert outcome.served[-3:].sum() > 2 * outcome.served[:3].sum() > 0
