"""The protocol of eviction policies, for the pool and for the simulator."""

from collections.abc import Hashable
from dataclasses import dataclass
from typing import Protocol, TypeVar

Key = TypeVar("Key", bound=Hashable)


@dataclass(frozen=True, slots=True)
class Use:
    """A use of the cache by a request.

    Attributes:
        seconds: time of the request.
        client: name of the client; None if unknown.
        awaits_user: the response ends the turn of an agent, so a person sends the next request.
    """

    seconds: float
    client: str | None = None
    awaits_user: bool = False


class EvictionPolicy(Protocol[Key]):
    """Chooses which idle key is evicted next. The keys are block hashes."""

    def add(self, key: Key) -> None: ...

    def remove(self, key: Key) -> None: ...

    def pop(self) -> Key:
        """Remove the next key to evict and return it; raises LookupError if no key is idle."""

    def restore(self, key: Key) -> None:
        """Add a popped key again, because a child of its block is still cached."""
