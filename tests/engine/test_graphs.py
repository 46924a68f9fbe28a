"""Decode steps that are captured once and replayed: padding, fixed inputs, and the steps that run eagerly.

On a CPU nothing is captured, but all else is the same: steps of fixed sizes over inputs in fixed places.
"""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from kvproxy.engine.scheduler.scheduler_output import TokenSpan
from kvproxy.engine.worker.cuda_graphs import Step, capture_sizes, no_capture
from kvproxy.engine.worker.model_runner import ModelRunner
from tests.engine.driven import Driven
from tests.engine.models import random_model, reference


@given(st.integers(1, 600))
def test_sizes_waste_little(most: int) -> None:
    found = capture_sizes(most)
    assert list(found) == sorted(set(found))
    assert found[-1] == most
    for rows in range(1, most + 1):
        size = next(size for size in found if size >= rows)
        assert size < 2 * rows or size - rows < 16
        assert size - rows < (16 if rows <= 128 else 64)


class Recorder:
    def __init__(self) -> None:
        self.captured: list[int] = []
        self.replayed: list[int] = []

    def __call__(self, step: Step) -> Step:
        size = len(step())
        self.captured.append(size)

        def replay() -> torch.Tensor:
            self.replayed.append(size)
            return step()

        return replay


PROMPTS = [
    torch.randint(0, 300, (size,), generator=torch.Generator().manual_seed(size)).tolist()
    for size in (30, 5, 17, 3, 41)
]


@pytest.mark.parametrize(("most", "n", "replays"), [(8, 1, 6), (3, 2, 1)])
def test_replayed_answers_equal_generate(most: int, n: int, replays: int) -> None:
    recorder = Recorder()
    driven = Driven(capture=recorder, max_num_batched_tokens=40, max_num_seqs=most)
    for number, prompt in enumerate(PROMPTS):
        driven.submit(str(number), prompt, 8, n=n)
    driven.run()
    for number, prompt in enumerate(PROMPTS):
        tokens = reference(random_model("llama"), prompt, 8)
        assert [driven.tokens[f"{number}#{index}"] for index in range(n)] == [tokens] * n
    assert recorder.captured == sorted(recorder.captured, reverse=True)
    # With n = 2, more rows may decode than were captured for; such steps run eagerly.
    assert set(recorder.replayed) <= set(capture_sizes(most))
    assert len(recorder.replayed) >= replays


def test_padding_touches_no_block_but_the_first() -> None:
    driven = Driven(capture=no_capture, num_blocks=60)
    pool = driven.engine._runner.pool.data
    pool[:, :, 1:] = 7.0
    driven.answers(PROMPTS[:3], "r", 8)
    used = {block for block in range(60) if not bool((pool[:, :, block] == 7.0).all())}
    most = sum(-(-(len(prompt) + 8) // 4) for prompt in PROMPTS[:3])
    assert 0 in used
    assert len(used) - 1 <= most


def count_eager(monkeypatch: pytest.MonkeyPatch) -> list[list[int]]:
    eager: list[list[int]] = []
    compute = ModelRunner.run_eager

    def counted(runner: ModelRunner, prefills: list[TokenSpan], decodes: list[TokenSpan], counts: list[int]) -> object:
        eager.append([len(span.tokens) for span in [*prefills, *decodes]])
        return compute(runner, prefills, decodes, counts)

    monkeypatch.setattr(ModelRunner, "run_eager", counted)
    return eager


def test_steps_with_guesses_are_replayed(monkeypatch: pytest.MonkeyPatch) -> None:
    eager = count_eager(monkeypatch)
    prompts = [[7, 8, 9] * 10, [4, 5, 6, 1] * 8]
    recorder = Recorder()
    driven = Driven(capture=recorder, max_num_batched_tokens=100, max_num_seqs=4, num_speculative_tokens=5)
    assert driven.answers(prompts, "r", 40) == [reference(random_model("llama"), prompt, 40) for prompt in prompts]
    assert recorder.captured[0] == 4 * 6
    assert eager == [[30, 32]], "only the prompts"
    assert max(recorder.replayed) > 2
    assert len(recorder.replayed) < 39, "guesses came true"


def test_a_short_end_of_a_prompt_joins_the_answers_of_a_replayed_step(monkeypatch: pytest.MonkeyPatch) -> None:
    eager = count_eager(monkeypatch)
    driven = Driven(capture=Recorder(), max_num_batched_tokens=100, max_num_seqs=32)
    driven.answers([PROMPTS[4]], "first", 8)
    eager.clear()
    # 40 of the first 41 tokens are cached; the second prompt is short as a whole, the third is not.
    later = [[*PROMPTS[4], 3, 4, 5], [9, 8, 7], list(range(30))]
    model = random_model("llama")
    answers = [reference(model, prompt, 8) for prompt in later]
    assert driven.answers(later[:2], "short", 8) == answers[:2]
    assert eager == []
    assert driven.answers(later, "all", 8) == answers
    assert len(eager) == 1


def test_prompt_logprobs_of_a_replayed_step_are_those_of_an_eager_one() -> None:
    found = []
    for capture in (None, no_capture):
        driven = Driven(capture=capture, max_num_seqs=16)
        driven.submit("r", range(20, 32), 3, prompt_logprobs=2)
        driven.run()
        found.append([item.logprob for piece in driven.pieces["r"] for item in piece.prompt_logprobs])
    assert len(found[0]) == 11
    assert found[0] == pytest.approx(found[1], abs=1e-5)
