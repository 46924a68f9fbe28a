"""What is learned, number by number, against the definitions worked out another way."""

import math
import random

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kvproxy.index.policies.learned.class_errors import ClassErrors
from kvproxy.index.policies.learned.error_bound import FROM, largest_factor, most_expected
from kvproxy.index.policies.learned.error_model import FEATURES, ErrorModel, Prior, compute_features
from kvproxy.index.policies.learned.learner import Learner
from kvproxy.index.policies.learned.serving_level import ServingLevel
from kvproxy.index.policies.policy import Neighbour
from kvproxy.index.store.observations import Observation


def test_evidence_of_an_example() -> None:
    found = dict(zip(FEATURES, compute_features([0.95, 0.85, 0.75, 0.65, 0.55, 0.1], list("abacaa")), strict=True))
    weights = [math.exp((cosine - 0.95) / 0.05) for cosine in (0.95, 0.85, 0.75, 0.65, 0.55, 0.1)]
    rivals = (weights[1] + weights[3]) / sum(weights)
    assert found == pytest.approx(
        {
            "constant": 1.0,
            "cosine": 0.75,
            "margin": 1.0,
            "rivals": -math.log(rivals + 0.01) - 2,
            "density": 0.25,
            "votes": 1.2,
            "company": 1.0,
        }
    )
    alone = dict(zip(FEATURES, compute_features([0.9], ["a"]), strict=True))
    assert (alone["margin"], alone["votes"], alone["company"]) == (0.0, 2.0, 0.0)
    # Where all are of one class, the farthest stands for the others; a margin beyond half a cosine says no more.
    assert compute_features([0.9, 0.7], ["a", "a"])[2] == pytest.approx(2.0)
    assert [compute_features([1.0, other], ["a", "b"])[2] for other in (0.5, 0.4)] == pytest.approx([5.0, 5.0])
    assert compute_features([1.0, 0.52], ["a", "b"])[2] == pytest.approx(4.8)


VECTORS = st.lists(st.floats(-2, 2), min_size=3, max_size=3)


@settings(deadline=None)
@given(st.lists(st.tuples(VECTORS, st.booleans()), min_size=1, max_size=6))
def test_a_score_learns_as_a_logistic_regression_of_weighted_observations(seen: list[tuple[list[float], bool]]) -> None:
    score = ErrorModel(np.array([0.1, -0.2, 0.3]), np.diag([1.0, 2.0, 0.5]))
    weights, precision, slipped, sure = score.weights, np.linalg.inv(score.covariance), 0.5, 1000.0
    for values, right in seen:
        features = np.array(values)
        score.learn(features, right)
        sigmoid = 1 / (1 + math.exp(-float(features @ weights)))
        # How likely it is that a wrong answer is a slip: it would have been right, and is wrong all the same.
        slip = 0.0 if right else (slipped / sure) * sigmoid / ((slipped / sure) * sigmoid + 1 - sigmoid)
        slipped, sure = slipped + slip, sure + sigmoid**2
        counts = (1 - slip) * sigmoid**2
        precision = precision + counts * sigmoid * (1 - sigmoid) * np.outer(features, features)
        weights = weights + np.linalg.inv(precision) @ features * counts * (float(right) - sigmoid)
        assert score.weights == pytest.approx(weights)
        assert score.covariance == pytest.approx(np.linalg.inv(precision))
        assert (score.slipped, score.sure) == pytest.approx((slipped, sure))
    spread = float(features @ score.covariance @ features)
    sigmoid = 1 / (1 + math.exp(-float(features @ weights) / math.sqrt(1 + 0.25 * math.pi * spread / 8)))
    assert score.error(features) == pytest.approx(1 - (1 - slipped / sure) * sigmoid)


def test_a_score_of_what_is_hopeless_is_no_overflow() -> None:
    score = ErrorModel(np.array([-1e6]), np.array([[0.0]]))
    assert score.error(np.array([1.0])) == 1.0
    assert ErrorModel(np.array([-600.0]), np.array([[0.0]])).error(np.array([1.0])) < 1.0 + 1e-12


