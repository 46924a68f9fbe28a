"""Prices of models, from the settings and from the list prices."""

import json
import subprocess
import sys
from datetime import UTC, datetime
from pathlib import Path
from random import Random
from typing import Any

import pytest
from genai_prices import Usage, calc_price
from genai_prices.data_snapshot import DataSnapshot

from kvproxy.providers import prices, published_prices
from kvproxy.providers.prices import ModelPrices, cache_limits, has_tier_price, price_at
from kvproxy.providers.published_prices import list_price
from kvproxy.settings.journal import (
    MILLION,
    JournalSettings,
    PriceSettings,
    input_price,
    price_lost_per_token,
    price_of,
)
from tests.commands.run import kvproxy


@pytest.mark.parametrize(
    ("model", "prices"),
    [
        ("claude-opus-5", (5, 0.5, 6.25, 10, 25)),
        ("claude-opus-5-5", (4, 0.2, 5, 8, 20)),
        ("claude-sonnet-5-5", (2, 0.1, 2.5, 4, 10)),
        ("claude-fable-5-1", (10, 0.25, 12.5, 20, 50)),
        ("claude-haiku-4-5-20251001", (1, 0.1, 1.25, 2, 5)),
        ("us.anthropic.claude-opus-4-5-20251101-v1:0", (5.5, 0.55, 6.875, 11, 27.5)),
        ("anthropic/claude-opus-4.5", (5, 0.5, 6.25, 10, 25)),
        ("gpt-5.6", (4, 0.4, 5, None, 20)),
        ("gpt-5.6-luna", (0.2, 0.02, 0.25, None, 1.2)),
        ("gpt-4o-2024-08-06", (2.5, 1.25, None, None, 10)),
        ("gemini-2.5-pro", (1.25, 0.125, None, None, 10)),
        # Spellings of LiteLLM, OpenRouter, and Vertex.
        ("vertex_ai/gemini-2.5-pro", (1.25, 0.125, None, None, 10)),
        ("models/gemini-2.5-pro", (1.25, 0.125, None, None, 10)),
        ("azure/gpt-4o-2024-08-06", (2.5, 1.25, None, None, 10)),
        ("bedrock/us.anthropic.claude-opus-4-5-20251101-v1:0", (5.5, 0.55, 6.875, 11, 27.5)),
        ("anthropic/claude-opus-4-5-20251101", (5, 0.5, 6.25, 10, 25)),
        ("openrouter/anthropic/claude-opus-4.5", (5, 0.5, 6.25, 10, 25)),
        ("anthropic/claude-4-sonnet-20250522", (3, 0.3, 3.75, 6, 15)),
        ("claude-4.5-sonnet", (3, 0.3, 3.75, 6, 15)),
        ("x-ai/grok-4-07-09", (3, 0.75, None, None, 15)),
        # Open weights with the name of their host.
        ("groq/openai/gpt-oss-120b", (0.15, 0.075, None, None, 0.6)),
        ("cerebras/gpt-oss-120b", (0.35, None, None, None, 0.75)),
        ("openai/text-embedding-3-small", (0.02, None, None, None, 0)),
        ("text-embedding-3-small", (0.02, None, None, None, 0)),
        ("gemini-embedding-001", (0.15, None, None, None, 0)),
    ],
)
def test_list_prices(model: str, prices: tuple[float | None, ...]) -> None:
    price = list_price(model, datetime(2026, 11, 28, 12, tzinfo=UTC))
    assert price is not None
    found = (price.input, price.cached, price.write_5m, price.write_1h, price.output)
    assert found == tuple(each if each is None else pytest.approx(each) for each in prices)


@pytest.mark.parametrize(
    "model",
    [
        *(
            "m",
            "claude-opus-5-6",
            "claude-opus-6",
            "gpt-5.6-foo",
            "gemini-2.5-pro-foo",
            "gpt-4o-finetune",
            "qwen/qwen3-32b",
        ),
        *(
            "gpt-oss-120b",
            "openai/gpt-oss-120b",
            "deepseek-v3.2",
            "deepseek-ai/DeepSeek-V3.2",
            "groq/m",
            "claude-5-6-opus",
        ),
        *("google/gemini-2.5-pro:free", "gemini/gemini-2.5-pro-foo"),
    ],
)
def test_an_unknown_model_has_no_price_of_its_neighbour(model: str) -> None:
    assert list_price(model) is None
    assert price_of(model, ModelPrices(JournalSettings())) is None


