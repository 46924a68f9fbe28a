"""Texts with characters that a reader does not see match exactly or not at all."""

import pytest

from kvproxy.index.guards import GUARDS

PLAIN = "What is the capital of France?"
HIDDEN = ["\U000e0041", "\ufe0f", "\u200b", "\u202e", "\ue000", "\0", "\x1b", "\u0301\u0302\u0303"]


def _vetoed(one: str, other: str) -> bool:
    return any(guard.vetoes(one, other) for guard in GUARDS)


@pytest.mark.parametrize("hidden", HIDDEN, ids=ascii)
def test_hidden_characters_veto_on_both_sides(hidden: str) -> None:
    assert _vetoed(PLAIN + hidden, PLAIN)
    assert _vetoed(PLAIN, PLAIN + hidden)


@pytest.mark.parametrize("text", ["Où est le cafe\u0301?", "one\r\n\ttwo", "हिन्दी में लिखो"])
def test_ordinary_writing_is_not_hidden(text: str) -> None:
    assert not _vetoed(text, text)
