"""Comparisons of the facts of two answers."""

import pytest

from kvproxy.index.policies.learned.answer_facts import answers_equal


@pytest.mark.parametrize(
    ("one", "other", "equal"),
    [
        ("Yes, it does.", "No, it does not.", False),
        ("No.", "Yes: each plan includes phone support.", False),
        ("Yes, the plan includes phone support.", "Yes! Phone support is included in the plan.", True),
    ],
)
def test_yes_and_no_contradict_each_other(one: str, other: str, equal: bool | None) -> None:
    assert answers_equal(one, other, cosine=0.9) is equal


@pytest.mark.parametrize(
    ("one", "other", "equal"),
    [
        ("The old one.", "The new one.", None),
        ("The cheap one.", "The dear one.", None),
        ("Ask your manager.", "Ask your landlord.", None),
        ("Ask your old manager first.", "Ask your new landlord first.", None),
        ("Anna handles it.", "Ben handles it.", False),
        ("The capital is Paris.", "Paris is the capital.", True),
        ("Yes, it is possible.", "Yes, that is possible.", True),
    ],
)
def test_a_replaced_word_of_a_short_answer_may_be_its_only_fact(one: str, other: str, equal: bool | None) -> None:
    assert answers_equal(one, other, cosine=0.9) is equal