def test_prices_depend_on_the_time_of_the_request() -> None:
    day, night = (list_price("deepseek-chat", datetime(2026, 11, 28, hour, tzinfo=UTC)) for hour in (12, 20))
    assert day is not None
    assert night is not None
    assert (day.input, night.input) == (0.27, 0.135)


def test_long_prompts_have_the_price_of_their_tier() -> None:
    moment = datetime(2026, 11, 28, 12, tzinfo=UTC)
    prices = [list_price("gpt-5.6", moment, tokens) for tokens in (272_000, 272_001)]
    found = [(each.input, each.cached, each.write_5m, each.output) for each in prices if each is not None]
    assert found == [(4, 0.4, 5, 20), (8, 0.8, 10, 30)]
    listed = price_at("gpt-5.6", ModelPrices(JournalSettings()), moment.timestamp(), 300_000)
    assert listed == prices[1]


@pytest.mark.parametrize(
    ("provider", "models", "writes"),
    [
        ("anthropic", ("claude-opus-5", "claude-opus-5-5", "claude-fable-5-1", "claude-haiku-4-5"), 2),
        ("openai", ("gpt-5.6", "gpt-5.6-luna", "gpt-6.1-sol"), 1),
        ("openai", ("gpt-4o", "gpt-4.1"), 0),
        ("google", ("gemini-2.5-pro", "gemini-2.5-flash"), 0),
        ("deepseek", ("deepseek-chat",), 0),
    ],
)
def test_random_requests_cost_what_the_price_list_calculates(
    provider: str, models: tuple[str, ...], writes: int
) -> None:
    random, prices = Random(7), ModelPrices(JournalSettings())
    for _ in range(200):
        model, time, prompt = random.choice(models), random.uniform(1.78e9, 1.795e9), random.randint(1_000, 400_000)
        cached, completion = random.randint(0, prompt), random.randint(1, 4_000)
        short = random.randint(0, prompt - cached) if writes else 0
        long = random.randint(0, prompt - cached - short) if writes == 2 else 0
        written = {"cache_write_tokens": short + long} | ({"cache_write_1h_tokens": long} if long else {})
        usage = Usage(
            input_tokens=prompt,
            cache_read_tokens=cached,
            output_tokens=completion,
            **(written if writes else {}),
        )
        moment = datetime.fromtimestamp(time, UTC)
        expected = calc_price(usage, model, provider_id=provider, genai_request_timestamp=moment).total_price
        price = price_at(model, prices, time, prompt)
        assert price is not None
        paid = input_price(price, prompt, cached, short, long) + completion * price.output / MILLION
        assert paid == pytest.approx(float(expected), rel=1e-3)


@pytest.mark.parametrize(
    ("model", "tier", "prices"),
    [
        ("gpt-5.1", "flex", (0.625, 0.0625, 5)),
        ("gpt-5.1", "priority", (2.5, 0.25, 20)),
        ("gpt-4o-2024-08-06", "priority", (4.25, 2.125, 17)),
        ("gpt-4.1", "batch", (1, 0.5, 4)),
        # The list has no price of these: by the providers' rule, half of the standard price.
        ("gpt-4.1", "flex", (1, 0.25, 4)),
        ("claude-opus-5", "batch", (2.5, 0.25, 12.5)),
        ("claude-opus-5", "fast", (10, 1, 50)),
    ],
)
def test_service_tiers_have_their_prices(model: str, tier: str, prices: tuple[float, ...]) -> None:
    moment = datetime(2026, 11, 28, 12, tzinfo=UTC).timestamp()
    listed = ModelPrices(JournalSettings())
    price = price_at(model, listed, moment, 100, tier)
    assert price is not None
    assert (price.input, price.cached, price.output) == pytest.approx(prices)
    assert has_tier_price(model, listed, moment, tier)


