"""The registry of cache rules, against the list prices of `genai-prices` and the rules of the scripted upstream."""

import ast
import re
from datetime import timedelta
from pathlib import Path

import pytest
from genai_prices.data_snapshot import get_snapshot

from kvproxy.providers.cache_rules import CACHE_RULES, cache_rule, rule_of_marks
from kvproxy.providers.published_prices import list_price
from tests.clients.prompt_cache import rules_of

ROOT = Path(__file__).resolve().parents[2]
MODELS = (
    *("claude-opus-5", "claude-opus-5-5", "claude-fable-5-1", "claude-opus-4-7", "claude-opus-4-5-20251101"),
    *("claude-haiku-4-5", "claude-sonnet-4-6", "gpt-5.6", "gpt-5.6-luna", "gpt-4o", "gpt-4.1-mini"),
)


@pytest.mark.parametrize("model", MODELS)
def test_rules_equal_those_of_the_scripted_upstream(model: str) -> None:
    rule, expected = cache_rule(model), rules_of(model)
    assert rule is not None
    assert rule.minimum_tokens == expected.minimum
    assert rule.step_tokens == expected.step
    if expected.kind != "steps":
        assert (rule.lifetimes, rule.default_lifetime) == (expected.lifetimes, expected.lifetimes[expected.default])
        assert (rule.max_marks, rule.lookback) == (expected.max_marks, expected.lookback)
    assert rule.mark_field == {"marks": "cache_control", "breakpoints": "prompt_cache_breakpoint"}.get(expected.kind)


@pytest.mark.parametrize("provider", ["anthropic", "openai"])
def test_ratios_equal_the_list_prices_of_all_models(provider: str) -> None:
    models = next(each for each in get_snapshot().providers if each.id == provider).models
    compared = 0
    for model in models:
        price, rule = list_price(model.id), cache_rule(model.id)
        if price is None or rule is None or rule.read_ratio is None:
            continue
        compared += 1
        assert price.price_of_reuse == pytest.approx(price.input * rule.read_ratio), model.id
        assert rule.default_write_ratio is not None
        assert price.price_of_5m_write == pytest.approx(price.input * rule.default_write_ratio), model.id
        if "1h" in rule.write_ratios:
            assert price.price_of_1h_write == pytest.approx(price.input * rule.write_ratios["1h"]), model.id
    assert compared > 5


@pytest.mark.parametrize(
    "model",
    [
        "us.anthropic.claude-opus-4-5-20251101-v1:0",
        "anthropic.claude-opus-4-5-20251101-v1:0",
        "claude-opus-4-5@20251101",
        "anthropic/claude-opus-4.5",
        "vertex_ai/claude-opus-4-5@20251101",
        "bedrock/converse/us.anthropic.claude-opus-4-5-20251101-v1:0",
        "openrouter/anthropic/claude-opus-4.5",
        "claude-4.5-opus",
    ],
)
def test_names_of_gateways_have_the_rule_of_the_model(model: str) -> None:
    assert cache_rule(model) is cache_rule("claude-opus-4-5")


@pytest.mark.parametrize("model", ["m", "qwen3", "mistral:7b", "mistral-nemo", "openai/gpt-oss-20b", "deepseek-r1:8b"])
def test_open_weights_and_unknown_models_have_no_rule(model: str) -> None:
    assert cache_rule(model) is None
    assert rule_of_marks(model).models == "claude-*"


def test_each_rule_has_a_source_and_is_outdated_after_six_months() -> None:
    for rule in CACHE_RULES:
        assert rule.source.startswith("https://")
        assert not rule.is_outdated(rule.verified + timedelta(days=180))
        assert rule.is_outdated(rule.verified + timedelta(days=190))


def test_the_first_rule_of_a_pattern_is_the_only_one() -> None:
    patterns = [rule.models for rule in CACHE_RULES]
    assert len(patterns) == len(set(patterns))


def test_no_other_module_names_models_of_providers() -> None:
    found = []
    pattern = re.compile(r"(?:claude|opus|haiku|sonnet|gpt|gemini|grok)-?\*?\d?\S*\*|^\*?(?:opus|haiku|sonnet)")
    # Only their files are parsed.
    families = re.compile("claude|opus|haiku|sonnet|gpt|gemini|grok")
    for path in (
        *(ROOT / "kvproxy").rglob("*.py"),
        *(ROOT / "index").rglob("*.py"),
        *(ROOT / "commands").rglob("*.py"),
    ):
        text = path.read_text()
        if "providers" in path.parts or not families.search(text):
            continue
        constants = (node.value for node in ast.walk(ast.parse(text)) if isinstance(node, ast.Constant))
        names = [value for value in constants if isinstance(value, str) and " " not in value]
        found += [f"{path.name}: {name}" for name in names if pattern.search(name)]
    assert not found
