"""Pieces of a text cost time in proportion to its length; in proportion to its square, this test would take hours."""

from kvproxy.apis.sse import pieces


def test_a_million_blanks_are_taken_apart_at_once() -> None:
    text = " " * 1_000_000 + "x" + "\n" * 1_000_000
    assert "".join(pieces(text)) == text