@pytest.mark.parametrize(
    ("model", "tier", "prices"),
    [
        ("gpt-5-2025-08-07", "priority", (2.5, 0.25, 20)),
        ("gpt-4o", "priority", (4.25, 2.125, 17)),
        # The list has no cached price of this batch.
        ("gpt-4o", "batch", (1.25, 1.25, 5)),
    ],
)
def test_a_tier_costs_the_same_before_its_first_listed_price(model: str, tier: str, prices: tuple[float, ...]) -> None:
    listed = ModelPrices(JournalSettings())
    for day in (2, 11, 13, 15):
        moment = datetime(2026, 10, day, tzinfo=UTC).timestamp()
        price = price_at(model, listed, moment, 100, tier)
        assert price is not None
        assert (price.input, price.cached, price.output) == pytest.approx(prices), day
        assert has_tier_price(model, listed, moment, tier)


def test_a_tier_is_a_multiple_of_an_earlier_standard_price() -> None:
    listed = ModelPrices(JournalSettings())
    then, before = datetime(2026, 10, 14, tzinfo=UTC), datetime(2026, 7, 1, tzinfo=UTC)
    model = "gpt-5.6-terra"
    standard = [listed.at(model, moment) for moment in (before, then)]
    priority = [listed.at(model, moment, 0, "priority") for moment in (before, then)]
    ratios = [own.input / usual.input for own, usual in zip(priority, standard, strict=True) if own and usual]
    assert ratios == pytest.approx([2, 2])
    assert standard[0] != standard[1]


def test_a_tier_without_a_known_price_has_the_standard_price() -> None:
    moment = datetime(2026, 11, 28, 12, tzinfo=UTC).timestamp()
    listed = ModelPrices(JournalSettings())
    for model, tier in (("claude-opus-5", "priority"), ("gpt-5.1", "scale"), ("gpt-4.1", "new")):
        assert price_at(model, listed, moment, 100, tier) == price_at(model, listed, moment, 100)
        assert not has_tier_price(model, listed, moment, tier)


def test_prices_of_the_settings_have_factors_of_tiers_or_else_the_published_ones() -> None:
    own = PriceSettings(input=2, cached=1, output=4, service_tiers={"priority": 3})
    prices = ModelPrices(JournalSettings(prices={"gpt-5.1": own, "local": own}))
    costs = [price_at("gpt-5.1", prices, 1.8e9, 0, tier) for tier in ("priority", "flex", "scale")]
    assert [each and (each.input, each.cached, each.output) for each in costs] == [(6, 3, 12), (1, 0.5, 2), (2, 1, 4)]
    assert [has_tier_price("local", prices, 1.8e9, tier) for tier in ("priority", "flex")] == [True, False]


def test_prices_of_the_settings_win() -> None:
    own = PriceSettings(input=1.0)
    prices = ModelPrices(JournalSettings(prices={"gpt-4o*": own}))
    assert price_of("gpt-4o", prices) == own
    listed = price_of("claude-opus-5", prices)
    assert listed is not None
    assert listed.input == 5


def test_prices_of_the_settings_change_on_a_day() -> None:
    dated: dict[str, Any] = {"input": 4, "cached": 1, "output": 8, "service_tiers": {"flex": 0.25}}
    dated["changes"] = {"2026-12-01": {"input": 3, "service_tiers": {"flex": 0.5}}, "2026-11-01": {"output": 6}}
    prices = ModelPrices(JournalSettings.model_validate({"prices": {"own-*": dated}}))

    def at(month: int, day: int, hour: int, tier: str | None = None) -> tuple[float, float | None, float]:
        price = price_at("own-1", prices, datetime(2026, month, day, hour, tzinfo=UTC).timestamp(), 0, tier)
        assert price is not None
        return price.input, price.cached, price.output

    assert [at(10, 31, 23), at(11, 1, 0), at(11, 30, 23), at(12, 1, 0)] == [(4, 1, 8), (4, 1, 6), (4, 1, 6), (3, 1, 6)]
    assert [at(11, 30, 23, "flex"), at(12, 1, 0, "flex")] == [(1, 0.25, 1.5), (1.5, 0.5, 3)]


