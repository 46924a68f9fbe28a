"""Routing simulated: what is known beforehand of small traces, and the orders of the policies on a real one."""

from dataclasses import replace
from pathlib import Path

import pytest

from kvproxy.analyse.simulate import routing_simulation
from kvproxy.analyse.simulate.pool_cost import EngineTier
from kvproxy.analyse.simulate.pool_simulation import ChainRequest, TraceRequest
from kvproxy.analyse.simulate.routing_simulation import (
    POLICIES,
    TIER_POLICY,
    FleetShape,
    simulate_routing,
    smallest_fleet,
)
from kvproxy.analyse.simulate.trace_reader import read_trace

DATA = Path(__file__).parent / "data"


def turns(conversations: int, rounds: int) -> list[TraceRequest]:
    """Conversations that grow by a block each round, a second apart, none of them alike."""
    found = []
    for turn in range(rounds):
        for number in range(conversations):
            blocks = tuple(number * 1000 + index for index in range(turn + 2))
            second = float(turn * conversations + number)
            found.append(TraceRequest(second, ChainRequest(blocks, turn + 2, partial=True), 100 * (turn + 2) + 1, 1))
    return found


@pytest.mark.parametrize("policy", list(POLICIES))
def test_every_token_is_hit_or_computed(policy: str) -> None:
    arrivals = turns(7, 5)
    result = simulate_routing(arrivals, FleetShape(3, 100, 100, 1e6), policy)
    possible = sum(100 * (turn + 1) for turn in range(1, 5)) * 7
    assert 0 <= result.hit_tokens <= possible
    assert result.hit_rate == result.hit_tokens / sum(arrival.tokens for arrival in arrivals)
    assert result.refused == 0
    if policy not in ("round-robin", "random"):
        # Engines are idle and have room, so a conversation never leaves its engine.
        assert result.hit_tokens == possible


def test_what_fits_no_pool_is_refused_and_leaves_no_load() -> None:
    arrivals = turns(2, 6)
    result = simulate_routing(arrivals, FleetShape(2, 3, 100, 1e6), "prefix and load")
    assert result.refused == 2 * 5


def test_following_prefixes_beats_ignoring_them_on_a_real_trace() -> None:
    trace = read_trace(DATA / "mooncake-300.jsonl")
    arrivals, shape = trace.arrivals, FleetShape(4, 2000, trace.block_tokens, 10_000)
    results = {policy: simulate_routing(arrivals, shape, policy) for policy in POLICIES}
    ours = results["prefix and load"]
    for other in ("round-robin", "random"):
        assert ours.hit_tokens > results[other].hit_tokens
        assert ours.wait_p50 <= results[other].wait_p50


def test_tiers_are_loaded_and_routing_by_them_lowers_the_mean_wait() -> None:
    trace = read_trace(DATA / "mooncake-300.jsonl")
    tier = EngineTier("host", 4000, 150_000.0)
    shape = FleetShape(4, 200, trace.block_tokens, 10_000, tiers=(tier,))
    without = simulate_routing(trace.arrivals, FleetShape(4, 200, trace.block_tokens, 10_000), "prefix and load")
    by_gpu, by_tier = (simulate_routing(trace.arrivals, shape, policy) for policy in ("prefix and load", TIER_POLICY))
    assert without.loaded_tokens == 0 < by_gpu.loaded_tokens < by_tier.loaded_tokens
    assert without.hit_tokens < by_gpu.hit_tokens < by_tier.hit_tokens
    assert by_tier.wait_mean < by_gpu.wait_mean < without.wait_mean


def test_a_conversation_in_a_tier_waits_for_the_load() -> None:
    first, *_, last = turns(1, 2)
    other = TraceRequest(0.5, ChainRequest((7, 8, 9), 3, partial=False), 300, 1)
    shape = FleetShape(1, 4, 100, 1000.0, tiers=(EngineTier("host", 100, 2000.0),))
    result = simulate_routing([first, other, replace(last, seconds=5.0)], shape, TIER_POLICY)
    # The last prompt of 301 tokens has a block on the GPU, one in host memory, and one block and one token to compute.
    assert (result.hit_tokens, result.loaded_tokens) == (200, 100)
    assert result.wait_mean == pytest.approx((0.201 + 0.3 + 100 / 2000 + 0.101) / 3)


def test_late_and_lost_events_cost_hits() -> None:
    trace = read_trace(DATA / "mooncake-300.jsonl")
    events = ((0.0, 0.0), (1e6, 0.0), (0.0, 1.0))
    shapes = [FleetShape(4, 2000, trace.block_tokens, 10_000, delay, loss) for delay, loss in events]
    hits = [simulate_routing(trace.arrivals, shape, "prefix and load").hit_tokens for shape in shapes]
    assert hits[0] > hits[1] == hits[2]


def test_the_smallest_fleet_for_a_time_to_the_first_token() -> None:
    trace = read_trace(DATA / "mooncake-300.jsonl")
    shape = FleetShape(1, 2000, trace.block_tokens, 10_000)
    found = smallest_fleet(trace.arrivals, shape, "consistent hashing", 20.0)
    assert found is not None
    smaller = FleetShape(found.engines - 1, 2000, trace.block_tokens, 10_000)
    one_less = simulate_routing(trace.arrivals, smaller, "consistent hashing")
    assert found.wait_p99 <= 20.0 < one_less.wait_p99


def test_no_fleet_reaches_less_than_the_time_of_a_prefill(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(routing_simulation, "MAX_ENGINES", 8)
    # Each prompt takes at least 0.201 s.
    assert smallest_fleet(turns(2, 1), FleetShape(1, 100, 100, 1000), "round-robin", 0.2) is None
