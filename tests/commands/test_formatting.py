"""Formatting of times, sizes, untrusted text, and of the statistics of the learned policy."""

import json

from hypothesis import given
from hypothesis import strategies as st

from kvproxy.commands.formatting import escape_controls, json_text, local_time, one_line


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
