"""What training batches hold."""

import random

from training.demo.conversations import IGNORED, BatchMaker, ConversationSampler, read_unrelated_text
from training.demo.corpus import load_pairs

UNRELATED = read_unrelated_text()


def sampler(seed: int) -> ConversationSampler:
    return ConversationSampler(load_pairs(), UNRELATED, random.Random(seed))


def test_a_seed_repeats_every_choice() -> None:
    one, two, other = sampler(1), sampler(1), sampler(2)
    drawn = [one.turn() for _ in range(50)]
    assert drawn == [two.turn() for _ in range(50)]
    assert drawn != [other.turn() for _ in range(50)]


def test_every_answer_is_drawn() -> None:
    draw = sampler(3)
    assert {pair.answer for pair in load_pairs()} == {draw.turn()[1] for _ in range(600)}


def test_the_loss_falls_on_whole_answers_only() -> None:
    def encode(text: str) -> list[int]:
        return list(text.encode())

    chance = random.Random(5)
    maker = BatchMaker(ConversationSampler(load_pairs(), UNRELATED, chance), encode, chance)
    ids, labels = maker.batch(4, 4000, system_share=0.5)
    assert ids.shape == labels.shape == (4, 4000)
    answers = {f"{pair.answer}<|end|>" for pair in load_pairs()}
    for row, marks in zip(ids.tolist(), labels.tolist(), strict=True):
        assert all(mark in (IGNORED, token) for token, mark in zip(row, marks, strict=True))
        kept = bytes(token if mark != IGNORED else 0 for token, mark in zip(row, marks, strict=True))
        spans = [span.decode() for span in kept.split(b"\0") if span]
        assert spans
        # The last answer may be cut by the row's end.
        assert set(spans[:-1]) <= answers
        assert any(answer.startswith(spans[-1]) for answer in answers)
