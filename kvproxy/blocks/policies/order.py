"""What an order of eviction is, for the pool's blocks and for simulation alike."""

from collections.abc import Hashable
from typing import Protocol, TypeVar

Key = TypeVar("Key", bound=Hashable)


class Order(Protocol[Key]):
    """Keys by how soon they are given up: added when they become idle, removed when hit, popped when room is needed."""

    def add(self, key: Key) -> None:
        """The key is idle now: new, or no longer in use after a hit."""

    def remove(self, key: Key) -> None:
        """The key was hit and is in use."""

    def pop(self) -> Key:
        """Give a key up. Raises LookupError when none is idle."""

    def restore(self, key: Key) -> None:
        """Take a popped key back, which could not be given up yet because a child of it is cached."""
