"""The protocol of eviction policies, for the pool and for the simulator."""

from collections.abc import Hashable
from typing import Protocol, TypeVar

Key = TypeVar("Key", bound=Hashable)


class EvictionPolicy(Protocol[Key]):
    """Idle keys in eviction order."""

    def add(self, key: Key) -> None: ...

    def remove(self, key: Key) -> None: ...

    def pop(self) -> Key:
        """Evict a key; raises LookupError if no key is idle."""

    def restore(self, key: Key) -> None:
        """Add a popped key again, because a child of it is still cached."""
