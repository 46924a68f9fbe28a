"""Block tables of one attention group: which blocks a request holds, how far they are cached, what a lookup may reuse.

A full-attention layer needs every block of its past. Layers with a sliding window or with chunked local attention need
only the recent ones; blocks that fell out of reach are replaced by the null block and released. `lookup` puts groups of
different kinds together.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal

from kvproxy.blocks.block import Block
from kvproxy.blocks.events import BlockStored
from kvproxy.blocks.pool import BlockPool
from kvproxy.blocks.request import CacheRequest

GroupKind = Literal["full", "sliding_window", "chunked_local"]
Kept = Literal["all", "last"]
PUBLISHED: dict[GroupKind, str] = {
    "full": "full_attention",
    "sliding_window": "sliding_window",
    "chunked_local": "chunked_local_attention",
}
"""vLLM's words for the kinds, in its KV events."""


@dataclass(frozen=True, slots=True)
class GroupSpec:
    """What the block cache must know of a group of layers.

    Attributes:
        kind: how far its attention reaches.
        block_size: tokens in a block.
        reach: tokens of the window or of the chunk; unused by full attention.
        kept: of a group with a window, what others may find: every block, or only the last window of each prompt and of
            each beginning that prompts share. Unused by the other kinds.
    """

    kind: GroupKind = "full"
    block_size: int = 16
    reach: int = 0
    kept: Kept = "all"

    def __post_init__(self) -> None:
        if self.block_size < 1:
            raise ValueError(f"a block of {self.block_size} tokens: use 1 or more")
        if self.kind != "full" and self.reach < 1:
            raise ValueError(f"a {self.kind} group needs its reach in tokens")


