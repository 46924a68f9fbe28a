"""Tokens equal `model.generate`'s after chunks went to a tier and came back."""

from pathlib import Path

import pytest

from kvproxy.generation import GenerationRequest, SamplingParams
from tests.engine.models import random_model, reference
from tests.engine.tiered import ANSWER, Driven, answers, prompts_of, tiny
from tests.redis_server import RedisServer


@pytest.mark.parametrize("architecture", ["llama", "gpt-neox"])
def test_tokens_equal_generate_after_reload_from_every_tier(
    architecture: str, tmp_path: Path, redis_server: RedisServer
) -> None:
    prompts, expected = prompts_of(architecture)
    every = {"host": "64MiB", "disk": tmp_path, "redis": redis_server.url}
    for tier in ("host", "disk", "redis"):
        first = Driven(tiny(architecture), {tier: every[tier]})
        assert answers(first, prompts, "cold") == expected
        first.settle()
        first.forget_pool()
        assert answers(first, prompts, "back") == expected
        assert first.hits()[tier] > 0
        assert max(usage.tier_tokens for usage in first.usage.values()) >= 16
        first.engine.close()
        if tier != "host":
            second = Driven(tiny(architecture), {tier: every[tier]})
            assert answers(second, prompts, "restart") == expected
            assert second.hits()[tier] > 0
            second.engine.close()


@pytest.mark.parametrize("blocks", [40, 60])
def test_tokens_equal_generate_under_eviction_pressure(blocks: int, tmp_path: Path) -> None:
    prompts, expected = prompts_of("llama", 12)
    driven = Driven(tiny(), {"host": "100KiB", "disk": tmp_path}, num_blocks=blocks)
    for round in ("a", "b", "c"):
        assert answers(driven, prompts, round) == expected
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
        assert answers(driven, prompts, "x") == expected
        assert driven.hits()["disk"] == 0
        driven.engine.close()


def test_strict_hits_from_a_tier_are_bit_exact(tmp_path: Path) -> None:
    prompts, _ = prompts_of("llama")
    prompt = (prompts[0] * 4)[:150]
    driven = Driven(tiny(), {"disk": tmp_path}, batch_invariant=True)
    seen: list[list[float]] = []
    for round in range(2):
        values: list[float] = []

        params = SamplingParams(max_tokens=6, temperature=0.0, logprobs=0)
        driven.engine.add_request(
            GenerationRequest(str(round), tuple(prompt), params),
            lambda delta, values=values: values.extend(item.logprob for item in delta.logprobs),  # type: ignore[misc]
        )
        driven.run()
        driven.settle()
        driven.forget_pool()
        seen.append(values)
    assert driven.hits()["disk"] == 128 // 16
    assert seen[0] == seen[1]
    driven.engine.close()


def test_salts_keep_chunks_apart() -> None:

    prompts, _ = prompts_of("llama")
    driven = Driven(tiny(), {"host": "64MiB"})
    usage: dict[str, int] = {}
    for id, salt in (("a", "one"), ("b", "two"), ("c", "one")):
        driven.engine.add_request(
            GenerationRequest(id, tuple(prompts[0]), SamplingParams(max_tokens=2, temperature=0.0), salt=salt),
            lambda delta, id=id: usage.update({id: delta.usage.tier_tokens}),  # type: ignore[misc]
        )
        driven.run()
        driven.settle()
        driven.forget_pool()
    assert usage["a"] == usage["b"] == 0
    assert usage["c"] > 0
    driven.engine.close()