def test_the_allowance_is_not_far_below_what_it_may_be() -> None:
    generator = np.random.default_rng(0)
    allowed = np.arange(3000)
    latest = np.array([most_expected(float(count)) for count in allowed])
    crossed = sum(bool((np.cumsum(generator.exponential(size=3000))[5:] <= latest[5:]).any()) for _ in range(1000))
    # Of the 5% that it may, so that no more is held back than the guarantee needs.
    assert crossed >= 0.02 * 1000
    assert most_expected(10.0) == most_expected(10.9) < most_expected(11.0)
    assert largest_factor(0, 1.0) * 10 == pytest.approx(largest_factor(0, 0.1), rel=1e-3)
    # Without a wrong answer in a hundred expected ones, a few of a hundred remain possible.
    assert 0.03 < largest_factor(0, 100.0) < 0.06
    assert 1.0 < largest_factor(100, 100.0) < 1.5


@given(st.lists(st.tuples(st.floats(1e-4, 1), st.sampled_from([0.1, 0.5, 1.0])), max_size=30))
def test_the_level_is_the_highest_up_to_which_requests_have_the_planned_error_on_average(
    seen: list[tuple[float, float]],
) -> None:
    level = ServingLevel(0.05, factor=1.0)
    edges = np.geomspace(5e-4, 1.0, 64)
    weights = [0.0] * 64
    for error, chance in seen:
        level.add_comparison(error, chance, True, counted=False)
        weights = [weight * (1 - 1 / 1500) for weight in weights]
        weights[min(63, next((place for place in range(64) if edges[place] >= error), 63))] += 1 / chance
    assert level.spread == pytest.approx(np.array(weights))
    level.update_limit()
    fits = [
        place
        for place in range(64)
        if sum(weights[: place + 1]) > 0
        and sum(weights[i] * edges[i] for i in range(place + 1)) / sum(weights[: place + 1]) <= level.planned_risk()
    ]
    assert level.limit == pytest.approx(min(0.25, edges[fits[-1]]) if fits else 0.0)
    total = sum(weights)
    through = sum(weight for weight, edge in zip(weights, edges, strict=True) if edge <= level.limit)
    assert level.acceptable_share == pytest.approx(through / total if total else 0.0)


def test_what_may_be_spent_of_the_allowance() -> None:
    assert [ServingLevel(bound).reach for bound in (0.01, 0.02, 0.05)] == pytest.approx([0.06, 0.12, 0.15])
    level = ServingLevel(0.02)
    # Before the 500th answer, as much as for 500.
    most = 0.8 * most_expected(0.02 * FROM)
    assert level.affords(most - 1e-9)
    assert not level.affords(most + 1e-6)
    level.add_served(1000, 0.5)
    assert (level.served, level.risk) == (1000, 0.5)
    most = 0.8 * most_expected(0.02 * 1000) - 0.5
    assert level.affords(most - 1e-9)
    assert not level.affords(most + 1e-6)
    assert level.planned_risk() == 0.0
    level.factor = 2.0
    left = (most_expected(0.02 * 1500) - 2 * 0.5) / 500
    assert level.planned_risk() == pytest.approx(min(left, 1.1 * 0.02) / 2)
    level.factor = 0.1
    assert level.planned_risk() == pytest.approx(min((most_expected(30) - 0.05) / 500, 0.022) / 0.5)
    level.risk = 1e6
    assert level.planned_risk() == 0.0


def test_the_bound_in_force_is_the_least_allowance_that_covers_the_risk_taken() -> None:
    level = ServingLevel(0.02, served=1000, risk=2.0, factor=1.5)
    least = next(count for count in range(1000) if most_expected(count) >= 3.0)
    assert level.bound == pytest.approx(least / 1000)
    level.served = 100
    assert level.bound == pytest.approx(least / FROM)
    level.served = 0
    assert level.bound == 0.0
    assert ServingLevel(0.02, served=1000, risk=1e9, factor=1.0).bound == 1.0


