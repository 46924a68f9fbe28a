"""The live curve of hits by pool size, and its forecasts."""

from pathlib import Path

import pytest

from kvproxy.blocks.reuse_distance import LiveHitCurve
from kvproxy.journal.pool_forecast import forecast
from tests.benchmarks.live_curve import replay


def test_the_live_curve_equals_a_replay_of_the_journal(tmp_path: Path) -> None:
    curve, rates = replay(tmp_path, 300)
    assert curve.requests == 300
    assert max(live for live, _ in rates.values()) > 0.8
    # A smaller pool refuses requests in the replay.
    accepted = [rate for size, rate in rates.items() if size >= curve.longest + 16]
    assert all(abs(live - offline) < 0.005 for live, offline in accepted)


def test_a_forecast_states_changes_from_the_current_pool() -> None:
    curve = LiveHitCurve()
    for _ in range(10):
        for prompt in ("a", "b"):
            curve.add([prompt], [40_000], 10_000)
    found = forecast("http://e", curve, 12_001, 1, 0.001, token_bytes=1e5, tier_bytes=1e5 * 24_000)
    rates = {point.name: (point.pool_tokens, round(point.hit_rate, 3), point.ttft_ms) for point in found.points}
    assert rates["current"] == (12_000, pytest.approx(0.18, abs=0.01), 0.0)
    assert rates["double"][:2] == (24_000, 0.9)
    assert rates["double"][2] == pytest.approx(-10_000 * 0.72, rel=0.02)
    # The transfer of a token takes a part of the time of its prefill.
    assert rates["tier"][2] == pytest.approx(-10_000 * 0.72 * (1 - 1e5 / (20 * 2**30) / 0.001), rel=0.02)
    assert forecast("", curve, None, None, None).points[0].name == "unlimited"
