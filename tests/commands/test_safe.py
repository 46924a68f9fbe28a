"""No prompt steers the terminal of who looks at it."""

import json

from hypothesis import given
from hypothesis import strategies as st

from kvproxy.commands.formatting import escape_controls, json_text, one_line

NASTY = "\x1b]0;owned\x07\x9b2J\x7f\x08"


def steers(text: str) -> bool:
    return any(ord(letter) < 0x20 or 0x7F <= ord(letter) < 0xA0 for letter in text.replace("\n", ""))


@given(st.text() | st.text(alphabet=NASTY))
def test_control_characters_are_written_out(text: str) -> None:
    assert not steers(escape_controls(text))
    assert not steers(one_line(text))
    assert "\n" not in one_line(text)
    assert json.loads(json_text({text: [text]})) == {text: [text]}
    assert not steers(json_text({text: [text]}))
