"""Decisions on pauses, and the price of recorded sessions under them."""

import gzip
import json
import math
import random
from pathlib import Path

import pytest

from kvproxy.providers.cache_policy import (
    HOUR,
    KEEP_WARM_SECONDS,
    PauseTimes,
    keep_warm_requests,
    should_cache_for_an_hour,
)
from kvproxy.providers.pause_costs import Session, SessionStep, input_price, provider_policy_price, session_price
from kvproxy.providers.prices import relative_prices
from tests.benchmarks.pauses import compare_policies, learn, lowest_price, read_sessions, warm_price

ANTHROPIC_PRICES = relative_prices("claude-opus-4-8")


def _times(*pauses: float, repeat: int = 1_000, client: str = "", hour: int = 0) -> PauseTimes:
    times = PauseTimes(())
    for _ in range(repeat):
        for seconds in pauses:
            times.add(seconds, client, hour)
    return times


def test_keep_warm_requests_follow_the_pauses() -> None:
    assert keep_warm_requests(_times(10, math.inf).survival(), ANTHROPIC_PRICES) == 0
    assert keep_warm_requests(_times(10, 400).survival(), ANTHROPIC_PRICES) == 1
    assert keep_warm_requests(_times(10, 1_000, math.inf).survival(), ANTHROPIC_PRICES) == 3
    # One of ten sessions returns: requests for the other sessions cost more than its prefix.
    assert keep_warm_requests(_times(400, *[math.inf] * 11).survival(), ANTHROPIC_PRICES) == 0
    assert keep_warm_requests(_times(10, 400).survival(), ANTHROPIC_PRICES, kept_share=0.95) == 0
    assert keep_warm_requests(_times(10, 400).survival(), ANTHROPIC_PRICES, uncached_share=0.1) == 1
    assert keep_warm_requests(_times(10, 400).survival(), ANTHROPIC_PRICES, uncached_share=2.0) == 0


def test_only_small_additions_are_written_for_an_hour() -> None:
    survival = _times(*[10] * 9, 1_000).survival()
    assert survival.pause_probability(KEEP_WARM_SECONDS, HOUR) == pytest.approx(0.1)
    assert should_cache_for_an_hour(1_000, 100_000, survival, ANTHROPIC_PRICES)
    assert not should_cache_for_an_hour(100_000, 100_000, survival, ANTHROPIC_PRICES)
    assert not should_cache_for_an_hour(1_000, 100_000, _times(10, 7_200).survival(), ANTHROPIC_PRICES)


def test_groups_with_few_pauses_follow_all_pauses() -> None:
    times = _times(10, client="a", hour=3)
    times.add(1_000, client="b", hour=4)
    assert times.survival("b", 4).pause_probability(KEEP_WARM_SECONDS, HOUR) < 0.02
    for _ in range(100_000):
        times.add(1_000, client="b", hour=4)
    assert times.survival("b", 4).pause_probability(KEEP_WARM_SECONDS, HOUR) > 0.9
    assert times.survival("a", 3).pause_probability(KEEP_WARM_SECONDS, HOUR) < 0.5
    unknown = PauseTimes().survival("unknown").pause_probability(KEEP_WARM_SECONDS, HOUR)
    assert unknown == pytest.approx(0.039, abs=0.001)


def _trace(folder: Path, *times: float) -> Path:
    ids = list(range(10))
    sizes = [{"in": 640 + 64 * n, "hash_ids": [*ids, *range(10, 10 + n)]} for n in range(len(times))]
    rows = [{"t": time, "api_time": 10} | size for time, size in zip(times, sizes, strict=True)]
    agent = {"type": "subagent", "requests": [{"t": 0, "in": 64, "hash_ids": [1]}]}
    path = folder / "trace.json.gz"
    path.write_bytes(gzip.compress(json.dumps({"block_size": 64, "requests": [*rows, agent]}).encode()))
    return path


def test_prices_of_a_trace(tmp_path: Path) -> None:
    session, agent = read_sessions(_trace(tmp_path, 0, 20, 430))
    assert [step.pause for step in session] == [None, 10, 400, math.inf]
    assert agent == [SessionStep(64, 0, None), SessionStep(0, 64, math.inf)]
    first, second = 1.25 * 640, 0.1 * 640 + 1.25 * 64

    def never(new: int, unprotected: int) -> bool:
        return False

    expired = session_price(session, lambda tokens, kept: 0, never, ANTHROPIC_PRICES)
    assert expired == pytest.approx(first + second + 1.25 * 768)
    warm = session_price(session, lambda tokens, kept: 1, never, ANTHROPIC_PRICES)
    paid = input_price(session, lambda tokens, kept: 1, never, ANTHROPIC_PRICES)
    assert (paid.total, paid.keep_warm) == (warm, paid.tokens * ANTHROPIC_PRICES.price_of_reuse)
    assert paid.requests > 0
    assert warm == pytest.approx(first + second + 2 * 0.1 * 704 + 1.25 * 64 + 0.1 * 768)
    # The second request writes 64 tokens for one hour, so the prefix survives the pause.
    hour = session_price(session, lambda tokens, kept: 0, lambda new, unprotected: new == 64, ANTHROPIC_PRICES)
    assert hour == pytest.approx(first + 0.1 * 640 + 2 * 64 + 0.1 * 704 + 2 * 64)
    assert lowest_price(session, ANTHROPIC_PRICES, long_writes=True) == pytest.approx(hour - 0.75 * 64)


def _random_session(draw: random.Random) -> Session:
    steps, tokens = [], draw.randrange(1_000, 100_000)
    for number in range(draw.randrange(1, 30)):
        shared = 0 if number == 0 else draw.choice((tokens, tokens // 10))
        tokens = shared + draw.randrange(1, 5_000)
        pause = draw.choice((5.0, 60.0, 310.0, 900.0, 2_000.0, 9_000.0))
        steps.append(SessionStep(tokens, shared, pause if number else None))
    return [*steps, SessionStep(0, tokens, math.inf)]


def test_no_policy_is_cheaper_than_known_pauses() -> None:
    draw = random.Random(1)
    sessions = [_random_session(draw) for _ in range(60)]
    survival = learn(sessions)
    for session in sessions:
        for price_of, long_writes in ((warm_price, False), (provider_policy_price, True)):
            least = lowest_price(session, ANTHROPIC_PRICES, long_writes=long_writes)
            assert least <= price_of(session, survival, ANTHROPIC_PRICES) + 1e-6
    found = compare_policies([(survival, sessions)], ANTHROPIC_PRICES)
    assert found.bound <= found.warm_bound <= min(found.fixed.values())
    assert found.closed(found.warm_bound) == pytest.approx(1)
