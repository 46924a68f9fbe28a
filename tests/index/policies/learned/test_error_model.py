"""Features, the error model, and its prior agree with their definitions."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvproxy.index.policies.learned.error_model import (
    COVARIANCE,
    FEATURES,
    ErrorModel,
    ErrorModelPrior,
    compute_features,
)

QUESTIONS = st.sampled_from(["reset my password", "lock my card", "password", "", "¿?"])


@given(st.lists(st.tuples(st.floats(-1, 1), st.sampled_from("abc"), QUESTIONS), min_size=1, max_size=24))
def test_features_are_finite_and_rise_with_agreement(near: list[tuple[float, str, str]]) -> None:
    near = sorted(near, key=lambda each: -each[0])
    cosines, classes = [cosine for cosine, _, _ in near], [name for _, name, _ in near]
    questions = [words for _, _, words in near]
    mixed = compute_features(cosines, classes, "reset my password", questions)
    agreed = compute_features(cosines, [classes[0]] * len(near), "reset my password", questions)
    for feature in ("margin", "rivals", "votes", "company", "words", "overlap"):
        place = FEATURES.index(feature)
        assert -20 < mixed[place] <= agreed[place] < 20
    assert -20 < agreed[FEATURES.index("rival words")] <= mixed[FEATURES.index("rival words")] < 20


def word_shares(question: str, *stored: tuple[str, str]) -> list[float]:
    """Return the shares of words; `stored` has the class and the question of each neighbour."""
    classes, questions = [name for name, _ in stored], [text for _, text in stored]
    found = compute_features([0.9] * len(stored), classes, question, questions)
    places = [FEATURES.index(feature) for feature in ("words", "rival words", "overlap")]
    return [(found[place] + offset) / 4 for place, offset in zip(places, (3, 2, 2), strict=True)]


def test_shares_of_words_that_the_questions_of_each_class_contain() -> None:
    stored = ("a", "Reset it"), ("b", "lock my card"), ("a", "my password?"), ("c", "card")
    assert word_shares("reset my card", *stored) == pytest.approx([2 / 3, 2 / 3, 1 / 4])
    assert word_shares("reset it!", *stored) == pytest.approx([1.0, 0.0, 1.0])
    assert word_shares("?", *stored) == pytest.approx([0.0, 0.0, 0.0])
    # Of unspaced scripts, each character is a word.
    assert word_shares("重置卡", ("a", "重置 PIN"), ("b", "锁卡")) == pytest.approx([2 / 3, 1 / 3, 2 / 4])


def centres(classes: str, *vectors: tuple[float, float]) -> float:
    """Return the difference between the cosines of centres; the question is at (1, 0)."""
    questions, cosines = [""] * len(classes), [vector[0] for vector in vectors]
    found = compute_features(cosines, list(classes), "", questions, [np.array(vector) for vector in vectors])
    return float(found[FEATURES.index("centres")]) / 10


def test_a_class_around_the_question_has_the_nearer_centre() -> None:
    # One class is above and below the question, the other one only above.
    above, below, high, higher = (0.8, 0.6), (0.8, -0.6), (0.6, 0.8), (0.6, 0.8)
    assert centres("aabb", above, below, high, higher) == pytest.approx((2 * 1.0 + 0.6) / 3 - 0.6)
    assert centres("aabb", above, above, high, higher) == pytest.approx((2 * 0.8 + 0.6) / 3 - 0.6)
    # A single neighbour tells less about the centre of its class than several.
    assert centres("abb", above, high, higher) == pytest.approx((0.8 + 0.6) / 2 - 0.6)
    assert centres("a", above) == pytest.approx(0.0)
    opposite = centres("aab", (0.0, 1.0), (0.0, -1.0), (0.0, 1.0))
    assert np.isfinite(opposite)


def test_known_words_reduce_the_error() -> None:
    model = ErrorModelPrior().error_model()
    cosines, classes = [0.85, 0.8, 0.7], ["a", "a", "b"]
    known, foreign = (
        model.error_probability(
            compute_features(cosines, classes, question, ["lock my card", "lock a card", "order it"])
        )
        for question in ("lock the card", "order the thing")
    )
    assert known < 0.5 * foreign


def test_extreme_odds_do_not_overflow() -> None:
    for weight in (-1e6, -600.0):
        assert ErrorModel(np.array([weight]), np.zeros((1, 1))).error_probability(np.ones(1)) == pytest.approx(1.0)


def test_one_surprising_comparison_does_not_overshoot() -> None:
    features = compute_features([0.95, 0.94, 0.93, 0.92, 0.91, 0.4], [*["a"] * 5, "b"], "q", ["q"] * 6)
    model = ErrorModelPrior().error_model()
    before = model.error_probability(features)
    assert before < 0.01
    model.learn(features, right=False)
    assert before < model.error_probability(features) < 0.5


def test_old_comparisons_are_forgotten() -> None:
    features, model = compute_features([0.9, 0.8], ["a", "b"], "q", ["q", "q"]), ErrorModelPrior().error_model()
    for _ in range(1000):
        model.learn(features, right=True)
    sure = model.error_probability(features)
    for _ in range(100):
        model.learn(features, right=False)
    assert sure < 0.05 < 0.5 < model.error_probability(features)
    assert np.trace(model.covariance) <= np.trace(np.array(COVARIANCE)) * 1.01


def test_a_class_that_errs_more_often_has_a_larger_error() -> None:
    features, model = (
        compute_features([0.85, 0.8, 0.7, 0.6], ["a", "a", "b", "b"], "q", ["q"] * 4),
        ErrorModelPrior().error_model(),
    )
    for number in range(100):
        model.learn(features, number % 4 > 0, answer_class="confused")
        model.learn(features, right=True, answer_class="clear")
    confused, clear = (model.error_probability(features, name) for name in ("confused", "clear"))
    assert clear < model.error_probability(features, "unknown") < confused
    assert confused > 2 * clear


def test_the_prior_becomes_stricter_with_errors_but_never_more_lenient() -> None:
    prior, features = ErrorModelPrior(), np.ones(len(FEATURES))
    least = prior.initial_wrong_count
    for _ in range(8):
        prior.learn(features, 0.1, False, 0.1)
    prior.learn(features, 0.11, False, 0.1)
    assert (prior.seen_wrong, prior.seen_expected) == (10.0, pytest.approx(2.8))
    assert prior.initial_wrong_count == pytest.approx(2.0 * 10 / 2.8)
    assert prior.initial_wrong_count > least > 2
    for _ in range(100):
        prior.learn(features, 0.1, True, 0.1)
    assert prior.initial_wrong_count == least
