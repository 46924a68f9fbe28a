"""The block cache as a scheduler sees it: look a request up, give it slots, free it.

Behaviour follows vLLM v1's `KVCacheManager` block id by block id (see docs/block-cache.md for the rules).
"""

from bisect import bisect_right
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from kvproxy.blocks.block import Block
from kvproxy.blocks.digest import BlockHasher
from kvproxy.blocks.events import BlockStored, KVEvent
from kvproxy.blocks.groups import CopyOnWrite, GroupSpec
from kvproxy.blocks.integrity import check_integrity
from kvproxy.blocks.lookup import GroupBlocks, make_groups, reusable
from kvproxy.blocks.policies import queue_maker
from kvproxy.blocks.pool import BlockPool
from kvproxy.blocks.request import CacheRequest
from kvproxy.blocks.residency import Residency
from kvproxy.blocks.stats import LookupStats, PoolStats, pool_stats


@dataclass(frozen=True, slots=True)
class ComputedBlocks:
    """What a lookup found: for each group its blocks, and the tokens that they cover.

    Attributes:
        junction: where a beginning ends that the groups asked first have, and the others have not any more; 0 where none has.
    """

    groups: GroupBlocks
    num_tokens: int
    junction: int = 0

    @property
    def blocks(self) -> Sequence[Block]:
        """Blocks of the first group."""
        return self.groups[0]


