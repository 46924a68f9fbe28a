"""Forecasts of a pool size, against an embedded engine of that size."""

import random
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import cast

import httpx
import pytest

from kvproxy.blocks.pool_forecast import ForecastPoint, PoolForecast
from kvproxy.commands.blocks.what_if import what_if
from kvproxy.commands.options import ProxyOptions
from kvproxy.operations.blocks_parameters import ForecastQuery
from kvproxy.settings import load_settings
from tests.commands.run import kvproxy, result
from tests.polling import until
from tests.servers import run_proxy

POOL = 100
WORDS = "block cache prefix token turn agent tool file test error queue pool chain store hash".split()


@pytest.fixture
def url(tmp_path: Path) -> Iterator[str]:
    engine = {"num_blocks": POOL + 1, "max_model_len": 512}
    with run_proxy(load_settings(data=tmp_path, engine=engine, cache={"enabled": False})) as (found, _):
        yield found


def _forecast_requests(url: str) -> list[int]:
    """Return the number of requests of each forecast. The list is empty until the journal has written a request."""
    return [forecast["requests"] for forecast in httpx.get(f"{url}/admin/blocks/what-if").json()]


def test_the_forecast_of_the_proxy_predicts_the_hit_rate_of_the_engine(url: str) -> None:
    generator = random.Random(0)

    def text(least: int, most: int) -> str:
        return " ".join(generator.choice(WORDS) for _ in range(generator.randint(least, most)))

    system = {"role": "system", "content": text(60, 60)}
    contexts = [text(40, 120) for _ in range(12)]
    for number in range(50):
        context = min(generator.sample(contexts, 2), key=contexts.index)
        turns = [{"role": "user", "content": context}, {"role": "assistant", "content": "Yes."}]
        messages = [system, *turns, {"role": "user", "content": f"{number}?"}]
        body = {"model": "demo", "messages": messages, "max_tokens": 1}
        assert httpx.post(f"{url}/v1/chat/completions", json=body, timeout=300).is_success
    stats = httpx.get(f"{url}/admin/blocks/stats").json()
    until(lambda: _forecast_requests(url) == [50])
    (forecast,) = result("blocks", "what-if", url=url)
    rates = {point["name"]: point["hit_rate"] for point in forecast["points"]}
    assert forecast["pool_tokens"] == 16 * POOL
    assert abs(rates["current"] - stats["hit_rate"]) < 0.01
    assert rates["half"] <= rates["current"] <= rates["double"] <= rates["unlimited"]
    done = kvproxy("blocks", "what-if", url=url)
    assert "twice the pool" in done.stdout
    assert "host tier of 64GiB" in done.stdout
    assert "embedded engine: 50 requests whose response began, " in done.stdout
    assert "64GiB" in kvproxy("blocks", "what-if", "--help").stdout
    assert "requests that ended before a response began count in kvproxy blocks stats, but not here" in done.stderr
    assert forecast["measured_hit_rate"] == pytest.approx(stats["hit_rate"])
    assert f"{stats['hit_rate']:.1%} of them reused" in done.stdout
    assert 'pool="double",upstream="embedded"' in httpx.get(f"{url}/metrics").text


@pytest.mark.parametrize(("current", "is_noted"), [(0.828, True), (0.909, False)])
def test_a_forecast_below_the_measured_rate_is_a_lower_bound(
    capsys: pytest.CaptureFixture[str], current: float, is_noted: bool
) -> None:
    points = [ForecastPoint("current", 1_600, current, 0.0), ForecastPoint("double", 3_200, current + 0.05, -10.0)]
    forecast = PoolForecast("http://e", 5, 1_000, 1_000, 0.913, 1_600, points, [])
    client = SimpleNamespace(perform=lambda operation, query: [forecast])
    what_if(ForecastQuery(), cast("ProxyOptions", SimpleNamespace(client=lambda: client))).show()
    note = "the engine reuses 8.5 points more than the forecast of its current pool: the hit rates are lower bounds"
    assert (note in capsys.readouterr().err) == is_noted


def test_tokens_from_tiers_are_counted_beside_the_hits_of_the_pool(tmp_path: Path) -> None:
    engine, tiers = {"num_blocks": 41, "max_model_len": 256}, {"host": "64MiB", "chunk_tokens": 16}
    settings = load_settings(data=tmp_path, engine=engine, tiers=tiers, cache={"enabled": False})
    with run_proxy(settings) as (url, _):
        for number in range(16):
            text = " ".join(f"{WORDS[number % 8]}{place}" for place in range(40))
            body = {"model": "demo", "messages": [{"role": "user", "content": text}], "max_tokens": 1}
            assert httpx.post(f"{url}/v1/chat/completions", json=body, timeout=300).is_success
        stats = httpx.get(f"{url}/admin/blocks/stats").json()
        assert stats["tier_hits"] > 0
        (tier,) = httpx.get(f"{url}/admin/blocks/tiers").json()
        assert tier["tokens_loaded"] == stats["tier_hits"]
        share = (stats["hits"] + stats["tier_hits"]) / stats["queries"]
        line = f"plus {stats['tier_hits']:,} tokens from tiers, {share:.1%} in all"
        assert line in kvproxy("blocks", url=url).stdout
        assert line in kvproxy("top", "--once", "--interval", "0.01", url=url).stdout
        shown = kvproxy("blocks", "stats", url=url).stdout
        assert f"Prompt tokens from tiers\t{stats['tier_hits']}" in shown
        assert "tokens loaded" in kvproxy("blocks", "tiers", url=url).stdout.lower()
        until(lambda: _forecast_requests(url) == [16])
        (forecast,) = result("blocks", "what-if", url=url)
        rates = {point["name"]: point["hit_rate"] for point in forecast["points"]}
        assert rates["current"] == rates["double"] == rates["tier"]
        assert rates["current"] == pytest.approx(forecast["measured_hit_rate"], abs=0.1)
        assert rates["without_tiers"] < rates["current"] - 0.2
        shown = kvproxy("blocks", "what-if", url=url)
        assert "current pool without tiers" in shown.stdout
        assert "include the configured tiers" in shown.stderr
