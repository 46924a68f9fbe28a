"""The bounds and the serving level: simulations show that the error guarantee holds at all times."""

import random

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kvproxy.index.policies.learned.serving_level import (
    MIN_SERVED,
    ServingLevel,
    max_error_factor,
    max_expected_events,
    max_risk,
)


def test_a_poisson_process_rarely_exceeds_the_allowed_events() -> None:
    generator = np.random.default_rng(0)
    latest = np.array([max_expected_events(float(count)) for count in range(3000)])
    # Event n + 1 arrives while only n are allowed.
    crossed = sum(bool((np.cumsum(generator.exponential(size=3000))[5:] <= latest[5:]).any()) for _ in range(600))
    # At most 10%, but not far less: the guarantee requires no more caution.
    assert 0.02 * 600 <= crossed <= 0.1 * 600


@given(st.floats(0, 1e4), st.floats(0, 100))
def test_the_expectation_rises_with_the_allowance_and_stays_below_it(allowed: float, more: float) -> None:
    assert 0.0 <= max_expected_events(allowed) <= allowed
    assert max_expected_events(allowed) <= max_expected_events(allowed + more)


def test_the_factor_is_rarely_below_the_true_one() -> None:
    generator, factor, missed = np.random.default_rng(1), 2.0, 0
    for _ in range(100):
        errors = generator.uniform(0.0, 0.1, 600)
        wrong, expected = np.cumsum(generator.random(600) < np.minimum(1.0, factor * errors)), np.cumsum(errors)
        missed += any(max_error_factor(wrong[at], expected[at]) < factor for at in range(0, 600, 60))
    assert missed <= 0.05 * 100 * 2


@settings(deadline=None)
@given(st.integers(0, 200), st.floats(0.01, 200), st.floats(0.01, 50))
def test_the_factor_falls_with_expected_errors_and_rises_with_errors(seen: int, expected: float, more: float) -> None:
    assert (
        max_error_factor(seen, expected + more)
        <= max_error_factor(seen, expected)
        <= max_error_factor(seen + 1, expected)
    )


@settings(deadline=None)
@given(st.integers(1, 150), st.integers(0, 150), st.floats(0.5, 150))
def test_the_risk_rises_with_the_allowance_and_with_the_evidence(allowed: int, wrong: int, expected: float) -> None:
    risk = max_risk(allowed, wrong, expected)
    assert risk <= max_risk(allowed + 1, wrong, expected) * 1.01
    assert risk <= max_risk(allowed, wrong, expected + 1) + 1e-9
    # An unknown factor allows less than the largest compatible factor alone would, if both may fail.
    assert risk * max(wrong, 1) / expected <= max_expected_events(allowed) * 1.5


@pytest.mark.parametrize("factor", [0.5, 2.0])
def test_few_runs_exceed_the_risk_although_the_factor_is_learned_meanwhile(factor: float) -> None:
    generator, exceeded = np.random.default_rng(3), 0
    for _ in range(30):
        wrong, expected, risk, served_wrong = 2.0, 2.0, 0.0, 0
        for allowed in range(1, 60):
            compared = 1.0 + generator.random()
            expected, wrong = expected + compared, wrong + generator.poisson(factor * compared)
            more = max(0.0, max_risk(allowed, wrong, expected) - risk)
            risk, served_wrong = risk + more, served_wrong + generator.poisson(factor * more)
            if served_wrong > allowed:
                exceeded += 1
                break
    assert exceeded <= 0.1 * 30


def serve(level: ServingLevel, requests: int, seed: int, factor: float = 1.0) -> tuple[int, float]:
    """Simulate requests whose true error is `factor` times the estimate.

    Returns:
        The number of served answers, and the largest share of wrong ones from the 500th on.
    """
    generator = random.Random(seed)
    served, wrong, worst = 0, 0, 0.0
    for _ in range(requests):
        error = min(1.0, 10 ** generator.uniform(-3.5, 0))
        is_wrong = generator.random() < min(1.0, factor * error)
        if error <= level.error_limit and generator.random() >= 0.1:
            level.add_served(1, error)
            served, wrong = served + 1, wrong + is_wrong
            worst = max(worst, wrong / served) if served >= MIN_SERVED else worst
        else:
            level.add_comparison(error, not is_wrong)
            level.update()
    return served, worst