def test_wrong_answers_count_where_they_are_in_reach_and_as_the_judge_errs() -> None:
    level = ServingLevel(0.02)
    for error, right, counted in ((0.12, False, True), (0.13, False, True), (0.1, True, True), (0.1, False, False)):
        level.add_comparison(error, 1.0, right, counted)
    assert (level.wrong, level.expected) == (1, pytest.approx(0.22))
    level.repeats, level.slips = 50, 9
    assert level.judge_error == pytest.approx(10 / 100)
    level.update_factor()
    assert level.factor == pytest.approx(largest_factor(1, level.expected) / 0.9)
    level.slips = 1000
    level.update_factor()
    assert level.factor == pytest.approx(largest_factor(1, level.expected) / 0.5)
    empty = ServingLevel(0.02)
    empty.update_factor()
    assert empty.factor == math.inf


def test_a_prior_holds_new_namespaces_to_what_all_have_shown() -> None:
    prior = Prior()
    assert (prior.wrong, prior.expected) == (2.0, 2.0)
    features = np.array([1.0] * len(FEATURES))
    prior.learn(features, 0.1, False, 0.1)
    prior.learn(features, 0.11, False, 0.1)
    assert (prior.seen_wrong, prior.seen_expected) == (3.0, pytest.approx(2.1))
    assert prior.wrong == pytest.approx(2.0 * 3 / 2.1)
    for _ in range(100):
        prior.learn(features, 0.1, True, 0.1)
    # Those who did better than was expected make nobody bold.
    assert prior.wrong == 2.0


def test_doubts_by_bayes_rule() -> None:
    doubts = ClassErrors()
    doubts.add_comparison("a", 0.1, right=False)
    assert doubts.odds == {"a": pytest.approx(0.003 * 0.9 / 0.1)}
    odds = 0.003 * 9
    assert doubts.change_probability("a") == pytest.approx(odds / (1 + odds) - 0.002)
    doubts.add_comparison("a", 0.2, right=True)
    assert doubts.odds["a"] == pytest.approx((odds + 0.001) * 0.1 / 0.8)
    # A sure answer that differs may differ for no reason.
    doubts.add_comparison("b", 0.0, right=False)
    assert doubts.odds["b"] == pytest.approx(0.003 * 0.9 / 0.02)
    doubts.add_member("b")
    assert doubts.odds["b"] == pytest.approx(0.0135)
    doubts.add_member("b")
    assert "b" not in doubts.odds
    doubts.add_member("c")
    assert "c" not in doubts.odds
    doubts.odds["d"] = 1e6
    doubts.add_comparison("d", 1.0, right=False)
    assert doubts.odds["d"] == pytest.approx(9e5)
    doubts.add_comparison("d", 1.0, right=True)
    assert doubts.odds["d"] == 1e6


def observation(answer: str = "a", right: bool = True, **more: object) -> Observation:
    features = tuple(compute_features([0.95, 0.9, 0.5], [answer, answer, "z"]).tolist())
    return Observation("e", right, "answer", True, 0.0, "n", answer, features, 0.01, 1.0, **more)  # type: ignore[arg-type]


def test_how_much_is_explored() -> None:
    learner = Learner.new(Prior(), 0.02)
    assert (learner.ready, learner.checked_chance) == (False, 0.0)
    # At first two in five at an error of 1 and fewer the surer an answer is, then less.
    learner.level.expected = 50.0
    assert learner.chance(0.25) == pytest.approx(0.2)
    assert learner.chance(1e-9) == pytest.approx(0.01)
    learner.level.expected = 200.0
    assert learner.chance(0.25) == pytest.approx(0.1)
    # However much was compared: where no level is low enough, it is not ready.
    assert not learner.ready
    learner.level.limit = 0.01
    learner.level.expected = 8.0
    assert learner.ready
    learner.level.expected = 7.99
    assert not learner.ready
    learner.observed = 49
    assert learner.checked_chance == 0.0
    learner.observed, learner.checked_seen = 50, 30
    assert learner.checked_chance == pytest.approx(0.2)
    learner.checked_seen = 120
    assert learner.checked_chance == pytest.approx(0.1)
    learner.checked_seen = 100_000
    assert learner.checked_chance == pytest.approx(0.05)


