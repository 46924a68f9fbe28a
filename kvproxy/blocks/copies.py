"""Blocks that requests share after a fork: the first to write to one gets a copy of its own."""

from collections.abc import Sequence

from kvproxy.blocks.groups import BlockGroup
from kvproxy.blocks.pool import BlockPool
from kvproxy.blocks.request import CacheRequest

SharedTail = list[tuple[BlockGroup, int]]
"""Places in a request's tables, by group, whose blocks others hold too."""


class CopyOnWrite:
    """Copies between blocks of a pool that are still to be carried out."""

    def __init__(self, pool: BlockPool) -> None:
        self._pool = pool
        self._sources: dict[int, int] = {}  # destination -> source

    def shared_tail(self, groups: Sequence[BlockGroup], request: CacheRequest) -> SharedTail:
        """The places that the request writes to next and whose blocks others hold too."""
        shared: SharedTail = []
        for group in groups:
            table = group.tables.get(request.id)
            if not table:
                continue
            first = request.num_computed_tokens // group.block_size
            shared += [(group, index) for index in range(first, len(table)) if table[index].ref_count > 1]
        return shared

    def write(self, request: CacheRequest, shared: SharedTail) -> None:
        """Put new blocks in these places, and note what must be copied into them."""
        for group, index in shared:
            table = group.tables[request.id]
            old, new = table[index], self._pool.allocate(1)[0]
            table[index] = new
            if index * group.block_size < request.num_computed_tokens:
                # A block that is itself yet to be copied holds nothing: its own source does.
                self._sources[new.id] = self._sources.get(old.id, old.id)
            self._pool.release([old])

    def take(self) -> list[tuple[int, int]]:
        """Pending copies as (source, destination) block ids, which are pending no more."""
        sources, self._sources = self._sources, {}
        return [(source, destination) for destination, source in sources.items()]
