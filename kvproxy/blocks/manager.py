"""The prefix block cache; behaves like vLLM v1's `KVCacheManager` (see docs/block-cache.md)."""

import time
from bisect import bisect_right
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from math import gcd, lcm
from operator import itemgetter

from kvproxy.blocks.block import KVCacheBlock
from kvproxy.blocks.block_hash import BlockHasher
from kvproxy.blocks.block_pool import BlockPool
from kvproxy.blocks.cache_request import CacheRequest, check_request
from kvproxy.blocks.events import BlockStored, KVEvent
from kvproxy.blocks.eviction import queue_factory, session_policy_of
from kvproxy.blocks.eviction.session_policy import CacheUse
from kvproxy.blocks.residency import ResidencyTracker
from kvproxy.blocks.row_types import PoolStats
from kvproxy.blocks.single_type_manager import (
    MANAGERS,
    GroupSpec,
    SingleTypeKVCacheManager,
    check_groups,
    check_integers,
    find_longest_common_hit,
)


@dataclass(frozen=True, slots=True)
class ComputedBlocks:
    """The longest cached prefix of a prompt. `groups` has the prefix's blocks in each KV cache group."""

    groups: tuple[Sequence[KVCacheBlock], ...]
    num_tokens: int
    shared_prefix_end: int = 0


