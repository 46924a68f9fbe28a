"""Block tables of one KV cache group (layers of one attention type), like vLLM's `SingleTypeKVCacheManager`."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import count
from math import lcm
from numbers import Integral
from typing import Literal, Protocol, TypeVar

from kvproxy.blocks.block import KVCacheBlock
from kvproxy.blocks.block_pool import BlockPool
from kvproxy.blocks.cache_request import CacheRequest
from kvproxy.blocks.events import BlockStored, published_extra_keys

GroupKind = Literal["full", "sliding_window", "chunked_local"]
VLLM_KINDS: dict[GroupKind, str] = {
    "full": "full_attention",
    "sliding_window": "sliding_window",
    "chunked_local": "chunked_local_attention",
}
Hash = TypeVar("Hash")
Block = TypeVar("Block")


def check_integers(**values: object) -> None:
    for name, value in values.items():
        if not isinstance(value, Integral):
            raise TypeError(f"{name} must be an integer, not {type(value).__name__}")


@dataclass(frozen=True, slots=True)
class GroupSpec:
    """Attention of a group of layers.

    Attributes:
        window: size of the sliding window, or of the chunk, in tokens; 0 for full attention.
        retention_interval: None caches every sliding window at which a hit can end. N tokens cache one window per N
            tokens, and 0 caches none of these. Both also cache the last window of each prompt, and of each prefix that
            several prompts share. Only for sliding windows. vLLM's `prefix_cache_retention_interval`.
    """

    kind: GroupKind = "full"
    block_size: int = 16
    window: int = 0
    retention_interval: int | None = None

    def __post_init__(self) -> None:
        check_integers(block_size=self.block_size, window=self.window)
        if self.kind not in VLLM_KINDS:
            raise ValueError(f"unknown kind of group {self.kind!r}: use {', '.join(VLLM_KINDS)}")
        if self.block_size < 1:
            raise ValueError(f"block_size is {self.block_size}: use 1 or more")
        if self.kind != "full" and self.window < 1:
            raise ValueError(f"a {self.kind} group needs a window of 1 token or more")
        if self.retention_interval is not None and self.retention_interval < 0:
            raise ValueError(f"retention_interval is {self.retention_interval}: use 0 or more tokens, or None")
        if self.retention_interval and self.kind != "sliding_window":
            raise ValueError(f"a {self.kind} group has no windows to retain: use retention_interval None")


def check_groups(groups: Sequence[GroupSpec]) -> None:
    if not groups:
        raise ValueError("groups is empty: leave it out for one group with full attention")
    for spec in groups:
        if not isinstance(spec, GroupSpec):
            raise TypeError(f"groups must be a sequence of GroupSpec, not of {type(spec).__name__}")


class SingleTypeKVCacheManager:
    """Block tables of a group with full attention. Subclasses implement sliding windows and chunked local attention.

    `hash_block_size` is the number of tokens per block hash, a divisor of the group's block size. `alignment_tokens`
    divides the length of each hit of the model.
    """

    def __init__(
        self,
        spec: GroupSpec,
        pool: BlockPool,
        *,
        group_id: int | None,
        hash_block_size: int,
        alignment_tokens: int,
    ) -> None:
        self.spec = spec
        self.block_size = spec.block_size
        self.pool = pool
        self.group_id = group_id
        # By request id. In a block table, the null block replaces freed blocks.
        self.tables: dict[str, list[KVCacheBlock]] = {}
        # Number of leading blocks that `cache_blocks` has processed, by request id.
        self.num_cached: dict[str, int] = {}
        self._hashes_per_block = spec.block_size // hash_block_size
        self._alignment_tokens = alignment_tokens

    def get_cached_block(self, digest: bytes) -> KVCacheBlock | None:
        return self.pool.get_cached_block(digest if self.group_id is None else (self.group_id, digest))

    def stored_event(
        self, request: CacheRequest, hashes: Sequence[bytes], parent: bytes | None, first: int
    ) -> BlockStored:
        """Return the event for consecutive blocks of a request, the first of which has the index `first`."""
        start, stop = first * self.block_size, (first + len(hashes)) * self.block_size
        return BlockStored(
            hashes=tuple(hashes),
            parent=parent,
            tokens=tuple(request.tokens[start:stop]),
            block_size=self.block_size,
            lora=request.lora[0] if request.lora else None,
            lora_id=request.lora_id,
            session_id=request.session_id,
            extra_keys=published_extra_keys(request, start, stop, self.block_size),
            group=self.group_id or 0,
            kind=VLLM_KINDS[self.spec.kind],
            window=self.spec.window if self.spec.kind == "sliding_window" else None,
        )

    def select_hashes(self, hashes: Sequence[bytes]) -> Sequence[bytes]:
        return hashes if self._hashes_per_block == 1 else hashes[self._hashes_per_block - 1 :: self._hashes_per_block]

    def find_longest_cache_hit(self, hashes: Sequence[bytes], max_blocks: int) -> list[KVCacheBlock]:
        hit_blocks: list[KVCacheBlock] = []
        cached, group, hashes = self.pool.cached_blocks, self.group_id, hashes[:max_blocks]
        for key in hashes if group is None else ((group, digest) for digest in hashes):
            block = cached.get(key)
            if block is None:
                break
            hit_blocks.append(block[0] if type(block) is list else block)  # type: ignore[arg-type]
        return hit_blocks

    def get_num_blocks_to_allocate(self, request_id: str, num_tokens: int, computed: Sequence[KVCacheBlock]) -> int:
        """Count the free blocks that a request of `num_tokens` would take: new blocks, and idle blocks of `computed`."""
        table = self.tables.get(request_id)
        new = -(-num_tokens // self.block_size) - len(computed) - (len(table) if table else 0)
        return max(new, 0) + [block.ref_count for block in computed].count(0)

    def max_blocks_in_use(self, num_tokens: int, max_step_tokens: int) -> int:
        return -(-num_tokens // self.block_size)

    def allocate_new_computed_blocks(self, request_id: str, computed: Sequence[KVCacheBlock]) -> None:
        self.tables[request_id] = list(computed)
        self.num_cached[request_id] = len(computed)

    def allocate_new_blocks(self, request: CacheRequest, num_tokens: int) -> list[KVCacheBlock]:
        table = self.tables.get(request.id)
        if table is None:
            table = self.tables[request.id] = []
            self.num_cached[request.id] = 0
        count = -(-num_tokens // self.block_size) - len(table)
        if count <= 0:
            return []
        new = self.pool.get_new_blocks(count, request)
        table += new
        return new

    def cache_blocks(self, request: CacheRequest, num_tokens: int) -> None:
        first = self.num_cached[request.id]
        end = num_tokens // self.block_size
        if end <= first:
            return
        blocks = self._cacheable_blocks(request, self.tables[request.id], first, end)
        hashes = self.select_hashes(request.block_hashes)
        self.pool.cache_full_blocks(request, hashes, blocks, first, self.block_size, self.group_id)
        self.num_cached[request.id] = end
        if self.pool.record_events:
            self._record_stored(request, hashes, blocks, first)

    def _record_stored(
        self, request: CacheRequest, hashes: Sequence[bytes], blocks: list[KVCacheBlock], first: int
    ) -> None:
        null, start = self.pool.null_block, first
        for end, block in enumerate([*blocks, null], first):
            if block is null:
                if start < end:
                    parent = hashes[start - 1] if start else None
                    self.pool.events.append(self.stored_event(request, hashes[start:end], parent, start))
                start = end + 1

    def _cacheable_blocks(
        self, request: CacheRequest, table: list[KVCacheBlock], first: int, end: int
    ) -> list[KVCacheBlock]:
        return table[first:end]

    def get_num_skipped_tokens(self, num_computed_tokens: int) -> int:
        """Count the leading tokens to which no later token attends."""
        return 0

    def remove_skipped_blocks(self, request_id: str, num_computed_tokens: int) -> None:
        """Replace the blocks of skipped tokens with the null block, and free them."""
        skipped = self.get_num_skipped_tokens(num_computed_tokens) // self.block_size
        table = self.tables.get(request_id)
        if not skipped or not table:
            return
        null = self.pool.null_block
        freed: list[KVCacheBlock] = []
        for index in range(min(skipped, len(table)) - 1, -1, -1):
            if table[index] is null:
                break
            freed.append(table[index])
            table[index] = null
        self.pool.free_blocks(freed)

    def free(self, request_id: str) -> None:
        self.num_cached.pop(request_id, None)
        table = self.tables.pop(request_id, None)
        if not table:
            return
        table.reverse()
        null = self.pool.null_block
        self.pool.free_blocks(table if self.spec.kind == "full" else [block for block in table if block is not null])


def blocks_in_window(window: int, block_size: int) -> int:
    """Return the number of previous blocks to which the first token of a block attends."""
    return -(-(window - 1) // block_size)


def find_window_hit(
    get_block: Callable[[int], Block | None], num_blocks: int, window_blocks: int, null: Block
) -> list[Block]:
    """Return the blocks of the longest prefix whose last `window_blocks` blocks are cached.

    `null` replaces the blocks before this window, which need not be cached. As in vLLM, a hit ends with a cached block
    also if the window has one token only.
    """
    hit_blocks = [null] * num_blocks
    run = 0
    for index in range(num_blocks - 1, -1, -1):
        block = get_block(index)
        if block is None:
            run = 0
            continue
        if run == 0:
            del hit_blocks[index + 1 :]
        hit_blocks[index] = block
        run += 1
        if run >= window_blocks:
            hit_blocks[:index] = [null] * index
            return hit_blocks
    # No complete window: the remaining run starts at the first token.
    return hit_blocks[:run]


class SlidingWindowManager(SingleTypeKVCacheManager):
    def find_longest_cache_hit(self, hashes: Sequence[bytes], max_blocks: int) -> list[KVCacheBlock]:
        return find_window_hit(
            lambda index: self.get_cached_block(hashes[index]),
            min(len(hashes), max_blocks),
            blocks_in_window(self.spec.window, self.block_size),
            self.pool.null_block,
        )

    def _cacheable_blocks(
        self, request: CacheRequest, table: list[KVCacheBlock], first: int, end: int
    ) -> list[KVCacheBlock]:
        blocks, alignment, interval = table[first:end], self._alignment_tokens, self.spec.retention_interval
        window, null = blocks_in_window(self.spec.window, self.block_size), self.pool.null_block
        segment_tokens = alignment if interval is None else interval
        segment = segment_tokens // self.block_size
        if segment and window >= segment:
            return blocks
        ends = []
        if interval is not None:
            # The prompt's last token is always computed.
            last_tokens = (request.num_prompt_tokens - 1, request.shared_prefix_end)
            ends = [tokens // alignment * alignment // self.block_size for tokens in last_tokens]
        return [
            block
            if (segment and index % segment >= segment - window) or any(last - window <= index < last for last in ends)
            else null
            for index, block in enumerate(blocks, first)
        ]

    def get_num_skipped_tokens(self, num_computed_tokens: int) -> int:
        return max(0, num_computed_tokens - self.spec.window + 1)

    def max_blocks_in_use(self, num_tokens: int, max_step_tokens: int) -> int:
        # The window and the step may start and end within blocks.
        window = -(-(self.spec.window - 1 + max_step_tokens) // self.block_size) + 1
        return min(super().max_blocks_in_use(num_tokens, max_step_tokens), window)


class ChunkedLocalAttentionManager(SingleTypeKVCacheManager):
    """A group in which each token attends to the previous tokens of its chunk of `window` tokens."""

    def find_longest_cache_hit(self, hashes: Sequence[bytes], max_blocks: int) -> list[KVCacheBlock]:
        blocks = min(len(hashes), max_blocks)
        first = max_blocks * self.block_size // self.spec.window * self.spec.window // self.block_size
        hit_blocks = [self.pool.null_block] * min(first, blocks)
        return hit_blocks + super().find_longest_cache_hit(hashes[len(hit_blocks) : blocks], blocks)

    def get_num_skipped_tokens(self, num_computed_tokens: int) -> int:
        return num_computed_tokens // self.spec.window * self.spec.window

    def max_blocks_in_use(self, num_tokens: int, max_step_tokens: int) -> int:
        chunk = -(-(self.spec.window + max_step_tokens) // self.block_size) + 1
        return min(super().max_blocks_in_use(num_tokens, max_step_tokens), chunk)


MANAGERS: dict[GroupKind, type[SingleTypeKVCacheManager]] = {
    "full": SingleTypeKVCacheManager,
    "sliding_window": SlidingWindowManager,
    "chunked_local": ChunkedLocalAttentionManager,
}


class KVCacheGroup(Protocol[Hash, Block]):
    """A KV cache group (layers that share block tables) of the embedded engine or of a mirror."""

    @property
    def block_size(self) -> int: ...

    def select_hashes(self, hashes: Sequence[Hash]) -> Sequence[Hash]:
        """Return the hash of each block of this group. If a block spans several hashes, it is the last one."""

    def find_longest_cache_hit(self, hashes: Sequence[Hash], max_blocks: int) -> list[Block]: ...


def find_longest_common_hit(
    groups: Sequence[KVCacheGroup[Hash, Block]],
    hashes: Sequence[Hash],
    max_tokens: int,
    alignment_tokens: int = 1,
    max_rounds: int | None = None,
) -> tuple[tuple[Sequence[Block], ...], int]:
    """Return each group's blocks of the longest prefix that all groups cache, and the prefix's length in tokens.

    The length is at most `max_tokens`, and a multiple of `alignment_tokens` and of all block sizes. It is 0 if the groups do
    not agree within `max_rounds` lookups of all groups.
    """
    alignment = lcm(alignment_tokens, *(group.block_size for group in groups))
    if len(groups) == 1 and alignment == groups[0].block_size:
        hit_blocks = groups[0].find_longest_cache_hit(groups[0].select_hashes(hashes), max_tokens // alignment)
        return (hit_blocks,), len(hit_blocks) * alignment
    chains = [group.select_hashes(hashes) for group in groups]
    length = max_tokens // alignment * alignment
    blocks: list[list[Block]] = []
    # A group may shorten the prefix of the other groups: repeat until the length is stable.
    for rounds in count(1):
        before = length
        blocks = []
        for group, chain in zip(groups, chains, strict=True):
            hit_blocks = group.find_longest_cache_hit(chain, length // group.block_size)
            length = min(length, len(hit_blocks) * group.block_size // alignment * alignment)
            blocks.append(hit_blocks)
        if length == before or length == 0:
            break
        if rounds == max_rounds:
            length = 0
            break
    cut = tuple(group_blocks[: length // group.block_size] for group, group_blocks in zip(groups, blocks, strict=True))
    return cut, length
