"""Formatting of times, sizes, untrusted text, and of the statistics of the learned policy."""

import json
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvproxy.commands.explain import learned_policy_lines
from kvproxy.commands.formatting import escape_controls, json_text, local_time, one_line
from kvproxy.commands.statistics_text import policy_sentences


def has_controls(text: str) -> bool:
    return any(ord(letter) < 0x20 or 0x7F <= ord(letter) < 0xA0 for letter in text.replace("\n", ""))


@given(st.text(alphabet="\x1b]0;owned\x07\x9b2J\x7f\x08\n\t\u2028é漢\U0001f600"))
def test_control_characters_are_escaped(text: str) -> None:
    assert not has_controls(escape_controls(text))
    assert not has_controls(one_line(text))
    assert "\n" not in one_line(text)
    assert json.loads(json_text({text: [text]})) == {text: [text]}
    assert not has_controls(json_text({text: [text]}))


def test_an_empty_text_is_shown_as_a_dash() -> None:
    assert one_line("") == one_line(None) == "-"


def test_a_moment_beyond_the_calendar_stays_a_number() -> None:
    assert local_time(1e300) == "1e+300"
    assert local_time(0)[:3] in ("197", "196")


def test_policy_sentences_are_in_singular_or_plural() -> None:
    one = {"observations": 1, "served": 1, "would_serve": 0.0, "expected_wrong": 0.01, "most_wrong": 1}
    many = {"observations": 2345.0, "served": 1234.0, "would_serve": 0.5, "expected_wrong": 2.5, "most_wrong": 14.0}
    assert policy_sentences(one) == [
        "1 stored response that was not served was compared with a fresh one.",
        "The learned policy would answer 0.0% of the similar questions.",
        "1 similar question was answered from the cache.",
        "Wrong: 0.01 expected, at most 1 (90% confidence, not for checked).",
    ]
    assert policy_sentences(many)[2:] == [
        "1,234 similar questions were answered from the cache.",
        "Wrong: 2.50 expected, at most 14 (90% confidence, not for checked).",
    ]


@pytest.mark.parametrize("serves", [True, False])
def test_explain_names_the_deciding_policy_and_aligns_the_lines(serves: bool) -> None:
    status = {"observations": 7, "served": 3, "would_serve": 0.1, "expected_wrong": 0.1, "most_wrong": 1}
    lines = learned_policy_lines({**status, "serves": serves})
    assert lines[0].startswith("learned    In this namespace, 7 ")
    assert ("checked decides" in lines[1]) is not serves
    assert all(re.match(r"(learned|       )    \S", line) for line in lines)