class KVCacheManager:
    """Tables of blocks for live requests over one pool.

    Its `main` group is the first one with full attention, or the first of all: chains are shown as it has them.

    Args:
        num_blocks: blocks in the pool, the null block included.
        block_size: tokens in a block, where `groups` is not given.
        hasher: names blocks; the default is `sha256_cbor` with vLLM's seed.
        groups: attention groups of a hybrid model; one full-attention group by default.
        policy: order of eviction, see `policies`; lru is vLLM's.
        merge: give up full blocks for older equal ones, as vLLM's older allocator did.
        watermark: share of the pool that a new allocation must leave free.
        keep_tokens: remember the tokens of cached blocks, for inspection.
        record_events: collect KV events.
        priorities: heed the priorities of requests; without, all blocks are equal.
        residency: notes how long cached blocks stay.
        eagle: drop the last matched block, which EAGLE's draft heads need computed.
        context_parallel: ranks over which each block is spread; a block then holds that many times the tokens.
        multiple: a hit is a multiple of so many tokens, and of the block sizes.
    """

    def __init__(
        self,
        num_blocks: int,
        block_size: int = 16,
        *,
        hasher: BlockHasher | None = None,
        groups: Sequence[GroupSpec] | None = None,
        policy: str = "lru",
        merge: bool = False,
        watermark: float = 0.0,
        keep_tokens: bool = False,
        record_events: bool = False,
        priorities: bool = False,
        residency: Residency | None = None,
        eagle: bool = False,
        context_parallel: int = 1,
        multiple: int = 1,
    ) -> None:
        if not 0.0 <= watermark < 1.0:
            raise ValueError(f"a watermark of {watermark}: use a share of the pool, from 0 to below 1")
        self.hasher = hasher or BlockHasher()
        self.policy = policy
        self.pool = BlockPool(
            num_blocks,
            make_queue=queue_maker(policy, num_blocks - 1, priorities=priorities),
            record_events=record_events,
            keep_tokens=keep_tokens,
            residency=residency,
        )
        self.groups, self.hash_block_size = make_groups(
            groups, block_size, context_parallel, self.pool, merge=merge, eagle=eagle
        )
        # Full attention bounds what the others must look at, so it is asked first.
        self._asked_first = sorted(range(len(self.groups)), key=lambda number: self.groups[number].spec.kind != "full")
        self.main = self.groups[self._asked_first[0]]
        self._leaders = [group for group in self.groups if group.spec == self.main.spec]
        self._sparse = len(self._leaders) < len(self.groups) and any(group.spec.kept == "last" for group in self.groups)
        self.block_size = self.main.block_size
        self.lookups = LookupStats()
        self.requests: dict[str, CacheRequest] = {}
        self._watermark = int(watermark * num_blocks)
        self._multiple = multiple
        self._copies = CopyOnWrite(self.pool)

    def get_computed_blocks(self, request: CacheRequest) -> ComputedBlocks:
        """The longest cached prefix that a request can reuse; changes nothing.

        One token at least is left to compute, because its logits are needed: a prompt that fills its blocks exactly
        recomputes the whole last one.
        """
        if request.skip_read:
            return ComputedBlocks(tuple([] for _ in self.groups), 0)
        hashes = request.update_hashes(self.hasher, self.hash_block_size)
        order, most = self._asked_first, request.num_tokens - 1
        blocks, num_tokens = reusable([self.groups[number] for number in order], hashes, most, self._multiple)
        found = dict(zip(order, blocks, strict=True))
        junction = 0
        if self._sparse:
            # What ends there is shared by prompts: windows that end there are kept from now on.
            _, furthest = reusable(self._leaders, hashes, most, self.main.step)
            junction = furthest if furthest > num_tokens else 0
        return ComputedBlocks(tuple(found[number] for number in range(len(order))), num_tokens, junction)

    def allocate_slots(
        self,
        request: CacheRequest,
        num_new_tokens: int,
        computed: ComputedBlocks | None = None,
        *,
        num_lookahead_tokens: int = 0,
        delay_caching: bool = False,
    ) -> list[Block] | None:
        """Give a request room for `num_new_tokens` after what it has computed.

        The caller advances `request.num_computed_tokens` once the step is planned: by what `computed` covers (for a new
        request) and by `num_new_tokens`.

        Args:
            request: live, or new when `computed` is given.
            num_new_tokens: tokens to compute next, or to receive from elsewhere.
            computed: the lookup's result, for a request without blocks.
            num_lookahead_tokens: slots for draft tokens beyond; never cached.
            delay_caching: leave the new blocks unnamed until `cache_blocks`, while their content is still on its way.

        Returns:
            The new blocks of all groups, or None, with nothing changed, when too few blocks are free.

        Raises:
            ValueError: `computed` is given for a request that is live.
        """
        if computed is not None and request.id in self.requests:
            raise ValueError(f"request {request.id!r} is live: free it before it is admitted again")
        found = computed.num_tokens if computed else 0
        start = request.num_computed_tokens + found
        num_tokens = start + num_new_tokens + num_lookahead_tokens
        groups = self.groups
        hits: GroupBlocks = computed.groups if computed else ((),) * len(groups)
        for group in groups:
            if group.spec.kind != "full":
                group.remove_skipped(request.id, request.num_computed_tokens)
        needed = sum(group.num_needed(request.id, num_tokens, hit) for group, hit in zip(groups, hits, strict=True))
        shared = self._copies.shared_tail(groups, request)
        free = self.pool.num_free
        if needed + len(shared) + (self._watermark if computed else 0) > free:
            return None
        if computed is not None:
            self._admit(request, computed)
        elif request.id not in self.requests:
            self.requests[request.id] = request
        if shared:
            self._copies.write(request, shared)
        new = [block for group in groups for block in group.grow(request.id, num_tokens)]
        if not delay_caching:
            self.cache_blocks(request, min(start + num_new_tokens, request.num_tokens))
        return new

    def _admit(self, request: CacheRequest, computed: ComputedBlocks) -> None:
        self.requests[request.id] = request
        request.junction = computed.junction
        for group, hit in zip(self.groups, computed.groups, strict=True):
            if hit:
                self.pool.touch(hit, request.priority)
            group.adopt(request.id, hit)
        if not request.skip_read and not request.counted:
            request.counted = True
            self.lookups.record(request.num_tokens, computed.num_tokens)

    def cache_blocks(self, request: CacheRequest, num_computed_tokens: int) -> None:
        """Name every block that the first `num_computed_tokens` fill, so that others can hit it."""
        request.update_hashes(self.hasher, self.hash_block_size)
        for group in self.groups:
            group.cache(request, num_computed_tokens)

    def free(self, request: CacheRequest) -> None:
        """Give up a request's blocks, the last of the chain first; what is cached stays until it is evicted."""
        self.requests.pop(request.id, None)
        for group in self.groups:
            self.pool.release(group.release(request.id))

    def fork(self, parent: CacheRequest, child: CacheRequest) -> None:
        """Let a child share all of its parent's blocks; the first to write to a shared one gets its own copy.

        The child takes over the parent's tokens, digests and progress, and what else names its blocks.

        Raises:
            ValueError: the parent holds nothing, or a request of the child's id is live.
        """
        if parent.id not in self.requests:
            raise ValueError(f"request {parent.id!r} holds no blocks to share")
        if child.id in self.requests:
            raise ValueError(f"request {child.id!r} is live: fork to another id")
        child.inherit(parent)
        self.requests[child.id] = child
        for group in self.groups:
            table = group.tables.get(parent.id, [])
            self.pool.touch(table)
            group.tables[child.id] = list(table)
            group.num_cached[child.id] = group.num_cached.get(parent.id, 0)

    def take_copies(self) -> list[tuple[int, int]]:
        """Pending copies as (source, destination) block ids, to be carried out before the next forward pass.

        They may be carried out all at once or in any order that reads every source first: no destination comes twice.
        """
        return self._copies.take()

    def block_ids(self, request_id: str, group: int = 0) -> list[int]:
        """A request's block table; 0 stands for blocks that its group needs no more."""
        return [block.id for block in self.groups[group].tables.get(request_id, ())]

    def tables(self, request_id: str) -> tuple[list[int], ...]:
        """A request's block tables, one for each group."""
        return tuple([block.id for block in group.tables.get(request_id, ())] for group in self.groups)

    def most_held(self, num_tokens: int, step: int) -> int:
        """Most blocks that a request of `num_tokens` holds at any time, where a step computes at most `step` of them."""
        return sum(group.most_held(num_tokens, step) for group in self.groups)

    def longest(self, step: int) -> int:
        """Tokens of the longest request that the pool can hold alone, where a step computes at most `step` of them."""
        # Windows alone hold sequences of any length.
        lengths = range(1, 1 << 40)
        return bisect_right(lengths, self.pool.num_blocks - 1, key=lambda tokens: self.most_held(tokens, step))

    def has_room(self, request: CacheRequest, computed: ComputedBlocks, step: int) -> bool:
        """Whether the free blocks suffice for all of a request, after `computed`; others may take them meanwhile."""
        null = self.pool.null_block
        hits = [block for hit in computed.groups for block in hit if block is not null]
        idle = sum(1 for block in hits if block.ref_count == 0)
        return self.most_held(request.num_tokens, step) - len(hits) + idle <= self.pool.num_free

    def num_common_prefix_blocks(self, request_id: str) -> list[int]:
        """For each group, the leading blocks of a request that every live request shares."""
        return [group.num_common(request_id, len(self.requests)) for group in self.groups]

    def reset_prefix_cache(self) -> bool:
        """Forget everything cached; False, with nothing changed, while any request is live."""
        return self.pool.reset()

    def take_events(self) -> list[KVEvent]:
        """KV events since the last call; empty unless `record_events` is set."""
        return [self.described(event) for event in self.pool.take_events()]

    def described(self, event: KVEvent) -> KVEvent:
        """An event with what its group tells of itself."""
        return self.groups[event.group or 0].described(event) if isinstance(event, BlockStored) else event

    def stats(self) -> PoolStats:
        """Figures of this moment. Counts idle cached blocks, so it costs a walk over the pool."""
        return pool_stats(self.pool, self.block_size, self.lookups)

    def check_integrity(self, held: Counter[int] | None = None) -> None:
        """Raise AssertionError, naming the broken rule, unless every invariant holds.

        Args:
            held: holders outside the tables, by block id (`Pins.held`).
        """
        check_integrity(self.pool, self.groups, held)
