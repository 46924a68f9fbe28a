"""The prefill time of a token, and forecasts of the pool size."""

import random
from pathlib import Path

import pytest

from kvproxy.blocks.pool_forecast import forecast_hit_rates
from kvproxy.blocks.reuse_distance import LiveHitCurve
from kvproxy.journal.prefill_time import prefill_cost
from tests.benchmarks.live_curve import LONG, replay


def requests(
    count: int, cost: float, overhead: float, noise: float = 0.0, seed: int = 0
) -> tuple[list[int], list[float]]:
    draw = random.Random(seed)
    tokens = [draw.randrange(10, 2_000) for _ in range(count)]
    return tokens, [overhead + cost * each + draw.uniform(0, noise) for each in tokens]


@pytest.mark.parametrize("seed", range(5))
def test_outliers_and_noise_move_the_estimate_little(seed: int) -> None:
    tokens, seconds = requests(200, 0.001, 0.1, noise=0.2, seed=seed)
    for place in range(0, 200, 10):
        seconds[place] += 5.0
    found = prefill_cost(tokens, seconds)
    assert found is not None
    assert found.seconds == pytest.approx(0.001, rel=0.15)
    assert found.least <= 0.001 <= found.most


def test_the_range_covers_the_loads_that_were_seen() -> None:
    quiet, busy = requests(100, 0.001, 0.1), requests(100, 0.008, 0.1, seed=1)
    found = prefill_cost(quiet[0] + busy[0], quiet[1] + busy[1])
    assert found is not None
    assert found.least <= 0.0011
    assert found.most >= 0.0079


def test_the_live_curve_equals_a_replay_of_the_journal(tmp_path: Path) -> None:
    curve, rates = replay(tmp_path, 150, LONG)
    assert curve.requests == 150
    assert max(live for live, _ in rates.values()) > 0.8
    # A smaller pool refuses requests in the replay.
    accepted = [rate for size, rate in rates.items() if size >= curve.max_prompt_tokens + 16]
    assert all(abs(live - offline) < 0.005 for live, offline in accepted)


def test_a_forecast_states_changes_from_the_current_pool() -> None:
    curve = LiveHitCurve(block_tokens=1)
    for _ in range(10):
        for prompt in ("a", "b"):
            curve.add([prompt], [40_000], 10_000)
    found = forecast_hit_rates("http://e", curve, 12_001, 1, 0.001, token_bytes=1e5, tier_bytes=1e5 * 24_000)
    rates = {point.name: (point.pool_tokens, round(point.hit_rate, 3), point.ttft_ms) for point in found.points}
    assert rates["current"] == (12_000, pytest.approx(0.18, abs=0.01), 0.0)
    assert rates["double"][:2] == (24_000, 0.9)
    assert rates["double"][2] == pytest.approx(-10_000 * 0.72, rel=0.02)
    # The transfer of a token takes a part of the time of its prefill.
    assert rates["tier"][2] == pytest.approx(-10_000 * 0.72 * (1 - 1e5 / (20 * 2**30) / 0.001), rel=0.02)
    assert forecast_hit_rates("", curve, None, None, None).points[0].name == "unlimited"


def test_a_forecast_includes_the_configured_tiers() -> None:
    curve = LiveHitCurve(block_tokens=1)
    for _ in range(10):
        for prompt in ("a", "b"):
            curve.add([prompt], [40_000], 10_000)
    found = forecast_hit_rates("", curve, 12_001, 1, 0.001, 1e5, 1e5 * 24_000, tier_tokens=30_000)
    rates = {point.name: (round(point.hit_rate, 3), point.ttft_ms) for point in found.points}
    # The pool's hits need no transfer, so a larger pool saves transfers only.
    transfers = -10_000 * 0.72 * 1e5 / (20 * 2**30)
    assert rates["current"] == (0.9, 0.0)
    assert rates["double"] == (0.9, pytest.approx(1000 * transfers, rel=0.02))
    assert rates["tier"] == (0.9, 0.0)
    assert rates["without_tiers"][0] == pytest.approx(0.18, abs=0.01)
    assert rates["without_tiers"][1] > 0
    assert found.tier_tokens == 30_000


def test_the_measured_hit_rate_is_that_of_the_reported_tokens() -> None:
    curve = LiveHitCurve()
    for prompt, reused in (("a", 50), ("b", None)):
        curve.add([prompt], [400], 100, reused)
    found = forecast_hit_rates("http://e", curve, None, None, None)
    assert (found.prompt_tokens, found.reported_tokens, found.measured_hit_rate) == (200, 100, 0.5)
