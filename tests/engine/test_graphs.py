"""Decode steps made ready once and replayed: padding, fixed inputs, and what is left to run eagerly.

On a CPU nothing is captured, but all else is the same: steps of fixed sizes over inputs in fixed places.
"""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from kvproxy.engine import attention
from kvproxy.engine.attention.sdpa import SdpaDecode
from kvproxy.engine.batch import StepBatch
from kvproxy.engine.engine import Engine
from kvproxy.engine.graphs import DecodeGraphs, Step, plainly, sizes
from kvproxy.engine.models import LoadedModel, prepare
from kvproxy.engine.pool import KVPool, KVShape
from kvproxy.engine.span import Span
from kvproxy.settings import EngineSettings
from tests.engine.answers import run
from tests.engine.models import LetterTokenizer, random_model, reference

CPU = torch.device("cpu")


@given(st.integers(1, 600))
def test_sizes_waste_little(most: int) -> None:
    found = sizes(most)
    assert list(found) == sorted(set(found))
    assert found[-1] == most
    for rows in range(1, most + 1):
        size = next(size for size in found if size >= rows)
        assert size < 2 * rows or size - rows < 16


def test_sizes_are_the_usual_ones() -> None:
    assert sizes(64) == (1, 2, 4, 8, 16, 32, 48, 64)
    assert sizes(3) == (1, 2, 3)


class Recorder:
    """A capture that notes what was captured and what was replayed."""

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


def inputs_of(most: int = 5, width: int = 6) -> tuple[DecodeGraphs, Recorder]:
    """Graphs of a "model" whose logits are its inputs: token, position, slot, length and the table."""
    pool = KVPool(KVShape(1, 1, 4), 20, 4, torch.float32, CPU)
    recorder = Recorder()
    seen: dict[str, torch.Tensor] = {}

    class Spy(SdpaDecode):
        def prepare(self, table: torch.Tensor, lengths: torch.Tensor, pool: KVPool):  # type: ignore[no-untyped-def]
            seen.update(table=table, lengths=lengths)
            return super().prepare(table, lengths, pool)

    def forward(step: StepBatch) -> torch.Tensor:
        columns = [step.tokens[0], step.positions[0], step.slots, seen["lengths"], *seen["table"].T]
        return torch.stack([column.long() for column in columns], dim=1)

    return DecodeGraphs(forward, pool, Spy(), most=most, width=width, capture=recorder), recorder


def test_inputs_reach_the_step_and_padding_points_at_block_0() -> None:
    graphs, recorder = inputs_of()
    assert recorder.captured == [5, 4, 2, 1]
    long = Span([7], 13, [3, 9, 4, 8])
    short = Span([5], 2, [6])
    assert graphs([long, short, short]).tolist() == [
        [7, 13, 8 * 4 + 1, 14, 3, 9, 4, 8, 0, 0],
        [5, 2, 6 * 4 + 2, 3, 6, 0, 0, 0, 0, 0],
        [5, 2, 6 * 4 + 2, 3, 6, 0, 0, 0, 0, 0],
    ]
    assert recorder.replayed == [4]
    padding = graphs._steps[4]()[3]
    assert padding.tolist()[:5] == [0, 0, 0, 1, 0]
    # What a longer step left in the tables lies past the end of the next.
    assert graphs([short]).tolist()[0][:5] == [5, 2, 26, 3, 6]
    assert recorder.replayed[-1] == 1
    assert not graphs.fits([short] * 6)
    assert not graphs.fits([])


def load() -> tuple[LoadedModel, list[list[int]], list[list[int]]]:
    model = random_model("llama")
    generator = torch.Generator().manual_seed(3)
    prompts = [torch.randint(0, 300, (size,), generator=generator).tolist() for size in (30, 5, 17, 3, 41)]
    expected = [reference(model, prompt, 8) for prompt in prompts]
    attention.register()
    return prepare("llama", model, LetterTokenizer(), CPU), prompts, expected


@pytest.mark.parametrize(("most", "n", "replays"), [(8, 1, 6), (3, 2, 1)])
def test_replayed_answers_equal_generate(most: int, n: int, replays: int) -> None:
    loaded, prompts, expected = load()
    recorder = Recorder()
    settings = EngineSettings(num_blocks=100, block_size=4, max_batch_tokens=40, max_sequences=most)
    engine = Engine(loaded, settings, capture=recorder)
    answers = run(engine, prompts, n)
    assert answers == [tokens for tokens in expected for _ in range(n)]
    assert recorder.captured == sorted(recorder.captured, reverse=True)
    # With n = 2, more rows may decode than were captured for; such steps run eagerly.
    assert set(recorder.replayed) <= set(sizes(most))
    assert len(recorder.replayed) >= replays


def test_padding_touches_no_block_but_the_first() -> None:
    loaded, prompts, _ = load()
    engine = Engine(loaded, EngineSettings(num_blocks=60, block_size=4, max_sequences=8), capture=plainly)
    pool = engine._runner.pool.data
    pool[:, :, 1:] = 7.0
    run(engine, prompts[:3])
    used = {block for block in range(60) if not bool((pool[:, :, block] == 7.0).all())}
    most = sum(-(-(len(prompt) + 8) // 4) for prompt in prompts[:3])
    assert 0 in used
    assert len(used) - 1 <= most
