"""Strict mode: log-probabilities are bitwise equal to those of a fresh engine with a single request, whatever is cached."""

import random
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers

from kvproxy.blocks.cache_request import CacheRequest
from kvproxy.blocks.pool_rows import match_prefix
from kvproxy.engine.models.linear_layers import pack_linear_layers
from kvproxy.engine.models.loader import LoadedModel
from kvproxy.engine.worker.cuda_graphs import Step
from tests.engine.driven import Driven
from tests.engine.models import VOCABULARY, load, tiny

chance = random.Random(8)


@cache
def wide() -> LoadedModel:
    torch.manual_seed(0)
    shape = {"hidden_size": 256, "intermediate_size": 700, "num_hidden_layers": 3, "max_position_embeddings": 512}
    heads = {"num_attention_heads": 8, "num_key_value_heads": 4}
    model = transformers.LlamaForCausalLM(
        transformers.LlamaConfig(vocab_size=VOCABULARY, eos_token_id=None, bos_token_id=None, **shape, **heads)  # type: ignore[arg-type]
    )
    model.generation_config.eos_token_id = None
    pack_linear_layers(model.float().eval())
    return load(model)


def tokens(count: int) -> list[int]:
    return [chance.randrange(VOCABULARY) for _ in range(count)]


def engine(tiers: dict[str, Any] | None = None, loaded: LoadedModel | None = None, **settings: Any) -> Driven:
    return Driven(loaded or wide(), tiers, **({"batch_invariant": True, "num_blocks": 300} | settings))


def scores(driven: Driven, prompts: list[list[int]], count: int = 8) -> list[list[float]]:
    ids = [f"{len(driven.pieces) + number}" for number in range(len(prompts))]
    for id, prompt in zip(ids, prompts, strict=True):
        driven.submit(id, prompt, count, logprobs=0)
    driven.run()
    return [driven.logprobs(id) for id in ids]


def alone(prompt: list[int], count: int = 8, loaded: LoadedModel | None = None) -> list[float]:
    return scores(engine(loaded=loaded), [prompt], count)[0]


def test_a_hit_in_company_is_bit_exact() -> None:
    driven = engine(num_speculative_tokens=4)
    shared = tokens(70)
    prompts = [shared[:length] + tokens(9) for length in (40, 64, 70)] + [tokens(7) * 8]
    expected = [alone(prompt, 12) for prompt in prompts]
    for _ in ("cold", "warm"):
        assert scores(driven, prompts, 12) == expected
    assert driven.engine.manager.stats().hits > 0


def test_a_hit_that_is_cut_to_whole_pieces_is_bit_exact_with_windows() -> None:
    windowed = tiny("gemma3")
    driven = engine(loaded=windowed)
    first = tokens(100)
    scores(driven, [first])
    second = first[:50] + tokens(20)
    # The engine reuses the tokens that `explain` predicts.
    assert match_prefix(driven.engine.manager, CacheRequest("explained", second)).matched_tokens == 32
    found = scores(driven, [second])
    assert driven.engine.manager.stats().hits == 32
    assert found == [alone(second, loaded=windowed)]


def test_steps_that_are_replayed_do_not_overwrite_each_others_logits() -> None:
    def capture(step: Step) -> Step:
        kept = step()
        return lambda: kept.copy_(step())

    def replayed(prompts: list[list[int]]) -> list[list[float]]:
        return scores(Driven(wide(), capture=capture, batch_invariant=True), prompts, 6)

    prompts = [tokens(20) for _ in range(3)]
    assert replayed(prompts) == [replayed([prompt])[0] for prompt in prompts]


def test_an_answer_is_no_ones_prefix_for_it_was_computed_in_other_pieces() -> None:
    driven = engine()
    prompt = tokens(50)
    longer = prompt + driven.answers([prompt], "first", 60)[0] + tokens(3)
    found = scores(driven, [longer])
    assert driven.engine.manager.stats().hits == 32
    assert found == [alone(longer)]


def test_a_preempted_answer_is_bit_exact() -> None:
    driven = engine(num_blocks=40, max_num_seqs=4)
    prompts = [tokens(30) for _ in range(3)]
    for number, prompt in enumerate(prompts):
        driven.submit(str(number), prompt, 28, logprobs=0)
    preempted = 0
    while driven.engine.has_work:
        before = len(driven.engine._scheduler.running)
        driven.step()
        preempted += len(driven.engine._scheduler.waiting) > 0 and before > len(driven.engine._scheduler.running)
    assert preempted > 0
    assert [driven.logprobs(str(number)) for number in range(3)] == [alone(prompt, 28) for prompt in prompts]


@pytest.mark.parametrize("ordinary", [False, True])
def test_what_a_tier_gives_back_is_bit_exact(tmp_path: Path, ordinary: bool) -> None:
    shared = tokens(64)
    first = engine({"disk": tmp_path}, batch_invariant=not ordinary)
    for prompt in (shared[:50], shared + tokens(30)):
        scores(first, [prompt])
        first.settle()
        first.forget_pool()
    first.engine.close()
    second = engine({"disk": tmp_path})
    prompt = shared + tokens(40)
    assert scores(second, [prompt]) == [alone(prompt)]
    assert second.hits()["disk"] == (0 if ordinary else 4)
    second.engine.close()
