"""Applies KV events to the block pools of a mirrored engine; `sequencer.py` puts the events in order."""

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from itertools import repeat
from math import gcd
from typing import Literal, NamedTuple

from kvproxy.upstreams.mirror.event_decoder import (
    GPU,
    MEDIA,
    BlockExtraKeys,
    ClearedEvent,
    EventBatch,
    Hash,
    RemovedEvent,
    StoredEvent,
)

MAX_BLOCKS = 1_000_000
"""Maximum blocks of 16 tokens that the mirror of one publisher keeps: 16 million tokens. The oldest are dropped first."""
MAX_POOLS = 128
"""Maximum pools of one publisher. Blocks of further pools are ignored."""
MAX_UNKNOWN_NAMES = 16
_CHECKS = 50
"""Comparisons of the stored blocks with `MAX_BLOCKS` while a mirror is filled."""
_OTHERS = "others"
_UNKNOWN_KEYS = ("unknown keys",)
_TOKENS_OF_UNIT = 16
_KEYS_OF_UNIT = 4
_KINDS_WITHOUT_PREFIX = ("cross_attention", "encoder_only_attention")
Removals = Literal["each copy", "last copy"]
"""Whether an engine publishes the removal of each physical copy of a block, or of the last copy only."""


@dataclass(slots=True, eq=False)
class MirroredBlock:
    hash: Hash
    parent: Hash | None
    tokens: tuple[int, ...]  # Empty if they were not published.
    extra_keys: BlockExtraKeys
    stored: int  # Number of blocks that the pool cached earlier.
    end: int = 0  # Number of tokens from the start of the prompt to the end of the block; 0 if unknown.
    copies: int = 0  # Number of physical blocks with this content.
    is_removed_once: bool = False  # A copy was removed since the last copy was stored.

    @property
    def size(self) -> int:
        """Memory in units of a block with 16 tokens."""
        return 1 + len(self.tokens) // _TOKENS_OF_UNIT + len(self.extra_keys or ()) // _KEYS_OF_UNIT


class MirroredPool:
    """Blocks of one rank, medium, and KV cache group, with its attention type (`kind`) and window in tokens.

    Attributes:
        block_size: tokens of a block; 0 if no event named them.
        chunk_tokens: most tokens of one event.
        is_described: events named the blocks' tokens and size. Otherwise, the GPU's events name them, and a block may be the
            last one of a chunk of blocks that the engine moves together.
    """

    def __init__(self, medium: str = GPU, group: int | None = None, removals: Removals = "each copy") -> None:
        self.medium = medium
        self.group = group
        self.removals = removals
        self.blocks: dict[Hash, MirroredBlock] = {}
        self.block_size = self.chunk_tokens = 0
        self.kind: str | None = None
        self.window: int | None = None
        self.locality: str | None = None
        self.is_described = False
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
        self.kind, self.window, self.locality = event.kind, event.window, event.locality
        self.is_described = True
        self.chunk_tokens = max(self.chunk_tokens, size * len(event.hashes))
        # A group with a window omits the hashes of blocks outside of it, but publishes all tokens.
        is_aligned = len(event.tokens) == len(event.hashes) * size
        parent = event.parent
        for index, digest in enumerate(event.hashes):
            if (block := self.blocks.get(digest)) is None:
                tokens = tuple(event.tokens[index * size : (index + 1) * size]) if is_aligned else ()
                extra = event.extra_keys[index] if event.extra_keys and index < len(event.extra_keys) else None
                end = 0
                if tokens:
                    before = None if parent is None else self.blocks.get(parent)
                    end = size if parent is None else before.end + size if before is not None and before.end else 0
                block = self._add(MirroredBlock(digest, parent, tokens, extra, self.num_stored, end))
            self._add_copy(block)
            parent = digest

    def store_known(self, digest: Hash, known: MirroredBlock | None) -> None:
        """Store a block whose event has a hash only. `known` is the same block on the GPU."""
        block = self.blocks.get(digest)
        if block is None and known is None:
            block = self._add(MirroredBlock(digest, None, (), None, self.num_stored))
        elif block is None and known is not None:
            block = MirroredBlock(digest, known.parent, known.tokens, known.extra_keys, self.num_stored, known.end)
            self._add(block)
            self.block_size = gcd(self.block_size, known.end)
        assert block is not None
        self._add_copy(block)

    def _add(self, block: MirroredBlock) -> MirroredBlock:
        self.blocks[block.hash] = block
        self.size += block.size
        self._children.setdefault(block.parent, {})[block.hash] = None
        if block.tokens:
            self._by_content[block.parent, block.tokens, block.extra_keys] = block.hash
        return block

    def _add_copy(self, block: MirroredBlock) -> None:
        block.copies += 1
        block.is_removed_once = False
        self.num_copies += 1
        self.num_stored += 1

    def remove(self, digest: Hash, remaining_copies: int | None = None) -> None:
        """Remove copies of a cached block, until `remaining_copies` are left; None: see `Removals`."""
        block = self.blocks[digest]
        self.num_removed += 1
        if remaining_copies is not None:
            removed = block.copies - min(remaining_copies, block.copies)
        else:
            removed = block.copies if self.removals == "last copy" else 1
        self.num_copies -= removed
        block.copies -= removed
        block.is_removed_once = True
        if not block.copies:
            self._forget(block)

    def count_last_removals(self) -> None:
        """Forget the blocks of which a copy was removed, because the engine publishes the last removal only."""
        self.removals = "last copy"
        for block in [block for block in self.blocks.values() if block.is_removed_once]:
            self.num_copies -= block.copies
            self._forget(block)

    def drop_oldest(self, size: int) -> None:
        """Forget the oldest blocks, until `size` units are free or the pool is empty; see `MirroredBlock.size`."""
        oldest = list[MirroredBlock]()
        # One pass: the start of a dict from which many items were removed is slow to find.
        for block in self.blocks.values():
            if size <= 0:
                break
            size -= block.size
            oldest.append(block)
        for block in oldest:
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
    owner: str | None = None


