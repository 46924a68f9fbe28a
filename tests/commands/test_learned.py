"""What was learned is told in sentences that agree with their numbers."""

import re

import pytest

from kvproxy.commands.explain import learned_lines
from kvproxy.commands.learned_policy import BOUND_VALID_FROM, policy_sentences
from kvproxy.index.policies.learned.error_bound import FROM


@pytest.mark.parametrize(
    ("figures", "told"),
    [
        (
            {"observations": 1, "served": 1, "would_serve": 0.0, "bound": 0.002},
            "1 stored response was compared with a fresh one. The learned policy would answer 0.0% of the similar questions."
            " 1 similar question was answered from the cache. At most 1 of the first 500 responses will be wrong.",
        ),
        (
            {"observations": 0, "served": 0, "would_serve": 0.0, "bound": 0.0},
            "0 stored responses were compared with fresh ones. The learned policy would answer 0.0% of the similar questions."
            " No similar question was answered from the cache yet.",
        ),
        (
            {"observations": 2345.0, "served": 1234.0, "would_serve": 0.5, "bound": 0.0123},
            "2,345 stored responses were compared with fresh ones."
            " The learned policy would answer 50.0% of the similar questions."
            " 1,234 similar questions were answered from the cache. At most 1.2% of these responses are wrong.",
        ),
    ],
)
def test_one_thought_a_sentence_in_singular_and_plural(figures: dict[str, float], told: str) -> None:
    assert " ".join(policy_sentences(figures)) == told


def test_the_promise_begins_where_the_guarantee_does() -> None:
    assert BOUND_VALID_FROM == FROM


@pytest.mark.parametrize("serves", [True, False])
def test_explain_tells_who_decides_and_aligns_the_lines(serves: bool) -> None:
    lines = learned_lines({"observations": 7, "served": 3, "would_serve": 0.1, "bound": 0.002, "serves": serves})
    assert lines[0].startswith("learned    7 ")
    assert ("checked decides" in lines[1]) is not serves
    assert all(re.match(r"(learned|       )    \S", line) for line in lines)
