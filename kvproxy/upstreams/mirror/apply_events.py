"""Applies KV events to the block pools of a mirrored engine; `sequencer.py` puts the events in order."""

from dataclasses import dataclass
from typing import NamedTuple

from kvproxy.upstreams.mirror.event_decoder import GPU, BlockExtraKeys, EventBatch, Hash, RemovedEvent, StoredEvent

MAX_BLOCKS = 1_000_000
"""Maximum blocks of 16 tokens that the mirror of one publisher keeps: 16 million tokens. The oldest are dropped first."""
MAX_POOLS = 256
"""Maximum pools of one publisher. Blocks of further pools are ignored."""
_TOKENS_OF_UNIT = 16
_KEYS_OF_UNIT = 4
_KINDS_WITHOUT_PREFIX = ("cross_attention", "encoder_only_attention")


@dataclass(slots=True, eq=False)
class MirroredBlock:
    hash: Hash
    parent: Hash | None
    tokens: tuple[int, ...]  # Empty if they were not published.
    extra_keys: BlockExtraKeys
    stored: int  # Number of blocks that the pool cached earlier.
    copies: int = 0  # Number of physical blocks with this content.

    @property
    def size(self) -> int:
        """Memory in units of a block with 16 tokens."""
        return 1 + len(self.tokens) // _TOKENS_OF_UNIT + len(self.extra_keys or ()) // _KEYS_OF_UNIT


class MirroredPool:
    """Blocks of one rank, medium (such as GPU), and KV cache group, with its attention type (`kind`) and window in tokens.

    `block_size` is 0 before the first event.
    """

    def __init__(self) -> None:
        self.blocks: dict[Hash, MirroredBlock] = {}
        self.block_size = 0
        self.kind: str | None = None
        self.window: int | None = None
        self.num_copies = 0
        self.num_stored = 0
        self.num_removed = 0
        self.size = 0  # Of all blocks, see `MirroredBlock.size`.
        self._children: dict[Hash | None, dict[Hash, None]] = {}
        self._by_content: dict[tuple[Hash | None, tuple[int, ...], BlockExtraKeys], Hash] = {}

    def store(self, event: StoredEvent) -> None:
        size = event.block_size
        # The end of a prompt may be published as a smaller block.
        self.block_size = max(self.block_size, size)
        self.kind, self.window = event.kind, event.window
        # A group with a window omits the hashes of blocks outside of it, but publishes all tokens.
        is_aligned = len(event.tokens) == len(event.hashes) * size
        parent = event.parent
        for index, digest in enumerate(event.hashes):
            block = self.blocks.get(digest)
            if block is None:
                tokens = tuple(event.tokens[index * size : (index + 1) * size]) if is_aligned else ()
                extra = event.extra_keys[index] if event.extra_keys and index < len(event.extra_keys) else None
                block = self.blocks[digest] = MirroredBlock(digest, parent, tokens, extra, self.num_stored)
                self.size += block.size
                self._children.setdefault(parent, {})[digest] = None
                if tokens:
                    self._by_content[parent, tokens, extra] = digest
            block.copies += 1
            self.num_copies += 1
            self.num_stored += 1
            parent = digest

    def remove(self, digest: Hash) -> bool:
        block = self.blocks.get(digest)
        if block is None:
            return False
        self.num_removed += 1
        self.num_copies -= 1
        block.copies -= 1
        if not block.copies:
            self._forget(block)
        return True

    def drop_oldest(self) -> None:
        block = next(iter(self.blocks.values()))
        self.num_copies -= block.copies
        self._forget(block)

    def _forget(self, block: MirroredBlock) -> None:
        del self.blocks[block.hash]
        self.size -= block.size
        siblings = self._children[block.parent]
        del siblings[block.hash]
        if not siblings:
            del self._children[block.parent]
        content = (block.parent, block.tokens, block.extra_keys)
        if self._by_content.get(content) == block.hash:
            del self._by_content[content]

    def clear(self) -> None:
        self.blocks.clear()
        self._children.clear()
        self._by_content.clear()
        self.num_copies = self.size = 0

    def children(self, parent: Hash | None) -> list[MirroredBlock]:
        """Return the cached blocks that follow `parent` (None: the first blocks of prompts), oldest first."""
        return [self.blocks[digest] for digest in self._children.get(parent, ())]

    def find_child(
        self, parent: Hash | None, tokens: tuple[int, ...], extra_keys: BlockExtraKeys
    ) -> MirroredBlock | None:
        digest = self._by_content.get((parent, tokens, extra_keys))
        return None if digest is None else self.blocks[digest]


class PoolKey(NamedTuple):
    rank: int | None
    medium: str
    group: int | None


class MirrorState:
    """The pools of one publisher.

    Attributes:
        unknown_removals: number of removed blocks that no pool contained, because events were lost.
        is_truncated: blocks were dropped or ignored, since `MAX_BLOCKS` or `MAX_POOLS` was reached.
    """

    def __init__(self) -> None:
        self.pools: dict[PoolKey, MirroredPool] = {}
        self.is_truncated = False
        self.unknown_removals = 0
        self.num_resets = 0

    def apply(self, batch: EventBatch) -> None:
        for event in batch.events:
            if isinstance(event, StoredEvent):
                key = PoolKey(batch.rank, event.medium, event.group)
                pool = self.pools.get(key)
                if pool is None and len(self.pools) >= MAX_POOLS:
                    self.is_truncated = True
                    continue
                if pool is None:
                    pool = self.pools[key] = MirroredPool()
                pool.store(event)
                self._drop_oldest_blocks()
            elif isinstance(event, RemovedEvent):
                self._remove(batch.rank, event)
            else:
                self.num_resets += 1
                for key, pool in self.pools.items():
                    if key.rank == batch.rank:
                        pool.clear()

    def _drop_oldest_blocks(self) -> None:
        size = sum(pool.size for pool in self.pools.values())
        while size > MAX_BLOCKS:
            self.is_truncated = True
            pool = max(self.pools.values(), key=lambda each: each.size)
            size -= pool.size
            pool.drop_oldest()
            size += pool.size

    def _remove(self, rank: int | None, event: RemovedEvent) -> None:
        pool = self.pools.get(PoolKey(rank, event.medium, event.group))
        pools = [] if pool is None else [pool]
        if pool is None and event.group is None:
            # Some publishers omit the group in removals.
            pools = [other for key, other in self.pools.items() if (key.rank, key.medium) == (rank, event.medium)]
        for digest in event.hashes:
            if not any(pool.remove(digest) for pool in pools):
                self.unknown_removals += 1

    def pools_by_rank(self) -> dict[int | None, list[MirroredPool]]:
        """Return the GPU pools of each rank, without KV cache groups (such as cross-attention) that reuse no prefixes."""
        found: dict[int | None, list[MirroredPool]] = {}
        for key, pool in sorted(self.pools.items(), key=lambda item: item[0].group or 0):
            if key.medium == GPU and pool.block_size and pool.kind not in _KINDS_WITHOUT_PREFIX:
                found.setdefault(key.rank, []).append(pool)
        return found

    def clear_blocks(self) -> None:
        for pool in self.pools.values():
            pool.clear()

    def reset(self) -> None:
        self.pools.clear()
        self.unknown_removals = 0
        self.is_truncated = False
