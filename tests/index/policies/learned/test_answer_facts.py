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