def test_when_checked_may_serve() -> None:
    learner = Learner.new(Prior(), 0.02)
    assert learner.checked_error == pytest.approx(0.5 / 50)
    assert learner.checked_allowed
    learner.checked_seen, learner.checked_wrong = 50, 1
    assert learner.checked_error == pytest.approx(1.5 / 100)
    assert learner.checked_allowed
    learner.checked_wrong = 2
    assert not learner.checked_allowed
    # Once enough was learned it must have proved right: half of the errors that are allowed, in thirty comparisons.
    learner.level.limit, learner.level.expected = 0.01, 8.0
    learner.checked_seen, learner.checked_wrong = 29, 0
    assert not learner.checked_allowed
    learner.checked_seen = 30
    assert learner.checked_allowed
    learner.checked_seen, learner.checked_wrong = 50, 1
    assert not learner.checked_allowed
    # While a namespace is new it may use the allowance of `learned` too.
    learner = Learner.new(Prior(), 0.02)
    learner.level.risk = 1e6
    learner.observed = 49
    assert learner.checked_allowed
    learner.observed = 50
    assert not learner.checked_allowed


def test_what_an_observation_teaches() -> None:
    learner = Learner.new(Prior(), 0.02)
    learner.learn(observation(number=7, served=3, risk=0.5, checked=True))
    assert (learner.number, learner.level.served, learner.level.risk) == (7, 3, 0.5)
    assert (learner.observed, learner.checked_seen, learner.checked_wrong) == (1, 1, 0)
    learner.learn(observation(right=False, number=5, checked=True, repeat=True))
    assert (learner.number, learner.checked_seen, learner.checked_wrong) == (7, 2, 1)
    assert (learner.level.repeats, learner.level.slips) == (1, 1)
    learner.learn(observation(repeat=True))
    assert (learner.level.repeats, learner.level.slips) == (2, 1)
    before, doubted = learner.error_model.weights.copy(), learner.class_errors.odds["a"]
    learner.learn(observation(right=False, vetoes=("names",)))
    # Across a guard it tells of the guard alone.
    assert (learner.error_model.weights == before).all()
    assert learner.class_errors.odds["a"] == doubted
    assert learner.level.wrong == pytest.approx(2.0 + 1)
    learner.class_errors.odds["a"] = 1.0
    learner.learn(Observation("e", True, "served", False, 0.0, "n", joined="a"))
    assert learner.class_errors.odds["a"] == pytest.approx(0.1)
    assert learner.observed == 4


def test_a_neighbour_of_a_class_that_is_gone_is_passed_over_and_makes_the_next_doubtful() -> None:
    learner = Learner.new(Prior(), 0.02)
    near = [Neighbour("", 0.95, "a"), Neighbour("", 0.9, "b"), Neighbour("", 0.85, "b"), Neighbour("", 0.8, "c")]
    plain = learner.estimate(near[1:])
    assert plain is not None
    assert (plain.place, plain.alone) == (0, False)
    learner.class_errors.odds["a"] = 1e6
    found = learner.estimate(near)
    assert found is not None
    assert (found.place, found.alone) == (1, False)
    assert found.features == pytest.approx(plain.features)
    assert found.error == pytest.approx(plain.error)
    far = learner.estimate([Neighbour("", 0.96, "a"), *near[1:]])
    assert far is not None
    assert far.error == pytest.approx(plain.error + (1 - plain.error) / 2)
    learner.class_errors.odds["b"] = 1.0
    changed = learner.estimate(near[1:])
    assert changed is not None
    assert changed.error == pytest.approx(plain.error + (1 - plain.error) * 0.498)
    learner.class_errors.odds |= {"b": 1e6, "c": 1e6}
    assert learner.estimate(near) is None
    single = Learner.new(Prior(), 0.02).estimate(near[:2])
    assert single is not None
    assert single.alone


def test_a_state_comes_back_with_its_level() -> None:
    learner, generator = Learner.new(Prior(), 0.1), random.Random(1)
    for number in range(400):
        error = generator.uniform(0.0, 0.1)
        learner.add(observation(right=generator.random() > error / 50, number=number))
    learner.level.update()
    assert learner.level.limit > 0
    again = Learner.from_json(learner.to_json(), 0.1)
    assert again is not None
    assert (again.level.limit, again.level.factor) == (learner.level.limit, learner.level.factor)
    assert again.number == 399
    stricter = Learner.from_json(learner.to_json(), 0.01)
    assert stricter is not None
    assert 0 <= stricter.level.limit < learner.level.limit
    assert Learner.from_json(learner.to_json().replace('"margin"', '"another"'), 0.1) is None
