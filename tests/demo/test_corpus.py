"""How pairs are read, and that no question contradicts or gives away another."""

from pathlib import Path

from training.demo.corpus import Pair, is_off_topic, load_pairs

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
