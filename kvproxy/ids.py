"""Random ids, of 32 hexadecimal digits each."""

import os

_AT_ONCE = 64


class Ids:
    """Creates random ids. Thread-safe.

    They are read from the system many at a time: each read gives other threads the interpreter, and is long under load.
    """

    def __init__(self) -> None:
        self._left: list[str] = []

    def new(self) -> str:
        """A unique id."""
        try:
            return self._left.pop()
        except IndexError:
            digits = os.urandom(16 * _AT_ONCE).hex()
            first, *left = [digits[at : at + 32] for at in range(0, len(digits), 32)]
            self._left.extend(left)
            return first
