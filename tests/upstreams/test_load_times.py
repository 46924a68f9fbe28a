"""Measured load times of media, and the order of engines by them."""

import pytest

from kvproxy.upstreams.load_times import ASSUMED_COSTS, LoadTimes
from kvproxy.upstreams.routing import EngineCandidate, rank_engines


def test_costs_are_measured_against_the_engines_prefill() -> None:
    times = LoadTimes()
    assert times.load_cost({"CPU": 1000, "DISK": 100}) == 1000 * ASSUMED_COSTS["CPU"] + 100 * ASSUMED_COSTS["DISK"]
    for _ in range(3):
        times.add(2.0, 10_000, {})  # 0.2 ms per token.
    for _ in range(3):
        times.add(0.2 + 0.5, 1_000, {"CPU": 10_000})  # 0.05 ms per token.
    assert times.prefill_seconds == pytest.approx(0.0002)
    assert times.measured() == {"CPU": pytest.approx(0.25)}
    assert times.cost("DISK") == ASSUMED_COSTS["DISK"]


def test_short_prompts_and_mixed_loads_are_no_measurements() -> None:
    times = LoadTimes()
    for _ in range(5):
        times.add(1.0, 100, {})
        times.add(1.0, 0, {"CPU": 1000})
    assert (times.prefill_seconds, times.measured()) == (None, {})
    for _ in range(5):
        times.add(1.0, 1000, {})
        times.add(1.0, 0, {"CPU": 1000, "DISK": 1000})
        times.add(1.0, 0, {"TAPE": 1000})
    assert times.measured() == {}


def test_a_prefix_in_host_memory_beats_none_and_loses_to_one_on_the_gpu() -> None:
    def order(*candidates: EngineCandidate) -> list[str]:
        return [candidate.name for candidate in rank_engines(candidates, 10_000)]

    host = EngineCandidate("host", 8_000, 0.0, load_cost=800.0)
    assert order(EngineCandidate("none", 0, 0.0), host) == ["host", "none"]
    assert order(host, EngineCandidate("gpu", 8_000, 0.0)) == ["gpu", "host"]
    # A load that takes longer than the prefill is no reason.
    assert order(EngineCandidate("slow", 8_000, 0.0, load_cost=9_000.0), EngineCandidate("none", 0, 0.0)) == [
        "none",
        "slow",
    ]
