"""Copy-on-write of blocks that several requests share after a fork."""

from collections.abc import Sequence

from kvproxy.blocks.block_pool import BlockPool
from kvproxy.blocks.cache_request import CacheRequest
from kvproxy.blocks.single_type_manager import SingleTypeKVCacheManager

SharedBlocks = list[tuple[SingleTypeKVCacheManager, int]]


class CopyOnWrite:
    def __init__(self, pool: BlockPool) -> None:
        self._pool = pool
        self._sources: dict[int, int] = {}  # destination -> source

    def find_shared_blocks(self, groups: Sequence[SingleTypeKVCacheManager], request: CacheRequest) -> SharedBlocks:
        """Return the shared blocks that the request writes to next."""
        shared: SharedBlocks = []
        for group in groups:
            table = group.tables.get(request.id)
            if not table:
                continue
            first = request.num_computed_tokens // group.block_size
            shared += [(group, index) for index in range(first, len(table)) if table[index].ref_count > 1]
        return shared

    def replace_blocks(self, request: CacheRequest, shared: SharedBlocks) -> None:
        """Replace shared blocks, and schedule the copies of their content."""
        for group, index in shared:
            table = group.tables[request.id]
            old, new = table[index], self._pool.get_new_blocks(1)[0]
            table[index] = new
            if index * group.block_size < request.num_computed_tokens:
                # The content of a pending destination is still in its source.
                self._sources[new.id] = self._sources.get(old.id, old.id)
            self._pool.free_blocks([old])

    def take_copies(self) -> list[tuple[int, int]]:
        sources, self._sources = self._sources, {}
        return [(source, destination) for destination, source in sources.items()]
