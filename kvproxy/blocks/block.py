"""The metadata of one block."""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from kvproxy.blocks.cache_request import CacheRequest


class KVCacheBlock:
    """Metadata of one physical block, as in vLLM."""

    __slots__ = ("group", "hash", "id", "last_accessed", "next", "parent", "prev", "priority", "ref_count", "source")

    def __init__(self, id: int) -> None:
        self.id = id
        self.ref_count = 0  # Number of block tables and pins that contain the block.
        self.hash: bytes | None = None  # None if the block is not cached.
        self.parent: bytes | None = None  # Hash of the previous block of the prompt.
        self.group: int | None = None  # KV cache group; None if the model has one group.
        # The request that cached the block, and the position of the block's first token.
        self.source: tuple[CacheRequest, int] | None = None
        self.priority = 0  # Highest priority of the requests that used the block since it was cached.
        self.last_accessed = 0  # Value of the pool's operation counter.
        self.prev: KVCacheBlock | None = None  # Neighbours in the free queue.
        self.next: KVCacheBlock | None = None

    def tokens(self, block_size: int) -> tuple[int, ...] | None:
        if self.source is None:
            return None
        request, start = self.source
        return tuple(request.tokens[start : start + block_size])

    def __repr__(self) -> str:
        name = self.hash.hex()[:8] if self.hash else "-"
        return f"KVCacheBlock({self.id}, refs={self.ref_count}, hash={name})"
