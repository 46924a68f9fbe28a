"""Remembers which request bodies were answered, so that an overloaded proxy can refuse others unread."""

from array import array

MAX_ANSWERED = 65_536
"""Remembered bodies. A newer body replaces one in its place."""


class AnsweredBodies:
    """Hashes of bodies. It may contain a body that was not added, with a probability of 2^-48 for each added one."""

    def __init__(self) -> None:
        self._hashes = array("q", bytes(8 * MAX_ANSWERED))

    def add(self, body: bytes) -> None:
        number = hash(body)
        self._hashes[number % MAX_ANSWERED] = number

    def __contains__(self, body: bytes) -> bool:
        number = hash(body)
        return self._hashes[number % MAX_ANSWERED] == number
