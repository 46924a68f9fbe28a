"""All pools of one event stream: one for each data-parallel rank, medium, and KV cache group."""

from typing import NamedTuple

from kvproxy.mirror.event_decoder import GPU, EntryRemoved, EntryStored, EventBatch
from kvproxy.mirror.pool import MirroredPool

_KINDS_WITHOUT_PREFIX = ("cross_attention", "encoder_only_attention")


class PoolKey(NamedTuple):
    """Data-parallel rank, medium, and KV cache group of a pool."""

    rank: int | None
    medium: str
    group: int | None


class MirrorState:
    """The state after a publisher's events. Removals of `unknown` blocks indicate lost events."""

    def __init__(self) -> None:
        self.pools: dict[PoolKey, MirroredPool] = {}
        self.unknown = 0

    def apply(self, batch: EventBatch) -> None:
        """Apply a batch of events."""
        for event in batch.events:
            if isinstance(event, EntryStored):
                key = PoolKey(batch.rank, event.medium, event.group)
                pool = self.pools.get(key)
                if pool is None:
                    pool = self.pools[key] = MirroredPool()
                pool.store(event)
            elif isinstance(event, EntryRemoved):
                self._remove(batch.rank, event)
            else:
                for key, pool in self.pools.items():
                    if key.rank == batch.rank:
                        pool.clear()

    def _remove(self, rank: int | None, event: EntryRemoved) -> None:
        pool = self.pools.get(PoolKey(rank, event.medium, event.group))
        pools = [] if pool is None else [pool]
        if pool is None and event.group is None:
            # Some publishers omit the group in removals.
            pools = [other for key, other in self.pools.items() if (key.rank, key.medium) == (rank, event.medium)]
        for digest in event.hashes:
            if not any(pool.remove(digest) for pool in pools):
                self.unknown += 1

    def ranks(self) -> dict[int | None, list[MirroredPool]]:
        """Return the GPU pools of each rank, one for each KV cache group that caches prefixes."""
        found: dict[int | None, list[MirroredPool]] = {}
        for key, pool in sorted(self.pools.items(), key=lambda item: item[0].group or 0):
            if key.medium == GPU and pool.block_size and pool.kind not in _KINDS_WITHOUT_PREFIX:
                found.setdefault(key.rank, []).append(pool)
        return found

    def clear(self) -> None:
        """Remove all blocks, and keep the statistics."""
        for pool in self.pools.values():
            pool.clear()

    def reset(self) -> None:
        """Remove all pools and statistics, because the publisher restarted or events were lost."""
        self.pools.clear()
        self.unknown = 0
