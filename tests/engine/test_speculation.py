"""Guesses never change an answer: greedy tokens, seeded draws, and the distribution of unseeded ones."""

import random
from collections import Counter

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from kvproxy.engine.scheduler.scheduler_output import SchedulerOutput
from kvproxy.engine.scheduler.sequence import NgramProposer
from kvproxy.engine.worker.model_runner import ModelRunner
from tests.engine.driven import Driven
from tests.engine.models import VOCABULARY, random_model, reference


@given(st.lists(st.integers(0, 2), max_size=40), st.integers(1, 4), st.integers(1, 5))
def test_guesses_are_what_followed_the_latest_equal_run(tokens: list[int], size: int, count: int) -> None:
    lookup = NgramProposer(size)
    for length in range(len(tokens) + 1):
        text = tokens[:length]
        expected: list[int] = []
        for start in range(length - size):
            if text[start : start + size] == text[length - size :]:
                expected = text[start + size : start + size + count]
        assert lookup.propose(text, count) == expected


def repetitive(seed: int) -> list[int]:
    chance = random.Random(seed)
    motif = [chance.randrange(VOCABULARY) for _ in range(chance.randrange(3, 9))]
    return (motif * 12)[: chance.randrange(30, 70)]


def count_guesses(monkeypatch: pytest.MonkeyPatch) -> Counter[str]:
    seen: Counter[str] = Counter()
    forward = ModelRunner.execute_model

    def counted(runner: ModelRunner, plan: SchedulerOutput) -> object:
        seen["steps"] += 1
        seen["guesses"] += sum(span.num_draft_tokens for _, span in plan.prefills)
        return forward(runner, plan)

    monkeypatch.setattr(ModelRunner, "execute_model", counted)
    return seen


def test_greedy_tokens_equal_generate(monkeypatch: pytest.MonkeyPatch) -> None:
    seen = count_guesses(monkeypatch)
    prompts = [repetitive(seed) for seed in range(3)]
    expected = [reference(random_model("llama"), prompt, 40) for prompt in prompts]
    driven = Driven(tiers={"host": "64MiB"}, num_speculative_tokens=5, num_blocks=50)
    for round in ("cold", "warm"):
        assert driven.answers(prompts, round, 40) == expected
    assert driven.engine.manager.stats().used == 0
    driven.engine.close()
    assert seen["guesses"] > 0


def test_guesses_save_steps_where_text_repeats(monkeypatch: pytest.MonkeyPatch) -> None:
    steps = []
    for num_speculative_tokens in (0, 6):
        with monkeypatch.context() as patch:
            seen = count_guesses(patch)
            driven = Driven(num_speculative_tokens=num_speculative_tokens)
            # A random model's greedy answer ends in a cycle, which is text that repeats.
            driven.submit("a", repetitive(1), 120)
            driven.run()
            steps.append(seen["steps"])
    assert steps[1] < 0.6 * steps[0]


def test_seeded_draws_are_the_same_with_and_without_guesses(monkeypatch: pytest.MonkeyPatch) -> None:
    def draw(num_speculative_tokens: int) -> dict[str, list[int]]:
        driven = Driven(num_speculative_tokens=num_speculative_tokens)
        for seed in range(4):
            driven.submit(str(seed), repetitive(seed), 60, temperature=0.3, seed=seed, top_k=4, n=2)
        driven.run()
        return driven.tokens

    seen = count_guesses(monkeypatch)
    with_guesses = draw(4)
    assert seen["guesses"] > 0
    assert with_guesses == draw(0)


def test_an_end_among_accepted_guesses_ends_the_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    def answer(num_speculative_tokens: int, **sampling: object) -> list[int]:
        driven = Driven(num_speculative_tokens=num_speculative_tokens)
        monkeypatch.setattr(driven.engine.tokenizer, "eos_ids", frozenset(ends))
        driven.submit("a", prompt, 60, **sampling)
        driven.run()
        assert driven.engine.manager.stats().used == 0
        return driven.tokens["a#0"]

    prompt, ends = repetitive(0), set()
    # The answer continues the cycle in which the prompt ends, so guesses contain its end.
    prompt += answer(0)
    whole = answer(0)
    for at in (2, 3, 4):
        ends = {whole[at]}
        assert answer(6) == answer(0) == whole[: at + 1]
    ends = set()
    stop = "".join(chr(ord("a") + token % 26) for token in whole[2:5])
    assert answer(6, stop=(stop,)) == answer(0, stop=(stop,)) == whole[:5]


def test_prompt_logprobs_are_the_models_own_whatever_is_cached() -> None:
    model = random_model("llama")
    prompt = repetitive(4)
    with torch.inference_mode():
        logits = model(torch.tensor([prompt])).logits[0].log_softmax(-1)
    expected = [float(logits[at, token]) for at, token in enumerate(prompt[1:])]
    driven = Driven(tiers={"host": "64MiB"}, max_num_batched_tokens=16)
    driven.submit("fills the cache", prompt, 4)
    driven.run()
    for id in ("cold", "warm"):
        driven.submit(id, prompt, 3, prompt_logprobs=2, n=2)
        driven.run()
        (reported,) = (piece.prompt_logprobs for piece in driven.pieces[id] if piece.prompt_logprobs)
        assert [item.logprob for item in reported] == pytest.approx(expected, abs=1e-4)
        assert [item.token for item in reported] == prompt[1:]
        assert all(len(item.top) == 2 for item in reported)
        assert driven.pieces[id][0].usage.cached_tokens == 0
    driven.engine.close()
