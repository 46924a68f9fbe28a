"""Tokens equal `model.generate`'s after chunks went to a tier and came back."""

from pathlib import Path

import pytest

from tests.engine.driven import ANSWER, Driven, prompts_of
from tests.engine.models import random_model, reference, tiny
from tests.redis_server import RedisServer


@pytest.mark.parametrize("architecture", ["llama", "gpt-neox"])
def test_tokens_equal_generate_after_reload_from_every_tier(
    architecture: str, tmp_path: Path, redis_server: RedisServer
) -> None:
    prompts, expected = prompts_of(architecture)
    every = {"host": "64MiB", "disk": tmp_path, "redis": redis_server.url}
    for tier in ("host", "disk", "redis"):
        first = Driven(tiny(architecture), {tier: every[tier]})
        assert first.answers(prompts, "cold") == expected
        first.settle()
        first.forget_pool()
        assert first.answers(prompts, "back") == expected
        assert first.hits()[tier] > 0
        assert max(usage.tier_tokens for usage in first.usage.values()) >= 16
        first.engine.close()
        if tier != "host":
            second = Driven(tiny(architecture), {tier: every[tier]})
            assert second.answers(prompts, "restart") == expected
            assert second.hits()[tier] > 0
            second.engine.close()


@pytest.mark.parametrize("blocks", [40, 60])
def test_tokens_equal_generate_under_eviction_pressure(blocks: int, tmp_path: Path) -> None:
    prompts, expected = prompts_of("llama", 12)
    driven = Driven(tiers={"host": "100KiB", "disk": tmp_path}, num_blocks=blocks)
    for round in ("a", "b", "c"):
        assert driven.answers(prompts, round) == expected
        driven.settle()
    assert driven.engine.manager.stats().evictions > 50
    assert driven.engine.manager.stats().used == 0
    assert driven.hits()["host"] + driven.hits()["disk"] > 0
    assert driven.tiers.chain.stats()[0].evictions > 0
    driven.engine.close()


def test_another_models_chunks_are_never_used(tmp_path: Path) -> None:
    prompts, _ = prompts_of("llama")
    for seed in (0, 1):
        driven = Driven(tiny(seed=seed), {"disk": tmp_path})
        expected = [reference(random_model("llama", seed), prompt, ANSWER) for prompt in prompts]
        assert driven.answers(prompts, "x") == expected
        assert driven.hits()["disk"] == 0
        driven.engine.close()


def test_salts_keep_chunks_apart() -> None:
    prompts, _ = prompts_of("llama")
    driven = Driven(tiers={"host": "64MiB"})
    for id, salt in (("a", "one"), ("b", "two"), ("c", "one")):
        driven.submit(id, prompts[0], 2, salt=salt)
        driven.run()
        driven.settle()
        driven.forget_pool()
    assert driven.usage["a"].tier_tokens == driven.usage["b"].tier_tokens == 0
    assert driven.usage["c"].tier_tokens > 0
    driven.engine.close()