def test_a_missing_price_has_the_published_ratio_of_its_day() -> None:
    dated = {"input": 4, "output": 8, "changes": {"2026-11-01": {"input": 2}}}
    prices = ModelPrices(JournalSettings.model_validate({"prices": {"claude-*": dated}}))
    days = [datetime(2026, month, 5, tzinfo=UTC).timestamp() for month in (10, 11)]
    found = [price_at("claude-sonnet-4-6", prices, day, 0) for day in days]
    assert [each and (each.cached, each.write_5m) for each in found] == [
        (pytest.approx(0.4), 5),
        (pytest.approx(0.2), 2.5),
    ]


@pytest.mark.parametrize(
    "table", [{"ttl": 60, "least_cached_tokens": 1}, {"changes": {"2026-12-01": {"input": 1, "output": 1}}}]
)
def test_a_table_without_a_price_leaves_the_list_price(table: dict[str, Any]) -> None:
    prices = ModelPrices(JournalSettings.model_validate({"prices": {"gpt-4o": table, "unknown": table}}))
    moment = datetime(2026, 11, 30, 23, tzinfo=UTC).timestamp()
    assert price_at("gpt-4o", prices, moment, 0) == list_price("gpt-4o", datetime(2026, 11, 30, tzinfo=UTC))
    assert price_at("unknown", prices, moment, 0) is None
    later = price_at("unknown", prices, moment + 3_600, 0)
    assert (later and later.input) == (1 if "changes" in table else None)


def test_factors_of_tiers_multiply_the_list_price() -> None:
    prices = ModelPrices(JournalSettings.model_validate({"prices": {"gpt-4o": {"service_tiers": {"scale": 3}}}}))
    scaled = price_at("gpt-4o", prices, 1.7959e9, 0, "scale")
    assert (scaled and (scaled.input, scaled.output)) == (7.5, 30)
    assert has_tier_price("gpt-4o", prices, 1.7959e9, "scale")


def test_a_price_of_nothing_is_a_price() -> None:
    prices = ModelPrices(JournalSettings.model_validate({"prices": {"gpt-4o": {"input": 0}}}))
    assert price_at("gpt-4o", prices, 1.7959e9, 0) == PriceSettings(input=0)


def test_list_prices_do_not_apply_to_another_currency() -> None:
    assert price_of("claude-opus-5", ModelPrices(JournalSettings(currency="EUR"))) is None


def test_a_rate_converts_list_prices_to_another_currency(tmp_path: Path) -> None:
    own = PriceSettings(input=2, output=10)
    settings = JournalSettings(currency="EUR", usd_rate=0.8, prices={"gpt-4o": own})
    prices, dollars = ModelPrices(settings), ModelPrices(JournalSettings())
    for tier in (None, "batch"):
        euro, dollar = (each.at("claude-opus-5", None, 0, tier) for each in (prices, dollars))
        assert euro is not None
        assert dollar is not None
        for name in ("input", "cached", "write_5m", "write_1h", "output"):
            assert getattr(euro, name) == pytest.approx(0.8 * getattr(dollar, name))
    # Prices of the settings are in the currency already.
    assert prices["gpt-4o"].output == 10
    assert prices.source_of("claude-opus-5") == "list"
    with pytest.raises(ValueError, match="usd_rate converts list prices to another currency than USD"):
        JournalSettings(usd_rate=0.8)
    file = tmp_path / "kvproxy.toml"
    file.write_text('[journal]\ncurrency = "EUR"\n')
    (warning,) = json.loads(kvproxy("config", "check", "--data", tmp_path, "--json").stdout)["warnings"]
    assert warning.startswith(
        "journal.currency is EUR, so only models of [journal.prices] have a price: set journal.usd"
    )
    file.write_text('[journal]\ncurrency = "EUR"\nusd_rate = 0.8\n')
    assert json.loads(kvproxy("config", "check", "--data", tmp_path, "--json").stdout)["warnings"] == []


