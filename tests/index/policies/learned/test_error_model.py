"""Features, the error model, and its prior agree with their definitions."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvproxy.index.policies.learned.error_model import FEATURES, ErrorModel, Prior, compute_features

VECTORS = st.lists(st.floats(-2, 2), min_size=3, max_size=3)


def test_features_of_an_example() -> None:
    cosines = [0.95, 0.85, 0.75, 0.65, 0.55, 0.1]
    weights = [math.exp((cosine - 0.95) / 0.05) for cosine in cosines]
    rivals = (weights[1] + weights[3]) / sum(weights)
    expected = [1.0, 0.75, 1.0, -math.log(rivals + 0.01) - 2, 0.25, 1.2, 1.0]
    assert compute_features(cosines, list("abacaa")) == pytest.approx(expected)
    alone = dict(zip(FEATURES, compute_features([0.9], ["a"]), strict=True))
    assert (alone["margin"], alone["votes"], alone["company"]) == (0.0, 2.0, 0.0)
    # Without another class, the margin is measured to the farthest neighbour. It is at most 5.
    assert compute_features([0.9, 0.7], ["a", "a"])[2] == pytest.approx(2.0)
    assert [compute_features([1.0, other], "ab")[2] for other in (0.52, 0.5, 0.4)] == pytest.approx([4.8, 5, 5])


@given(st.lists(st.tuples(st.floats(-1, 1), st.sampled_from("abc")), min_size=1, max_size=24))
def test_features_are_finite_and_rise_with_agreement(near: list[tuple[float, str]]) -> None:
    near = sorted(near, key=lambda each: -each[0])
    cosines, classes = [cosine for cosine, _ in near], [name for _, name in near]
    mixed, agreed = compute_features(cosines, classes), compute_features(cosines, [classes[0]] * len(near))
    for feature in ("margin", "rivals", "votes", "company"):
        place = FEATURES.index(feature)
        assert -20 < mixed[place] <= agreed[place] < 20


def test_extreme_odds_do_not_overflow() -> None:
    for weight in (-1e6, -600.0):
        assert ErrorModel(np.array([weight]), np.zeros((1, 1))).error(np.ones(1)) == pytest.approx(1.0)


def test_the_prior_becomes_stricter_with_errors_but_never_more_lenient() -> None:
    prior, features = Prior(), np.ones(len(FEATURES))
    assert prior.initial_wrong == 2.0
    prior.learn(features, 0.1, False, 0.1)
    prior.learn(features, 0.11, False, 0.1)
    assert (prior.seen_wrong, prior.seen_expected) == (3.0, pytest.approx(2.1))
    assert prior.initial_wrong == pytest.approx(2.0 * 3 / 2.1)
    for _ in range(100):
        prior.learn(features, 0.1, True, 0.1)
    assert prior.initial_wrong == 2.0
