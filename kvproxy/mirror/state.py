"""All pools of one event stream: one for each data-parallel rank, medium and attention group."""

from typing import NamedTuple

from kvproxy.mirror.pool import MirroredPool
from kvproxy.mirror.wire import GPU, Batch, Removed, Stored

_NO_PREFIX = ("cross_attention", "encoder_only_attention")
"""Kinds of groups that hold nothing of a prompt."""


class PoolKey(NamedTuple):
    """Which pool an event speaks of: the data-parallel rank, the medium, and the attention group."""

    rank: int | None
    medium: str
    group: int | None


class MirrorState:
    """What a publisher's events add up to. Knows nothing of sequence numbers, see `sequencer`.

    Attributes:
        pools: by rank, medium and group.
        unknown: copies said to be removed that were never seen; above 0 only where events were lost.
    """

    def __init__(self) -> None:
        self.pools: dict[PoolKey, MirroredPool] = {}
        self.unknown = 0

    def apply(self, batch: Batch) -> None:
        """Take a batch over."""
        for event in batch.events:
            if isinstance(event, Stored):
                key = PoolKey(batch.rank, event.medium, event.group)
                pool = self.pools.get(key)
                if pool is None:
                    pool = self.pools[key] = MirroredPool()
                pool.store(event)
            elif isinstance(event, Removed):
                self._remove(batch.rank, event)
            else:
                for key, pool in self.pools.items():
                    if key.rank == batch.rank:
                        pool.clear()

    def _remove(self, rank: int | None, event: Removed) -> None:
        pool = self.pools.get(PoolKey(rank, event.medium, event.group))
        pools = [] if pool is None else [pool]
        if pool is None and event.group is None:
            # Some publishers leave the group out when they remove.
            pools = [other for key, other in self.pools.items() if (key.rank, key.medium) == (rank, event.medium)]
        for digest in event.hashes:
            if not any(pool.remove(digest) for pool in pools):
                self.unknown += 1

    def ranks(self) -> dict[int | None, list[MirroredPool]]:
        """The pools that decide how long a prefix is: for each rank those on the GPU, one for each attention group."""
        found: dict[int | None, list[MirroredPool]] = {}
        for key, pool in sorted(self.pools.items(), key=lambda item: item[0].group or 0):
            if key.medium == GPU and pool.block_size and pool.kind not in _NO_PREFIX:
                found.setdefault(key.rank, []).append(pool)
        return found

    def clear(self) -> None:
        """Forget every block, and keep the figures."""
        for pool in self.pools.values():
            pool.clear()

    def reset(self) -> None:
        """Forget everything: the publisher is another one now, or too much was lost."""
        self.pools.clear()
        self.unknown = 0
