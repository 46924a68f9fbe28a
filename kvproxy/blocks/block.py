"""One block of the pool: its place in memory, who holds it, and which tokens it is known by."""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from kvproxy.blocks.request import CacheRequest


class Block:
    """Metadata of one physical KV block.

    Attributes:
        id: index into the KV tensors; block 0 is the null block.
        ref_count: block tables that hold the block. Zero means idle: free, or cached and evictable.
        hash: digest that names the block's content in the cache map, None while it is not cached.
        parent: digest of the block before it in the chain, None for the first block and while not cached.
        group: number of the attention group that cached the block, None where the manager has one group.
        source: the request that cached the block and the offset of its first token, where the manager keeps tokens.
        priority: blocks of a higher one outlive all idle ones of a lower one.
        last_accessed: the pool's clock at the last allocation or hit, 0 if never used.
        prev, next: neighbours in the free queue, None while the block is held.
    """

    __slots__ = ("group", "hash", "id", "last_accessed", "next", "parent", "prev", "priority", "ref_count", "source")

    def __init__(self, id: int) -> None:
        self.id = id
        self.ref_count = 0
        self.hash: bytes | None = None
        self.parent: bytes | None = None
        self.group: int | None = None
        self.source: tuple[CacheRequest, int] | None = None
        self.priority = 0
        self.last_accessed = 0
        self.prev: Block | None = None
        self.next: Block | None = None

    @property
    def computed(self) -> bool:
        """Whether the block is full, computed and can no longer change: only then it has a name."""
        return self.hash is not None

    def tokens(self, block_size: int) -> list[int] | None:
        """The block's tokens, or None where they were not kept."""
        if self.source is None:
            return None
        request, start = self.source
        return list(request.tokens[start : start + block_size])

    def __repr__(self) -> str:
        name = self.hash.hex()[:8] if self.hash else "-"
        return f"Block({self.id}, refs={self.ref_count}, hash={name})"
