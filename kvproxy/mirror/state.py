"""All pools of one event stream: one for each data-parallel rank, medium and attention group."""

from dataclasses import dataclass

from kvproxy.mirror.pool import MirroredPool
from kvproxy.mirror.wire import GPU, Batch, Removed, Stored


@dataclass(frozen=True, slots=True)
class Place:
    """Which pool an event speaks of."""

    rank: int | None
    medium: str
    group: int | None


class MirrorState:
    """What a publisher's events add up to. Knows nothing of sequence numbers, see `sequencer`.

    Attributes:
        pools: by place.
        unknown: copies said to be removed that were never seen; above 0 only where events were lost.
    """

    def __init__(self) -> None:
        self.pools: dict[Place, MirroredPool] = {}
        self.unknown = 0
        self.clears = 0

    def apply(self, batch: Batch) -> None:
        """Take a batch over."""
        for event in batch.events:
            if isinstance(event, Stored):
                place = Place(batch.rank, event.medium, event.group)
                pool = self.pools.get(place)
                if pool is None:
                    pool = self.pools[place] = MirroredPool()
                pool.store(event)
            elif isinstance(event, Removed):
                self._remove(batch.rank, event)
            else:
                self.clears += 1
                for place, pool in self.pools.items():
                    if place.rank == batch.rank:
                        pool.clear()

    def _remove(self, rank: int | None, event: Removed) -> None:
        pool = self.pools.get(Place(rank, event.medium, event.group))
        # Some publishers leave the group out when they remove.
        pools = [pool] if pool is not None else self._groups(rank, event.medium)
        for digest in event.hashes:
            if not any(pool.remove(digest) for pool in pools):
                self.unknown += 1

    def _groups(self, rank: int | None, medium: str) -> list[MirroredPool]:
        return [pool for place, pool in self.pools.items() if (place.rank, place.medium) == (rank, medium)]

    def prefix_pools(self) -> dict[int | None, MirroredPool]:
        """For each rank the pool that decides how long a prefix is: on the GPU, of its first full-attention group."""
        found: dict[int | None, MirroredPool] = {}
        order = sorted(self.pools.items(), key=lambda item: item[0].group or 0)
        for place, pool in order:
            if place.medium == GPU and (pool.kind is None or "full" in pool.kind or "mla" in pool.kind):
                found.setdefault(place.rank, pool)
        return found

    def reset(self) -> None:
        """Forget everything: the publisher is another one now, or too much was lost."""
        self.pools.clear()
        self.unknown = 0
