"""Strict mode: log-probabilities are the same bits as in a fresh engine that serves nobody else, whatever was cached."""

import random
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import LlamaConfig, LlamaForCausalLM

from kvproxy.blocks.request import CacheRequest
from kvproxy.blocks.view import match_prefix
from kvproxy.engine import attention
from kvproxy.engine.core import EngineCore
from kvproxy.engine.kernels.packed_linear import pack_linears
from kvproxy.engine.models.loader import LoadedModel, prepare_model
from kvproxy.engine.worker.cuda_graphs import Step
from kvproxy.generation import Delta, GenerationRequest, SamplingParams
from kvproxy.settings import EngineSettings
from tests.engine.models import VOCABULARY, LetterTokenizer, random_model
from tests.engine.tiered import Driven

chance = random.Random(8)


@cache
def wide() -> LoadedModel:
    """Wide enough for the rounding of a matrix product to depend on its rows, which the tiny models are not."""
    torch.manual_seed(0)
    shape = {"hidden_size": 256, "intermediate_size": 700, "num_hidden_layers": 3, "max_position_embeddings": 512}
    heads = {"num_attention_heads": 8, "num_key_value_heads": 4}
    model = LlamaForCausalLM(
        LlamaConfig(vocab_size=VOCABULARY, eos_token_id=None, bos_token_id=None, **shape, **heads)  # type: ignore[arg-type]
    )
    model.generation_config.eos_token_id = None
    attention.register()
    pack_linears(model.float().eval())
    return prepare_model("wide", model, LetterTokenizer(), torch.device("cpu"))


@cache
def windowed() -> LoadedModel:
    """Some of its layers attend to the last 11 tokens only."""
    attention.register()
    return prepare_model("windowed", random_model("gemma3"), LetterTokenizer(), torch.device("cpu"))


def tokens(count: int) -> list[int]:
    return [chance.randrange(VOCABULARY) for _ in range(count)]


def engine(tiers: dict[str, Any] | None = None, loaded: LoadedModel | None = None, **settings: Any) -> Driven:
    return Driven(loaded or wide(), tiers or {}, **({"batch_invariant": True, "num_blocks": 300} | settings))


def ask(driven: Driven, id: str, prompt: list[int], count: int = 8) -> tuple[list[float], list[int]]:
    """Where the log-probabilities and tokens of an answer will be."""
    values: list[float] = []
    answer: list[int] = []

    def take(delta: Delta) -> None:
        values.extend(item.logprob for item in delta.logprobs)
        answer.extend(delta.tokens)

    params = SamplingParams(max_tokens=count, temperature=0.0, logprobs=0)
    driven.engine.add_request(GenerationRequest(id, tuple(prompt), params), take)
    return values, answer


def alone(prompt: list[int], count: int = 8, loaded: LoadedModel | None = None) -> list[float]:
    driven = engine(loaded=loaded)
    values, _ = ask(driven, "alone", prompt, count)
    driven.run()
    return values


def test_a_hit_in_company_is_bit_exact() -> None:
    driven = engine(num_speculative_tokens=4)
    shared = tokens(70)
    prompts = [shared[:length] + tokens(9) for length in (30, 40, 64, 70, 70)] + [tokens(7) * 8]
    expected = [alone(prompt, 20) for prompt in prompts]
    for round in range(2):
        found = [ask(driven, f"{round}.{number}", prompt, 20)[0] for number, prompt in enumerate(prompts)]
        driven.run()
        assert found == expected
    assert driven.engine.manager.stats().hits > 0


def test_a_hit_that_is_cut_to_whole_pieces_is_bit_exact_with_windows() -> None:
    """The longer beginning that is cached has no blocks before its own last window."""
    driven = engine(loaded=windowed())
    first = tokens(100)
    ask(driven, "first", first)
    driven.run()
    second = first[:50] + tokens(20)
    # What explain tells is what is reused.
    assert match_prefix(driven.engine.manager, CacheRequest("explained", second)).matched_tokens == 32
    values, _ = ask(driven, "second", second)
    driven.run()
    assert driven.engine.manager.stats().hits == 32
    assert values == alone(second, loaded=windowed())


def test_steps_that_are_replayed_do_not_overwrite_each_others_logits() -> None:
    """As CUDA graphs do: each size of step has one tensor for its logits."""

    def capture(step: Step) -> Step:
        kept = step()
        return lambda: kept.copy_(step())

    def replayed(prompts: list[list[int]]) -> list[list[float]]:
        driven = engine()
        settings = EngineSettings(
            batch_invariant=True, num_blocks=100, block_size=4, max_num_batched_tokens=32, max_num_seqs=8
        )
        driven.engine = EngineCore(wide(), settings, capture=capture)
        found = [ask(driven, str(number), prompt, 6)[0] for number, prompt in enumerate(prompts)]
        driven.run()
        return found

    prompts = [tokens(20) for _ in range(3)]
    assert replayed(prompts) == [replayed([prompt])[0] for prompt in prompts]


def test_an_answer_is_no_ones_prefix_for_it_was_computed_in_other_pieces() -> None:
    driven = engine()
    prompt = tokens(50)
    _, answer = ask(driven, "first", prompt, 60)
    driven.run()
    longer = prompt + answer + tokens(3)
    values, _ = ask(driven, "next turn", longer)
    driven.run()
    assert driven.engine.manager.stats().hits == 32
    assert values == alone(longer)


def test_a_preempted_answer_is_bit_exact() -> None:
    driven = engine(num_blocks=40, max_num_seqs=4)
    prompts = [tokens(30) for _ in range(4)]
    found = [ask(driven, str(number), prompt, 40)[0] for number, prompt in enumerate(prompts)]
    preempted = 0
    while driven.engine.has_work:
        before = len(driven.engine._scheduler.running)
        driven.step()
        preempted += len(driven.engine._scheduler.waiting) > 0 and before > len(driven.engine._scheduler.running)
    assert preempted > 0
    assert found == [alone(prompt, 40) for prompt in prompts]


@pytest.mark.parametrize("ordinary", [False, True])
def test_what_a_tier_gives_back_is_bit_exact(tmp_path: Path, ordinary: bool) -> None:
    """A chunk of a prompt's last, short piece, or one that was written without strict mode, is not used."""
    shared = tokens(64)
    first = engine({"disk": tmp_path}, batch_invariant=not ordinary)
    for number, prompt in enumerate((shared[:50], shared + tokens(30))):
        ask(first, str(number), prompt)
        first.run()
        first.settle()
        first.forget_pool()
    first.engine.close()
    second = engine({"disk": tmp_path})
    prompt = shared + tokens(40)
    values, _ = ask(second, "back", prompt)
    second.run()
    assert values == alone(prompt)
    assert second.hits()["disk"] == (0 if ordinary else 4)
    second.engine.close()
