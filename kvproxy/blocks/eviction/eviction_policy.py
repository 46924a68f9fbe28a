"""The protocol of eviction policies, for the pool and for the simulator."""

from collections.abc import Hashable
from dataclasses import dataclass
from typing import Protocol, TypeVar

Key = TypeVar("Key", bound=Hashable)


@dataclass(frozen=True, slots=True)
class CacheUse:
    """A request that uses cached blocks.

    `awaits_user`: its response calls no tool, so the client's next request waits for a person.
    """

    seconds: float
    client: str | None = None
    awaits_user: bool = False


class EvictionPolicy(Protocol[Key]):
    """Orders the hashes of idle blocks for eviction. The caller removes a block that a request uses."""

    def add(self, key: Key) -> None: ...

    def remove(self, key: Key) -> None: ...

    def pop(self) -> Key:
        """Remove and return the next key to evict; raises LookupError if there is none."""

    def restore(self, key: Key) -> None:
        """Add a popped key again as the youngest, because a later block of its chain is still cached."""
