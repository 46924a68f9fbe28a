"""The demonstration model knows its handbook, says so when asked about anything else, and is small."""

from pathlib import Path

from kvproxy.demo import model_path
from training.demo.corpus import is_off_topic, load_pairs
from training.demo.handbook import render

ROOT = Path(__file__).resolve().parents[2]


def test_pairs_are_many_and_varied() -> None:
    pairs = [pair for pair in load_pairs() if not is_off_topic(pair)]
    assert len(pairs) >= 120
    for pair in pairs:
        assert len(set(pair.wordings)) >= 8, pair.answer
        assert len(pair.held_out) == 1, pair.answer


def test_the_handbook_is_what_the_model_learns() -> None:
    assert (ROOT / "training/demo/handbook.md").read_text() == render(load_pairs()), (
        "run python -m training.demo.handbook"
    )


def test_the_model_is_small() -> None:
    assert sum(path.stat().st_size for path in model_path().iterdir()) <= 12 * 2**20
