"""The level spends the allowance and no more, whatever comes."""

import random

import numpy as np
import pytest

from kvproxy.index.policies.learned.error_bound import FROM
from kvproxy.index.policies.learned.serving_level import ServingLevel


def serve(level: ServingLevel, requests: int, seed: int, factor: float = 1.0) -> tuple[int, int, float]:
    """Requests whose errors are what they say, times a factor: served, wrong, and the worst share from the 500th on."""
    generator = random.Random(seed)
    served = wrong = 0
    worst = 0.0
    for _ in range(requests):
        error = min(1.0, 10 ** generator.uniform(-3.5, 0))
        bad = generator.random() < min(1.0, factor * error)
        if error <= level.limit and generator.random() >= 0.1:
            level.add_served(1, error)
            served, wrong = served + 1, wrong + bad
            worst = max(worst, wrong / served) if served >= FROM else worst
        else:
            level.add_comparison(error, 0.1 if error <= level.limit else 1.0, not bad, counted=True)
            level.update()
    return served, wrong, worst


@pytest.mark.parametrize("max_error", [0.01, 0.02, 0.05])
@pytest.mark.parametrize("factor", [0.5, 1.0, 3.0])
def test_the_bound_is_kept_at_any_time_also_where_the_errors_are_underestimated(
    max_error: float, factor: float
) -> None:
    worst = [serve(ServingLevel(max_error, wrong=2.0, expected=2.0), 2500, seed, factor)[2] for seed in range(3)]
    assert sum(each > max_error for each in worst) == 0


@pytest.mark.parametrize("max_error", [0.01, 0.02, 0.05])
def test_what_is_planned_is_seldom_ever_too_much(max_error: float) -> None:
    # The most that is ever spent: every answer as risky as is planned, and every error as likely as it is said to be.
    level = ServingLevel(max_error, factor=1.0)
    risk, spent = 0.0, []
    for served in range(6000):
        level.served, level.risk = served, risk
        risk += level.planned_risk()
        spent.append(risk)
    generator = np.random.default_rng(0)
    allowed = np.floor(max_error * np.maximum(np.arange(1, 6001), FROM) + 1e-9)[FROM - 1 :]
    broken = 0
    for _ in range(1000):
        arrivals = np.cumsum(generator.exponential(size=int(spent[-1] * 1.5 + 50)))
        broken += bool((np.searchsorted(arrivals, spent[FROM - 1 :]) > allowed).any())
    assert broken <= 0.05 * 1000 * 1.3


def test_it_serves_most_of_what_it_may() -> None:
    level = ServingLevel(0.05)
    served, _, _ = serve(level, 5000, 0)
    assert served > 2000
    assert 0.0 < level.bound <= 0.05
    assert 0.3 < level.acceptable_share < 0.9


def test_mistakes_lower_the_level_and_nothing_is_served_before_anything_is_known() -> None:
    level = ServingLevel(0.02)
    assert (level.limit, level.bound) == (0.0, 0.0)
    serve(level, 3000, 0)
    before = level.limit
    for _ in range(30):
        level.add_comparison(0.01, 1.0, right=False, counted=True)
        level.update()
    assert level.limit < before / 2


def test_a_judge_that_errs_makes_it_careful() -> None:
    plain, erring = ServingLevel(0.02, wrong=3.0, expected=30.0), ServingLevel(0.02, wrong=3.0, expected=30.0)
    erring.repeats, erring.slips = 100, 30
    plain.update_factor()
    erring.update_factor()
    assert erring.judge_error > 0.15
    assert erring.factor > plain.factor


def test_a_repeated_question_that_is_not_counted_tells_of_the_judge_at_once() -> None:
    level = ServingLevel(0.02, wrong=3.0, expected=30.0)
    level.update()
    before = level.factor
    level.repeats, level.slips = 10, 10
    level.add_comparison(0.5, 1.0, right=False, counted=False)
    level.update()
    assert level.factor > before
