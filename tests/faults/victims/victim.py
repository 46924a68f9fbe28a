"""The seam to what is killed."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Protocol

Tell = Callable[[str], None]
READY = "ready"
"""What `work` tells when a kill may come."""


class Victim(Protocol):
    """Works on files until it is killed.

    Attributes:
        name: for the table.
        lives: rounds that one folder goes through, each with what the rounds before have left.
        longest: seconds after `READY` within which the kill comes.
    """

    name: str
    lives: int
    longest: float

    def prepare(self, folder: Path, seed: int) -> None:
        """Make an empty folder what the first round begins with."""

    def work(self, folder: Path, seed: int, tell: Tell) -> None:
        """Work in a process of its own; tell `READY`, and then what is done for good, as soon as it is."""

    def check(self, folder: Path, told: Sequence[str]) -> None:
        """Look at the folder.

        Args:
            told: what every round on this folder has told, in order.

        Raises:
            AssertionError: something that was told is lost, or something is torn.
        """