def test_limits_of_the_settings_win_over_the_rule() -> None:
    assert cache_limits("claude-opus-4-7", {}).minimum_tokens == 2_048
    assert cache_limits("gpt-5.6", {}).lifetime == 1_800
    own = {"*": PriceSettings(least_cached_tokens=9, ttl=20.0)}
    assert cache_limits("gpt-5.6", own).minimum_tokens == 9
    assert cache_limits("gpt-5.6", own).lifetime == 20


def test_the_price_list_is_loaded_at_the_first_price() -> None:
    code = (
        "import sys; from kvproxy.settings.journal import JournalSettings; from kvproxy.providers.prices import ModelPrices;"
        "assert 'm' not in ModelPrices(JournalSettings()); assert 'genai_prices' not in sys.modules;"
        "assert 'gpt-4o' in ModelPrices(JournalSettings()); assert 'genai_prices' in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


def test_missing_prices_of_the_settings_have_the_published_ratios() -> None:
    prices = ModelPrices(JournalSettings(prices={"*": PriceSettings(input=3, output=15, write_1h=5)}))
    claude, gpt, local = (price_of(model, prices) for model in ("claude-sonnet-4-6", "gpt-5.6", "qwen3"))
    assert claude is not None
    assert gpt is not None
    assert local is not None
    assert (claude.cached, claude.write_5m, claude.write_1h) == (pytest.approx(0.3), 3.75, 5)
    assert (gpt.cached, gpt.write_5m) == (pytest.approx(0.3), 3.75)
    assert (local.cached, local.write_5m) == (None, None)


def test_the_whole_list_is_found_with_few_searches(monkeypatch: pytest.MonkeyPatch) -> None:
    searched: list[str] = []
    search = DataSnapshot.find_provider_model

    def count(snapshot: DataSnapshot, model: str, *others: Any) -> Any:
        searched.append(model)
        return search(snapshot, model, *others)

    monkeypatch.setattr(DataSnapshot, "find_provider_model", count)
    published_prices._listed_model.cache_clear()
    names = list(published_prices.listed_models())
    assert len(names) > 1_000
    assert len(searched) < len(names) / 3, searched
    # A search finds the same models.
    monkeypatch.setattr(published_prices, "_models_by_name", lambda provider, price_list: {})
    providers = [(name, published_prices.provider_of(name) or "") for name in names[::50]]
    found = [published_prices._listed_model(*each, None) for each in providers]
    published_prices._listed_model.cache_clear()
    assert [published_prices._listed_model(*each, None) for each in providers] == found


def test_a_price_of_the_list_is_found_at_once_until_the_next_half_hour() -> None:
    known, arrived = ModelPrices(JournalSettings()), datetime(2026, 11, 20, 9, 10, tzinfo=UTC).timestamp()
    assert not known.is_found_at_once("claude-sonnet-4-5", arrived)
    assert price_at("claude-sonnet-4-5", known, arrived, 100) is not None
    assert known.is_found_at_once("claude-sonnet-4-5", arrived + 1_199)
    assert not known.is_found_at_once("claude-sonnet-4-5", arrived + 1_200)
    configured = ModelPrices(JournalSettings(prices={"own-*": PriceSettings(input=1.0, output=1.0)}))
    assert configured.is_found_at_once("own-model", arrived)


def test_known_prices_are_kept_to_the_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(prices, "_MAX_SEARCHED", 4)
    known, moment = ModelPrices(JournalSettings()), datetime(2026, 11, 20, 9, tzinfo=UTC)
    for number in range(20):
        known.at(f"claude-{number}", moment)
    assert known.is_found_at_once("claude-19", moment.timestamp())
    assert len(known._searched) <= 4


@pytest.mark.parametrize(("prompt", "reused"), [(200, 128), (1_000, 0), (7_919, 1_777)])
def test_reuse_without_a_price_of_its_own_saves_no_money(prompt: int, reused: int) -> None:
    # A rounding error would be a price, such as -4.2e-22, and listings would show "-0".
    assert str(price_lost_per_token(PriceSettings(input=2.5, output=10), prompt, reused, 0, 0)) == "0.0"
    price = PriceSettings(input=2.5, output=10, cached=0.25)
    assert price_lost_per_token(price, prompt, reused, 0, 0) == pytest.approx(2.25 / MILLION)
