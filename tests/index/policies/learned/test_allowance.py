"""The bounds hold over whole lives, simulated, and not only at their ends."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kvproxy.index.policies.learned.error_bound import largest_factor, most_expected


def test_a_poisson_process_seldom_ever_has_more_events_than_are_allowed() -> None:
    generator = np.random.default_rng(0)
    allowed = np.arange(3000)
    latest = np.array([most_expected(float(count)) for count in allowed])
    crossed = 0
    for _ in range(2000):
        # Event number n + 1 comes while only n are allowed.
        arrivals = np.cumsum(generator.exponential(size=len(allowed)))
        crossed += bool((arrivals[5:] <= latest[5:]).any())
    assert crossed <= 0.05 * 2000 * 1.2


@given(st.floats(0, 1e4), st.floats(0, 100))
def test_more_is_expected_where_more_is_allowed_and_always_less_than_that(allowed: float, more: float) -> None:
    assert 0.0 <= most_expected(allowed) <= allowed
    assert most_expected(allowed) <= most_expected(allowed + more)


@pytest.mark.parametrize("factor", [0.5, 1.0, 2.0])
def test_the_factor_is_seldom_ever_bounded_below_the_truth(factor: float) -> None:
    generator = np.random.default_rng(1)
    missed = 0
    for _ in range(100):
        errors = generator.uniform(0.0, 0.1, 600)
        wrong = np.cumsum(generator.random(600) < np.minimum(1.0, factor * errors))
        expected = np.cumsum(errors)
        missed += any(largest_factor(wrong[at], expected[at]) < factor for at in range(0, 600, 60))
    assert missed <= 0.05 * 100 * 2


@settings(deadline=None)
@given(st.integers(0, 200), st.floats(0.01, 200), st.floats(0.01, 50))
def test_the_factor_falls_with_what_was_expected_and_rises_with_what_was_seen(
    seen: int, expected: float, more: float
) -> None:
    assert largest_factor(seen, expected + more) <= largest_factor(seen, expected) <= largest_factor(seen + 1, expected)


def test_nothing_seen_bounds_nothing() -> None:
    assert largest_factor(0, 0.0) >= 1e4
    assert most_expected(0) == 0.0
