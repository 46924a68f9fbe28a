"""Greedy output equals `model.generate` token for token: cold, with hits, in tiny pools, among cancellations."""

import random
from collections.abc import Callable

import pytest
import torch

from kvproxy.blocks.manager import KVCacheManager
from kvproxy.blocks.single_type_manager import CachedWindows
from kvproxy.engine import attention
from kvproxy.engine.core import EngineCore
from kvproxy.engine.kernels.packed_linear import pack_linears
from kvproxy.engine.models.loader import LoadedModel, prepare_model
from kvproxy.generation import Delta, GenerationRequest, SamplingParams
from kvproxy.settings import EngineSettings
from tests.engine.models import ARCHITECTURES, HYBRIDS, VOCABULARY, LetterTokenizer, random_model, reference
from tests.reference.integrity import check_integrity

ANSWER = 12


def load(architecture: str) -> tuple[LoadedModel, list[list[int]], list[list[int]]]:
    model = random_model(architecture)
    chance = random.Random(architecture)
    shared = [chance.randrange(VOCABULARY) for _ in range(60)]
    prompts = [
        shared[: chance.randrange(10, 60)] + [chance.randrange(VOCABULARY) for _ in range(chance.randrange(1, 30))]
        for _ in range(8)
    ]
    expected = [reference(model, prompt, ANSWER) for prompt in prompts]
    attention.register()
    pack_linears(model)
    return prepare_model(architecture, model, LetterTokenizer(), torch.device("cpu")), prompts, expected


def collect(answers: dict[str, list[int]], id: str) -> Callable[[Delta], None]:
    return lambda delta: answers.setdefault(f"{id}#{delta.index}", []).extend(delta.tokens)


def submit(engine: EngineCore, id: str, prompt: list[int], answers: dict[str, list[int]], **sampling: int) -> None:
    params = SamplingParams(**({"max_tokens": ANSWER, "temperature": 0.0} | sampling))  # type: ignore[arg-type]
    engine.add_request(GenerationRequest(id, tuple(prompt), params), collect(answers, id))


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_tokens_equal_generate(architecture: str) -> None:
    loaded, prompts, expected = load(architecture)
    for blocks in (400, 26):
        engine = EngineCore(
            loaded, EngineSettings(num_blocks=blocks, block_size=4, max_num_batched_tokens=32, max_num_seqs=8)
        )
        for round in ("cold", "warm"):
            answers: dict[str, list[int]] = {}
            for number, prompt in enumerate(prompts):
                submit(engine, f"{round}{number}", prompt, answers)
            while engine.has_work:
                engine.step()
                check_integrity(engine.manager)
            assert [answers[f"{round}{number}#0"] for number in range(len(prompts))] == expected
        assert engine.manager.stats().used == 0
        assert engine.manager.stats().hits > 0
        if blocks == 26:
            assert engine.manager.stats().evictions > 30


@pytest.mark.parametrize("architecture", HYBRIDS)
def test_tokens_of_models_with_limited_attention_equal_generate(architecture: str) -> None:
    loaded, prompts, expected = load(architecture)
    assert len({tuple(answer) for answer in expected}) > 3, "answers that do not depend on the prompt prove nothing"
    specs = [group.spec(4) for group in loaded.groups]
    # The longest request just fits the last pool.
    least = 1 + KVCacheManager(1000, groups=specs).max_blocks_in_use(92 + ANSWER, 32)
    pools: list[tuple[int, CachedWindows]] = [(20 * least, "last"), (least, "all"), (least, "last")]
    for blocks, kept in pools:
        sizes = EngineSettings(
            num_blocks=blocks, block_size=4, max_num_batched_tokens=32, max_num_seqs=8, num_speculative_tokens=2
        )
        engine = EngineCore(loaded, sizes.model_copy(update={"cached_windows": kept}))
        for round in ("cold", "warm"):
            answers: dict[str, list[int]] = {}
            for number, prompt in enumerate(prompts):
                submit(engine, f"{round}{number}", prompt, answers)
                submit(engine, f"{round}{number} leaves", prompt, {})
            steps = 0
            while engine.has_work:
                if steps < len(prompts):
                    engine.abort(f"{round}{steps} leaves")
                steps += 1
                engine.step()
                check_integrity(engine.manager)
            assert [answers[f"{round}{number}#0"] for number in range(len(prompts))] == expected
        assert engine.manager.stats().used == 0
        assert engine.manager.stats().hits > 0
        if blocks == least:
            assert engine.manager.stats().evictions > (30 if kept == "all" else 10)


def test_cancellations_leave_the_others_exact() -> None:
    loaded, prompts, expected = load("llama")
    chance = random.Random(5)
    engine = EngineCore(loaded, EngineSettings(num_blocks=60, block_size=4, max_num_batched_tokens=24, max_num_seqs=6))
    answers: dict[str, list[int]] = {}
    doomed = set()
    for turn in range(4):
        for number, prompt in enumerate(prompts):
            submit(engine, f"{turn}.{number}", prompt, answers)
            if chance.random() < 0.4:
                doomed.add(f"{turn}.{number}")
    remaining = list(doomed)
    while engine.has_work:
        if remaining and chance.random() < 0.5:
            engine.abort(remaining.pop())
        engine.step()
        check_integrity(engine.manager)
    for turn in range(4):
        for number, tokens in enumerate(expected):
            if f"{turn}.{number}" not in doomed:
                assert answers[f"{turn}.{number}#0"] == tokens
    assert engine.manager.stats().used == 0


def test_several_answers_share_the_prompt_and_each_is_exact() -> None:
    loaded, prompts, expected = load("llama")
    engine = EngineCore(loaded, EngineSettings(num_blocks=200, block_size=4, max_num_batched_tokens=64))
    answers: dict[str, list[int]] = {}
    submit(engine, "r", prompts[0], answers, n=3)
    most = 0
    while engine.has_work:
        engine.step()
        check_integrity(engine.manager)
        most = max(most, engine.manager.stats().used)
    assert [answers[f"r#{index}"] for index in range(3)] == [expected[0]] * 3
    whole = -(-(len(prompts[0]) + ANSWER) // 4)
    own = -(-ANSWER // 4) + 1
    assert most <= whole + 2 * own


def test_sampling_with_a_seed_does_not_depend_on_the_batch() -> None:
    loaded, prompts, _ = load("llama")

    def draw(others: int) -> list[int]:
        engine = EngineCore(loaded, EngineSettings(num_blocks=400, block_size=4, max_num_batched_tokens=256))
        answers: dict[str, list[int]] = {}
        engine.add_request(
            GenerationRequest("s", tuple(prompts[0]), SamplingParams(max_tokens=8, temperature=1.0, seed=3, top_k=5)),
            collect(answers, "s"),
        )
        for number in range(others):
            submit(engine, f"o{number}", prompts[number + 1], answers)
        while engine.has_work:
            engine.step()
        return answers["s#0"]

    assert draw(0) == draw(5)
