"""The pairs of the demo model: no question contradicts or gives away another, and the model is small."""

from pathlib import Path

from kvproxy.demo import model_path
from training.demo.corpus import Pair, is_off_topic, load_pairs, render

PAIRS = load_pairs()


def test_a_wording_belongs_to_one_answer() -> None:
    answers: dict[str, set[str]] = {}
    for pair in PAIRS:
        for wording in (*pair.wordings, *pair.held_out):
            answers.setdefault(wording.lower(), set()).add(pair.answer)
    assert {wording for wording, given in answers.items() if len(given) > 1} == set()


def test_held_out_wordings_are_not_trained_on() -> None:
    trained = {_plain(wording) for pair in PAIRS for wording in pair.wordings}
    assert {wording for pair in PAIRS for wording in pair.held_out if _plain(wording) in trained} == set()


def test_off_topic_questions_have_one_answer_that_says_so() -> None:
    off_topic = [pair for pair in PAIRS if is_off_topic(pair)]
    assert len(off_topic) == 1
    assert len(off_topic[0].wordings) >= 40
    assert "demonstration model" in off_topic[0].answer


def test_a_file_of_pairs_is_read_by_its_marks(tmp_path: Path) -> None:
    (tmp_path / "one.txt").write_text("# Chapter\n\n= Yes.\nIs it?\n? Would it be?\n\n= No.\nIs it not?\n")
    assert load_pairs(tmp_path) == [
        Pair("Chapter", "Yes.", ["Is it?"], ["Would it be?"]),
        Pair("Chapter", "No.", ["Is it not?"], []),
    ]


def _plain(wording: str) -> str:
    return " ".join(
        "".join(character for character in wording.lower() if character.isalnum() or character == " ").split()
    )


ROOT = Path(__file__).resolve().parents[2]


def test_pairs_are_many_and_varied() -> None:
    pairs = [pair for pair in load_pairs() if not is_off_topic(pair)]
    assert len(pairs) >= 120
    for pair in pairs:
        assert len(set(pair.wordings)) >= 8, pair.answer
        assert len(pair.held_out) == 1, pair.answer


def test_the_handbook_is_what_the_model_learns() -> None:
    assert (ROOT / "training/demo/handbook.md").read_text() == render(load_pairs()), (
        "run python -m training.demo.corpus"
    )


def test_the_model_is_small() -> None:
    assert sum(path.stat().st_size for path in model_path().iterdir()) <= 12 * 2**20
