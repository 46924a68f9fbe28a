from collections.abc import Hashable
from dataclasses import dataclass
from typing import Protocol, TypeVar

Key = TypeVar("Key", bound=Hashable)


@dataclass(frozen=True, slots=True)
class CacheUse:
    """The start or the end of a request that uses cached blocks.

    Attributes:
        seconds: time of any clock.
        client: the client's name; None if unknown.
        awaits_user: the response calls no tool, so the client's next request waits for a person.
    """

    seconds: float
    client: str | None = None
    awaits_user: bool = False


class EvictionPolicy(Protocol[Key]):
    """Orders idle blocks for eviction. Keys are block hashes; `remove` is called when a request uses a block again."""

    def add(self, key: Key) -> None: ...

    def remove(self, key: Key) -> None: ...

    def pop(self) -> Key:
        """Remove and return the next key to evict. Raises LookupError if the policy has no key."""

    def restore(self, key: Key) -> None:
        """Add a popped key as the most recent one, because a later block of its chain must be evicted first."""