@pytest.mark.parametrize("max_error", [0.01, 0.05])
def test_the_bound_holds_at_all_times_even_if_errors_are_underestimated(max_error: float) -> None:
    assert serve(ServingLevel(max_error, wrong=2.0, expected=2.0), 2500, 0, factor=3.0)[1] <= max_error


@pytest.mark.parametrize("max_error", [0.01, 0.05])
def test_the_plan_rarely_exceeds_the_bound(max_error: float) -> None:
    # The worst case: every answer has the planned risk, and every error its estimated probability.
    level = ServingLevel(max_error, error_factor=1.0)
    risk, spent = 0.0, []
    for served in range(6000):
        level.served, level.risk = served, risk
        risk += level.planned_risk()
        spent.append(risk)
    generator = np.random.default_rng(0)
    allowed = np.floor(max_error * np.maximum(np.arange(1, 6001), MIN_SERVED) + 1e-9)[MIN_SERVED - 1 :]
    broken = 0
    for _ in range(1000):
        arrivals = np.cumsum(generator.exponential(size=int(spent[-1] * 1.5 + 50)))
        broken += bool((np.searchsorted(arrivals, spent[MIN_SERVED - 1 :]) > allowed).any())
    assert broken <= 0.05 * 1000 * 1.3


@settings(deadline=None)
@given(st.integers(0, MIN_SERVED // 2 - 10), st.floats(0.0, 4.0), st.floats(0.5, 2.0), st.floats(0.0, 6.0))
def test_after_many_changes_the_first_hits_leave_enough_for_the_moment_from_which_the_bound_holds(
    served: int, risk: float, factor: float, by_change: float
) -> None:
    level = ServingLevel(0.02, served, risk, wrong=20.0 * factor, expected=20.0, wrong_by_change=by_change)
    level.num_changes = 60.0
    allowed, now, twice = (
        max_risk(0.02 * MIN_SERVED + more, level.wrong, level.expected) for more in (-by_change, 0.0, 0.02 * MIN_SERVED)
    )
    assert risk + level.planned_risk() * (MIN_SERVED - served) <= max(allowed, risk + twice - now) + 1e-9


def test_early_changes_that_use_up_the_allowance_do_not_end_the_hits() -> None:
    level = ServingLevel(0.02, 220, 0.6, wrong=27.0, expected=26.0, wrong_by_change=4.0, change_variance=2.0)
    level.num_changes, level.checked_risk = 10.0, 1.5
    assert level.planned_risk() > 0.2 * level.max_error


def test_the_level_uses_most_of_its_allowance() -> None:
    level = ServingLevel(0.05)
    assert serve(level, 3000, 0)[0] > 1000
    assert 0 < level.most_wrong <= 0.05 * level.served
    assert 0.3 < level.servable_request_share < 0.9


def test_wrong_answers_within_reach_and_the_errors_of_the_judge_raise_the_factor() -> None:
    level = ServingLevel(0.02)
    level.update()
    assert level.error_factor > 1e3
    assert level.error_limit == 0.0
    for error, right in ((0.12, False), (0.13, False), (0.1, True)):
        level.add_comparison(error, right)
    assert (level.wrong, level.expected) == (pytest.approx(1, rel=0.01), pytest.approx(0.22, rel=0.01))
    for repeats, slips, error_rate in ((50, 9, 0.1), (50, 1000, 0.5)):
        level.num_repeats, level.num_judged_different = repeats, slips
        level.update()
        assert level.comparison_error_rate == pytest.approx(error_rate)
        assert level.error_factor == pytest.approx(max_error_factor(level.wrong, level.expected) / (1 - error_rate))


def test_errors_of_the_first_comparisons_are_forgotten() -> None:
    level = ServingLevel(0.02)
    for number in range(4000):
        level.add_comparison(0.01, right=number >= 20 and number % 100 > 0)
    assert level.expected < 20
    assert level.wrong / level.expected == pytest.approx(1.0, rel=0.15)