class KVCacheManager:
    """Allocates blocks to requests, and caches full blocks.

    Args:
        num_blocks: includes the null block.
        block_size: tokens per block, by default 16; `groups` have their own.
        hasher: computes block hashes; by default with `sha256_cbor`.
        groups: KV cache groups of a hybrid model; one group with full attention by default.
        policy: name of the eviction policy: `lru`, `s3fifo`, `sessions`, or a plugin's.
        record_events: record the changes of the cache for `take_events`.
        priorities: evict blocks of requests with a lower `priority` first; otherwise priorities have no effect.
        residency: measures how long blocks stay in the cache.
        alignment_tokens: the length of a hit is a multiple of this and of all block sizes.
        hash_block_size: number of tokens per block hash, a divisor of all block sizes; by default their greatest
            common divisor. vLLM's `prefix_match_unit`.
        clock: returns seconds, for the eviction policy `sessions`.

    Attributes:
        main: first group with full attention, or else the first group. Admin routes show its chains.
    """

    def __init__(
        self,
        num_blocks: int,
        block_size: int | None = None,
        *,
        hasher: BlockHasher | None = None,
        groups: Sequence[GroupSpec] | None = None,
        policy: str = "lru",
        record_events: bool = False,
        priorities: bool = False,
        residency: ResidencyTracker | None = None,
        alignment_tokens: int = 1,
        hash_block_size: int | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        if isinstance(hasher, str):
            raise TypeError(f"hasher must be a BlockHasher: write BlockHasher({hasher!r})")
        if groups is not None:
            check_groups(groups)
        check_integers(num_blocks=num_blocks, alignment_tokens=alignment_tokens)
        self.hasher = hasher or BlockHasher()
        self.pool = BlockPool(
            num_blocks,
            make_queue=queue_factory(policy, num_blocks - 1, priorities=priorities),
            record_events=record_events,
            residency=residency,
        )
        if groups and block_size is not None:
            raise ValueError(f"block_size is {block_size}, but the groups have their own: leave it out")
        specs = tuple(groups) if groups else (GroupSpec("full", 16 if block_size is None else block_size),)
        sizes = [spec.block_size for spec in specs]
        self.hash_block_size, self._block_alignment = hash_block_size or gcd(*sizes), lcm(*sizes)
        if self.hash_block_size < 1 or any(size % self.hash_block_size for size in sizes):
            raise ValueError(f"hash_block_size is {self.hash_block_size}: use a divisor of all block sizes {sizes}")
        if alignment_tokens < 1:
            raise ValueError(f"alignment_tokens is {alignment_tokens}: use 1 or more")
        for spec in specs:
            if spec.retention_interval and spec.retention_interval % self._block_alignment:
                raise ValueError(
                    f"retention_interval is {spec.retention_interval}: use a multiple of {self._block_alignment} tokens"
                )
        self.groups = tuple(
            MANAGERS[spec.kind](
                spec,
                self.pool,
                group_id=index if len(specs) > 1 else None,
                hash_block_size=self.hash_block_size,
                alignment_tokens=self._block_alignment,
            )
            for index, spec in enumerate(specs)
        )
        # The other groups search only the prefix that is cached with full attention.
        self._search_order = sorted(range(len(specs)), key=lambda index: specs[index].kind != "full")
        self.main = self.groups[self._search_order[0]]
        self._full_groups = [group for group in self.groups if group.spec == self.main.spec]
        self._has_sparse_windows = len(self._full_groups) < len(specs) and any(
            spec.retention_interval is not None for spec in specs
        )
        self.block_size = self.main.block_size
        self.num_queried_tokens = 0
        self.num_hit_tokens = 0
        self.requests: dict[str, CacheRequest] = {}
        self._alignment_tokens = alignment_tokens
        self._clock = clock
        self._copies: dict[int, int] = {}  # source block by destination block

    def get_computed_blocks(self, request: CacheRequest) -> ComputedBlocks:
        """Find the longest cached prefix. It excludes the prompt's last token, whose logits must be computed."""
        check_request(request)
        if request.skip_read:
            return ComputedBlocks(tuple([] for _ in self.groups), 0)
        hashes = request.update_hashes(self.hasher, self.hash_block_size)
        order, max_tokens = self._search_order, request.num_tokens - 1
        blocks, num_tokens = find_longest_common_hit(
            [self.groups[index] for index in order], hashes, max_tokens, self._alignment_tokens
        )
        blocks_by_group = dict(zip(order, blocks, strict=True))
        shared_prefix_end = 0
        if self._has_sparse_windows:
            # Other prompts share this longer prefix: cache the window at its end from now on.
            _, longest = find_longest_common_hit(self._full_groups, hashes, max_tokens, self._block_alignment)
            shared_prefix_end = longest if longest > num_tokens else 0
        return ComputedBlocks(
            tuple(blocks_by_group[index] for index in range(len(order))), num_tokens, shared_prefix_end
        )

    def allocate_slots(
        self,
        request: CacheRequest,
        num_new_tokens: int,
        computed: ComputedBlocks | None = None,
        *,
        num_lookahead_tokens: int = 0,
        delay_cache_blocks: bool = False,
    ) -> list[KVCacheBlock] | None:
        """Allocate slots for `num_new_tokens` after the computed tokens.

        The caller then adds `computed.num_tokens` (of a new request) and `num_new_tokens` to
        `request.num_computed_tokens`.

        Args:
            computed: result of `get_computed_blocks`, for a new request.
            num_lookahead_tokens: number of further slots, for draft tokens, which are not cached.
            delay_cache_blocks: do not cache the new full blocks; the caller calls `cache_blocks` later.

        Returns:
            The new blocks; None, without any change, if too few blocks are free.

        Raises:
            ValueError: another request with this id is live, `computed` is not the current prefix of a new request, or
                `num_new_tokens` is negative.
        """
        if not isinstance(request, CacheRequest) or num_new_tokens < 0:
            check_request(request)
            raise ValueError(f"num_new_tokens is {num_new_tokens}: use 0 or more")
        live = self.requests.get(request.id)
        if live is not None and (computed is not None or live is not request):
            raise ValueError(f"request {request.id!r} is live: free it first")
        if computed is not None:
            self._check_computed(request, computed)
        num_hit_tokens = computed.num_tokens if computed else 0
        start = request.num_computed_tokens + num_hit_tokens
        num_tokens = start + num_new_tokens + num_lookahead_tokens
        groups = self.groups
        hits: tuple[Sequence[KVCacheBlock], ...] = computed.groups if computed else ((),) * len(groups)
        for group in groups:
            if group.spec.kind != "full":
                group.remove_skipped_blocks(request.id, request.num_computed_tokens)
        needed = sum(
            group.get_num_blocks_to_allocate(request.id, num_tokens, hit)
            for group, hit in zip(groups, hits, strict=True)
        )
        shared = self._places_of_shared_blocks(request)
        if needed + len(shared) > self.pool.num_free_blocks:
            return None
        if computed is not None:
            self._start_request(request, computed)
        elif request.id not in self.requests:
            self.requests[request.id] = request
        if shared:
            self._copy_on_write(request, shared)
        new = [block for group in groups for block in group.allocate_new_blocks(request, num_tokens)]
        if not delay_cache_blocks:
            self.cache_blocks(request, min(start + num_new_tokens, request.num_tokens))
        return new

    def _check_computed(self, request: CacheRequest, computed: ComputedBlocks) -> None:
        """Raise ValueError if the end of the prefix is no longer cached. Blocks at the end are evicted first."""
        for group, hit in zip(self.groups, computed.groups, strict=True):
            # A chunk of local attention that begins after the hit needs none of its blocks.
            if not hit or hit[-1] is self.pool.null_block:
                continue
            last, hashes = hit[-1], group.select_hashes(request.block_hashes)
            is_cached = len(hit) <= len(hashes) and last.hash == hashes[len(hit) - 1]
            if not is_cached or self.pool.blocks[last.id] is not last:
                raise ValueError(
                    f"the computed blocks of request {request.id!r} are not its cached prefix: call get_computed_blocks"
                    " of this manager and request again"
                )

    def _start_request(self, request: CacheRequest, computed: ComputedBlocks) -> None:
        self.requests[request.id] = request
        request.shared_prefix_end = computed.shared_prefix_end
        for group, hit in zip(self.groups, computed.groups, strict=True):
            if hit:
                self.pool.touch(hit, request.priority)
            group.allocate_new_computed_blocks(request.id, hit)
        if not request.skip_read and not request.counted_in_stats:
            request.counted_in_stats = True
            self.num_queried_tokens += request.num_tokens
            self.num_hit_tokens += computed.num_tokens
            self._update_session_policy(request, ended=False)

    def _update_session_policy(self, request: CacheRequest, *, ended: bool) -> None:
        policy = session_policy_of(self.pool.free_queue, request.priority)
        if policy is not None:
            chain = [(self.main.group_id, digest) for digest in self.main.select_hashes(request.block_hashes)]
            record = policy.end if ended else policy.begin
            record(chain, CacheUse(self._clock(), request.client, request.awaits_user))

    def cache_blocks(self, request: CacheRequest, num_computed_tokens: int) -> None:
        """Cache the full blocks of a request's first `num_computed_tokens` tokens, whose keys and values are computed.

        `allocate_slots` does it, except with `delay_cache_blocks`.
        """
        request.update_hashes(self.hasher, self.hash_block_size)
        if len(self.groups) > 1:
            # No hit of a hybrid model ends after this token.
            num_computed_tokens = num_computed_tokens // self._block_alignment * self._block_alignment
        for group in self.groups:
            group.cache_blocks(request, num_computed_tokens)

    def evict_blocks(self, block_ids: Collection[int]) -> None:
        """Remove blocks from the cache, for example because their content is damaged.

        Uncached blocks and the null block 0, which block tables may contain, are skipped. Raises ValueError if the pool has
        no block with an id.
        """
        if unknown := [id for id in block_ids if not 0 <= id < self.pool.num_blocks]:
            raise ValueError(f"there is no block {unknown[0]}: ids are 1 to {self.pool.num_blocks - 1}")
        blocks = [self.pool.blocks[id] for id in block_ids]
        self.pool.evict_blocks([block for block in blocks if block.hash is not None])

    def free(self, request: CacheRequest) -> None:
        """Release the blocks of a request. Cached blocks stay in the cache until their eviction.

        The request has no computed tokens then: a preempted request is admitted again like a new one.
        """
        check_request(request)
        request.num_computed_tokens = 0
        if self.requests.pop(request.id, None) is not None:
            self._update_session_policy(request, ended=True)
        for group in self.groups:
            group.free(request.id)

    def fork(self, parent: CacheRequest, child: CacheRequest) -> None:
        """Share all tokens and blocks of `parent` with `child`, which has no other tokens.

        A shared block is copied before a request writes to it.
        """
        if parent.id not in self.requests:
            raise ValueError(f"request {parent.id!r} holds no blocks to share")
        if child.id in self.requests:
            raise ValueError(f"request {child.id!r} is live: fork to another id")
        if child.tokens != parent.tokens[: len(child.tokens)]:
            raise ValueError(f"request {child.id!r} has other tokens than its parent: create it with []")
        child.copy_from(parent)
        self.requests[child.id] = child
        for group in self.groups:
            table = group.tables.get(parent.id, [])
            self.pool.touch(table)
            group.tables[child.id] = list(table)
            group.num_cached[child.id] = group.num_cached.get(parent.id, 0)

    def take_copies(self) -> list[tuple[int, int]]:
        """Return and clear the pending block copies as (source, destination) ids.

        Before the next forward pass, the caller reads all sources, then writes the destinations.
        """
        copies, self._copies = self._copies, {}
        return [(source, destination) for destination, source in copies.items()]

    def _places_of_shared_blocks(self, request: CacheRequest) -> list[tuple[SingleTypeKVCacheManager, int]]:
        return [
            (group, index)
            for group in self.groups
            if (table := group.tables.get(request.id))
            for index in range(request.num_computed_tokens // group.block_size, len(table))
            if table[index].ref_count > 1
        ]

    def _copy_on_write(self, request: CacheRequest, shared: list[tuple[SingleTypeKVCacheManager, int]]) -> None:
        for group, index in shared:
            table = group.tables[request.id]
            old, new = table[index], self.pool.get_new_blocks(1, request)[0]
            table[index] = new
            if index * group.block_size < request.num_computed_tokens:
                # The content of a pending destination is still in its source.
                self._copies[new.id] = self._copies.get(old.id, old.id)
            self.pool.free_blocks([old])

    def get_block_ids(self, request_id: str) -> tuple[list[int], ...]:
        """Return the request's block table of each group: empty for a request without blocks, as in vLLM.

        The null block (0) replaces blocks outside the window.
        """
        return tuple([block.id for block in group.tables.get(request_id, ())] for group in self.groups)

    def eviction_order(self) -> list[int]:
        """Return the ids of the free blocks, the next block to allocate first. Cached ones have hits until then."""
        return [block.id for block in self.pool.free_queue]

    def ids_in_block_tables(self) -> set[int]:
        """Return the blocks that requests use, with the null block of windows."""
        return {block.id for group in self.groups for table in group.tables.values() for block in table}

    def max_blocks_in_use(self, num_tokens: int, max_step_tokens: int) -> int:
        """Return the number of blocks that a request of `num_tokens` holds at most, in steps of `max_step_tokens`."""
        return sum(group.max_blocks_in_use(num_tokens, max_step_tokens) for group in self.groups)

    def max_request_tokens(self, max_step_tokens: int) -> int:
        """Return the length of the longest request that fits in the pool, in tokens."""
        # A request with sliding windows only has no limit.
        lengths = range(1, 1 << 40)
        num_blocks = self.pool.num_blocks - 1
        return bisect_right(lengths, num_blocks, key=lambda tokens: self.max_blocks_in_use(tokens, max_step_tokens))

    def can_fit_full_sequence(self, request: CacheRequest, computed: ComputedBlocks, max_step_tokens: int) -> bool:
        """Whether enough blocks are free for all tokens of a request. No block is reserved.

        In a group with sliding windows, a request needs blocks for one window and for `max_step_tokens` only.
        """
        null = self.pool.null_block
        hits = [block for hit in computed.groups for block in hit if block is not null]
        num_idle = sum(1 for block in hits if block.ref_count == 0)
        needed = self.max_blocks_in_use(request.num_tokens, max_step_tokens) - len(hits) + num_idle
        return needed <= self.pool.num_free_blocks

    def reset_prefix_cache(self) -> bool:
        """Empty the cache. If a block is in use, change nothing and return False."""
        return self.pool.reset_prefix_cache()

    def take_events(self) -> list[KVEvent]:
        """Return and clear the changes of the cache since the last call, with `record_events`; see `kvproxy.blocks.events`."""
        return self.pool.take_events()

    def snapshot(self) -> list[BlockStored]:
        """Return a `BlockStored` event for each cached block, parents first."""
        events: list[tuple[int, BlockStored]] = []
        for block in self.pool.blocks:
            if block.hash is None or block.source is None:
                continue
            request, start = block.source
            group = self.groups[block.group or 0]
            event = group.stored_event(request, [block.hash], block.parent, start // group.block_size)
            events.append((start, event))
        return [event for _, event in sorted(events, key=itemgetter(0))]

    def stats(self) -> PoolStats:
        """Return the state of the pool, and its numbers of tokens and evictions since it was created."""
        pool = self.pool
        cached = sum(1 for block in pool.blocks if block.hash is not None and block.ref_count == 0)
        used = len(self.ids_in_block_tables() - {pool.null_block.id})
        return PoolStats(
            num_blocks=pool.num_blocks,
            block_size=self.block_size,
            free=pool.num_free_blocks - cached,
            cached=cached,
            used=used,
            pinned=pool.num_blocks - 1 - pool.num_free_blocks - used,
            usage=1.0 - pool.num_free_blocks / (pool.num_blocks - 1),
            queries=self.num_queried_tokens,
            hits=self.num_hit_tokens,
            hit_rate=self.num_hit_tokens / self.num_queried_tokens if self.num_queried_tokens else 0.0,
            evictions=pool.num_evictions,
        )