class BlockGroup:
    """Tables of a full-attention group; the other kinds change what is found and what is skipped.

    Args:
        spec: shape of the group.
        pool: where blocks come from, shared by all groups.
        number: the group's number where there are several, None where it is alone.
        merge: give a block up for an older equal one as soon as it is full, as vLLM's older allocator did; otherwise
            tables only ever grow at their end, as in v1.
        eagle: every hit loses its last block, which EAGLE's draft heads need computed.
    """

    def __init__(
        self,
        spec: GroupSpec,
        pool: BlockPool,
        *,
        number: int | None = None,
        merge: bool = False,
        eagle: bool = False,
    ) -> None:
        self.spec = spec
        self.block_size = spec.block_size
        self.pool = pool
        self.hash_factor = 1
        self.step = spec.block_size
        self.number = number
        self.merge = merge
        self.eagle = eagle
        self.tables: dict[str, list[Block]] = {}
        self.num_cached: dict[str, int] = {}

    def find(self, digest: bytes) -> Block | None:
        """The oldest block of this group cached under a digest."""
        return self.pool.find(digest if self.number is None else (self.number, digest))

    def described(self, event: BlockStored) -> BlockStored:
        """An event of this group with the group's kind and window, which one group with full attention leaves out."""
        if self.number is None and self.spec.kind == "full":
            return event
        window = self.spec.reach if self.spec.kind == "sliding_window" else None
        return replace(event, kind=PUBLISHED[self.spec.kind], window=window)

    def longest_hit(self, hashes: Sequence[bytes], max_blocks: int) -> list[Block]:
        """Cached blocks from the start of the chain to its first miss, `max_blocks` at most."""
        found: list[Block] = []
        if self.number is None:
            cached = self.pool.cached
            for digest in hashes[:max_blocks]:
                block = cached.get(digest)
                if block is None:
                    break
                found.append(block[0] if type(block) is list else block)  # type: ignore[arg-type]
            return found
        for digest in hashes[:max_blocks]:
            hit = self.find(digest)
            if hit is None:
                break
            found.append(hit)
        return found

    def num_needed(self, request_id: str, num_tokens: int, computed: Sequence[Block]) -> int:
        """Free blocks that a table of `num_tokens` takes: new ones, and idle hits that leave the free queue."""
        held = self.tables.get(request_id)
        new = -(-num_tokens // self.block_size) - len(computed) - (len(held) if held else 0)
        return max(new, 0) + [block.ref_count for block in computed].count(0)

    def most_held(self, num_tokens: int, step: int) -> int:
        """Most blocks that a request of `num_tokens` holds at any time, where a step computes at most `step` of them."""
        return -(-num_tokens // self.block_size)

    def adopt(self, request_id: str, computed: Sequence[Block]) -> None:
        """Begin a table with hit blocks, which the pool has touched."""
        self.tables[request_id] = list(computed)
        self.num_cached[request_id] = len(computed)

    def grow(self, request_id: str, num_tokens: int) -> list[Block]:
        """Add new blocks until the table holds `num_tokens`; returns them."""
        table = self.tables.get(request_id)
        if table is None:
            table = self.tables[request_id] = []
            self.num_cached[request_id] = 0
        count = -(-num_tokens // self.block_size) - len(table)
        if count <= 0:
            return []
        new = self.pool.allocate(count)
        table += new
        return new

    def cache(self, request: CacheRequest, num_tokens: int) -> None:
        """Name the blocks that are full once the first `num_tokens` are computed."""
        done = self.num_cached[request.id]
        full = num_tokens // self.block_size
        if full <= done:
            return
        table = self.tables[request.id]
        hashes = self.names(request.block_hashes)
        if self.merge:
            self._cache_merging(request, hashes, table, done, full)
        else:
            self.pool.store(
                request, hashes, self.findable(request, table, done, full), done, self.block_size, self.number
            )
        self.num_cached[request.id] = full

    def findable(self, request: CacheRequest, table: list[Block], first: int, end: int) -> list[Block]:
        """Blocks `first` to `end` of a table, with the null block in place of those that nobody is to find."""
        return table[first:end]

    def names(self, hashes: Sequence[bytes]) -> Sequence[bytes]:
        """Digests of this group's blocks, from those of the smallest block of all groups: the last one names the whole."""
        return hashes if self.hash_factor == 1 else hashes[self.hash_factor - 1 :: self.hash_factor]

    def _cache_merging(
        self, request: CacheRequest, hashes: Sequence[bytes], table: list[Block], first: int, end: int
    ) -> None:
        for index in range(first, end):
            block = table[index]
            older = self.find(hashes[index])
            if older is None or older is block:
                self.pool.store(request, hashes, [block], index, self.block_size, self.number)
                continue
            self.pool.touch([older])
            table[index] = older
            self.pool.release([block])

    def num_skipped(self, num_computed_tokens: int) -> int:
        """Leading tokens that no later token attends to."""
        return 0

    def remove_skipped(self, request_id: str, num_computed_tokens: int) -> None:
        """Release blocks that fell out of reach, the most recent first, and put the null block in their place."""
        skipped = self.num_skipped(num_computed_tokens) // self.block_size
        table = self.tables.get(request_id)
        if not skipped or not table:
            return
        null = self.pool.null_block
        released: list[Block] = []
        for index in range(min(skipped, len(table)) - 1, -1, -1):
            if table[index] is null:
                break
            released.append(table[index])
            table[index] = null
        self.pool.release(released)

    def release(self, request_id: str) -> list[Block]:
        """Forget a request; its blocks, last first, for the pool to release."""
        self.num_cached.pop(request_id, None)
        table = self.tables.pop(request_id, None)
        if not table:
            return []
        table.reverse()
        null = self.pool.null_block
        return [block for block in table if block is not null] if self.spec.kind != "full" else table

    def num_common(self, request_id: str, num_running: int) -> int:
        """Leading blocks of a request that all `num_running` requests hold; 0 for a group with a window, as in vLLM.

        Such a group has null blocks at its beginning, whose ref count tells nothing.
        """
        if self.spec.kind != "full":
            return 0
        count = 0
        for block in self.tables.get(request_id, ()):
            if block.ref_count != num_running:
                break
            count += 1
        return count


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
