from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from kvproxy.blocks.cache_request import CacheRequest


class KVCacheBlock:
    """Metadata of one physical block, as in vLLM.

    Attributes:
        ref_count: number of block tables and pins that contain the block.
        hash: the block hash; None if the block is not cached.
        parent: hash of the previous block of the prompt; None for the first block.
        group: index of its KV cache group; None if the model has one group.
        priority: highest priority of the requests that used the block since it was cached.
        last_accessed: value of the pool's operation counter at the last use.
        source: the request that cached the block, and the position of the block's first token in it.
        prev, next: neighbours in the free queue.
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
        self.prev: KVCacheBlock | None = None
        self.next: KVCacheBlock | None = None

    def tokens(self, block_size: int) -> tuple[int, ...] | None:
        if self.source is None:
            return None
        request, start = self.source
        return tuple(request.tokens[start : start + block_size])

    def __repr__(self) -> str:
        name = self.hash.hex()[:8] if self.hash else "-"
        return f"KVCacheBlock({self.id}, refs={self.ref_count}, hash={name})"