class MirrorState:
    """The pools of one publisher.

    Attributes:
        unknown_removals: number of removed blocks that no pool contained, because events were lost.
        unknown_names: number of events by unknown type (`event X`), and of stored blocks by unknown medium (`medium X`) or
            without a size on the GPU (`block size 0`).
        is_truncated: blocks were dropped or ignored, since `MAX_BLOCKS` or `MAX_POOLS` was reached.
    """

    def __init__(self) -> None:
        self.pools: dict[PoolKey, MirroredPool] = {}
        self._pools_by_place: dict[tuple[int | None, str], list[MirroredPool]] = {}
        self.is_truncated = False
        self.unknown_removals = 0
        self.unknown_names: Counter[str] = Counter()
        self.num_resets = 0
        self._removals: Removals = "each copy"
        self._unchecked_size = 0  # Stored since the last comparison with `MAX_BLOCKS`.

    def apply(self, batch: EventBatch) -> None:
        for event in batch.events:
            match event:
                case StoredEvent():
                    self._store(batch.rank, event)
                case RemovedEvent():
                    self._remove(batch.rank, event)
                case ClearedEvent():
                    self._clear(batch.rank, event)
                case _:
                    self._count_unknown(f"event {event.name}", 1)

    def _store(self, rank: int | None, event: StoredEvent) -> None:
        if event.medium == GPU and not event.block_size:
            # Only blocks behind the GPU are known by hash, from the events of the GPU.
            self._count_unknown("block size 0", len(event.hashes))
            return
        if event.medium not in MEDIA:
            self._count_unknown(f"medium {event.medium}", len(event.hashes))
        key = PoolKey(rank, event.medium, event.group, event.owner)
        pool = self.pools.get(key)
        if pool is None and len(self.pools) >= MAX_POOLS:
            self.is_truncated = True
            return
        if pool is None:
            pool = self.pools[key] = MirroredPool(event.medium, event.group, self._removals)
            self._pools_by_place.setdefault((rank, event.medium), []).append(pool)
        known = self._blocks_on_gpu(rank, event) if event.medium != GPU and event.group is not None else {}
        size_before = pool.size
        if not event.block_size:
            for digest in event.hashes:
                pool.store_known(digest, known.get(digest))
        elif known or (event.medium != GPU and event.kind is not None):
            pool.store(replace(event, extra_keys=_known_extra_keys(event, known)))
        else:
            pool.store(event)
        self._unchecked_size += pool.size - size_before
        if self._unchecked_size > MAX_BLOCKS // _CHECKS:
            self._unchecked_size = 0
            self._drop_oldest_blocks()

    def _blocks_on_gpu(self, rank: int | None, event: StoredEvent) -> dict[Hash, MirroredBlock]:
        """Return the blocks of an event that the GPU also has, first those of the same group: groups use the same hashes."""
        blocks: dict[Hash, MirroredBlock] = {}
        pools = [(key.group == event.group, pool) for key, pool in self.pools.items() if key[:2] == (rank, GPU)]
        for _, pool in sorted(pools, key=lambda item: item[0]):
            blocks |= {digest: block for digest in event.hashes if (block := pool.blocks.get(digest)) is not None}
        return blocks

    def _count_unknown(self, name: str, count: int) -> None:
        if name not in self.unknown_names and len(self.unknown_names) >= MAX_UNKNOWN_NAMES:
            name = _OTHERS
        self.unknown_names[name] += count

    def _drop_oldest_blocks(self) -> None:
        """Drop the oldest blocks of the largest pools."""
        limit = MAX_BLOCKS - MAX_BLOCKS // _CHECKS
        while (excess := sum(pool.size for pool in self.pools.values()) - limit) > 0:
            self.is_truncated = True
            max(self.pools.values(), key=lambda pool: pool.size).drop_oldest(excess)

    def _remove(self, rank: int | None, event: RemovedEvent) -> None:
        pool = self.pools.get(PoolKey(rank, event.medium, event.group, event.owner))
        pools = [] if pool is None else [pool]
        if pool is None and event.group is None:
            # Some publishers omit the group in removals.
            pools = self._pools_by_place.get((rank, event.medium), [])
        remaining: Iterable[int | None] = event.remaining_copies or repeat(None)
        for digest, copies in zip(event.hashes, remaining, strict=False):
            owner = next((pool for pool in pools if digest in pool.blocks), None)
            if owner is None:
                self.unknown_removals += 1
            else:
                owner.remove(digest, copies)

    def _clear(self, rank: int | None, event: ClearedEvent) -> None:
        self.num_resets += event.medium in (None, GPU)
        for key, pool in self.pools.items():
            is_cleared = event.medium in (None, key.medium) and event.owner in (None, key.owner)
            if key.rank == rank and is_cleared:
                pool.clear()

    def count_last_removals(self) -> None:
        """Expect one removal of a block after its last copy from now on, instead of one removal of each copy."""
        self._removals = "last copy"
        for pool in self.pools.values():
            pool.count_last_removals()

    @property
    def removals(self) -> Removals:
        return self._removals

    def pools_by_rank(self) -> dict[int | None, list[MirroredPool]]:
        """Return the pools of each rank in the order of `MEDIA`, without pools that reuse no prefixes.

        These are pools of KV cache groups such as cross-attention, pools of unknown media, and pools without a block.
        """
        by_rank: dict[int | None, list[MirroredPool]] = {}
        usable = [item for item in self.pools.items() if item[0].medium in MEDIA]
        for key, pool in sorted(usable, key=lambda item: (MEDIA.index(item[0].medium), item[0].group or 0)):
            if (pool.block_size or pool.blocks) and pool.kind not in _KINDS_WITHOUT_PREFIX:
                by_rank.setdefault(key.rank, []).append(pool)
        return by_rank

    def clear_blocks(self) -> None:
        for pool in self.pools.values():
            pool.clear()

    def reset(self) -> None:
        self.pools.clear()
        self._pools_by_place.clear()
        self.unknown_removals = 0
        self.is_truncated = False


def _known_extra_keys(event: StoredEvent, known: Mapping[Hash, MirroredBlock]) -> list[BlockExtraKeys]:
    """Return the extra keys of blocks whose event omits them, as vLLM's offloading connector does.

    Those of a block that the GPU does not have are unknown: it is found by its hash only.
    """
    if event.extra_keys is not None:
        return event.extra_keys
    return [known[digest].extra_keys if digest in known else _UNKNOWN_KEYS for digest in event.hashes]


def on_gpu(pools: Iterable[MirroredPool]) -> list[MirroredPool]:
    return [pool for pool in pools if pool.medium == GPU]
