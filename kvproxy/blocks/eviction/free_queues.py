"""Queues of free blocks in eviction order. `FreeKVCacheBlockQueue` behaves like vLLM v1's class."""

import copy
from collections import OrderedDict
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from typing import Protocol, TypeVar

from kvproxy.blocks.block import KVCacheBlock

Key = TypeVar("Key", bound=Hashable)
GroupHash = tuple[int | None, bytes]


class FreeQueue(Protocol):
    num_free_blocks: int

    def popleft_n(self, count: int) -> list[KVCacheBlock]:
        """Remove and return the next blocks to evict; `num_free_blocks` must be at least `count`."""

    def remove_blocks(self, blocks: Sequence[KVCacheBlock]) -> None:
        """Remove blocks at any position, because a request uses them again."""

    def append_n(self, blocks: Sequence[KVCacheBlock]) -> None:
        """Add cached blocks as the most recently used ones, in the order of `blocks`."""

    def prepend_n(self, blocks: Sequence[KVCacheBlock]) -> None:
        """Add uncached blocks, which are allocated next, in the order of `blocks`."""

    def __iter__(self) -> Iterator[KVCacheBlock]: ...


class FreeKVCacheBlockQueue:
    """LRU order in a linked list, from which a block can be removed in constant time."""

    __slots__ = ("_head", "_tail", "num_free_blocks")

    def __init__(self, blocks: Iterable[KVCacheBlock] = ()) -> None:
        self._head = KVCacheBlock(-1)
        self._tail = KVCacheBlock(-1)
        self._head.next = self._tail
        self._tail.prev = self._head
        self.num_free_blocks = 0
        self.append_n(list(blocks))

    def popleft_n(self, count: int) -> list[KVCacheBlock]:
        popped: list[KVCacheBlock] = []
        block = self._head.next
        for _ in range(count):
            assert block is not None
            popped.append(block)
            following = block.next
            block.prev = block.next = None
            block = following
        if block is None:
            raise RuntimeError(f"cannot take {count} blocks: {self.num_free_blocks} are free")
        self._head.next = block
        block.prev = self._head
        self.num_free_blocks -= count
        return popped

    def remove_blocks(self, blocks: Sequence[KVCacheBlock]) -> None:
        for block in blocks:
            before, after = block.prev, block.next
            if before is None or after is None:
                raise RuntimeError(f"{block!r} is not in the free queue")
            before.next = after
            after.prev = before
            block.prev = block.next = None
        self.num_free_blocks -= len(blocks)

    def append_n(self, blocks: Sequence[KVCacheBlock]) -> None:
        last = self._tail.prev
        assert last is not None
        self._link(last, blocks, self._tail)

    def prepend_n(self, blocks: Sequence[KVCacheBlock]) -> None:
        first = self._head.next
        assert first is not None
        self._link(self._head, blocks, first)

    def _link(self, before: KVCacheBlock, blocks: Sequence[KVCacheBlock], after: KVCacheBlock) -> None:
        for block in blocks:
            block.prev = before
            before.next = block
            before = block
        before.next = after
        after.prev = before
        self.num_free_blocks += len(blocks)

    def __iter__(self) -> Iterator[KVCacheBlock]:
        block = self._head.next
        while block is not None and block is not self._tail:
            yield block
            block = block.next


class EvictionPolicy(Protocol[Key]):
    """Orders idle blocks for eviction. Keys are block hashes; `remove` is called when a request uses a block again."""

    def add(self, key: Key) -> None: ...

    def remove(self, key: Key) -> None: ...

    def pop(self) -> Key:
        """Remove and return the next key to evict. Raises LookupError if the policy has no key."""

    def restore(self, key: Key) -> None:
        """Add a popped key as the most recent one, because a later block of its chain must be evicted first."""


class PolicyQueue:
    """A `FreeQueue` in which an eviction policy selects among the cached blocks.

    Uncached blocks, and idle blocks with the same content as another idle block, are allocated first. A chain is
    evicted from its end, because a lookup requires all previous blocks.
    """

    def __init__(self, policy: EvictionPolicy[GroupHash], blocks: Iterable[KVCacheBlock] = ()) -> None:
        self.num_free_blocks = 0
        self.policy = policy
        self._unordered: OrderedDict[int, KVCacheBlock] = OrderedDict()  # uncached blocks and duplicates, by id
        self._cached: dict[GroupHash, KVCacheBlock] = {}
        self._num_children: dict[GroupHash, int] = {}
        self.append_n(list(blocks))

    def popleft_n(self, count: int) -> list[KVCacheBlock]:
        popped = []
        for _ in range(count):
            if self._unordered:
                popped.append(self._unordered.popitem(last=False)[1])
            else:
                popped.append(self._pop_cached(pop_leaf(self.policy, self._num_children)))
        self.num_free_blocks -= count
        return popped

    def remove_blocks(self, blocks: Sequence[KVCacheBlock]) -> None:
        for block in blocks:
            self._remove(block)
        self.num_free_blocks -= len(blocks)

    def _remove(self, block: KVCacheBlock) -> None:
        if self._unordered.pop(block.id, None) is not None:
            ordered = self._cached.get(_key(block)) if block.hash is not None else None
            if ordered is None:
                return
            # The copy in the policy's order becomes a duplicate.
            self._unordered[ordered.id] = ordered
        self.policy.remove(_key(block))
        self._pop_cached(_key(block))

    def append_n(self, blocks: Sequence[KVCacheBlock]) -> None:
        for block in blocks:
            if block.hash is None or _key(block) in self._cached:
                self._unordered[block.id] = block
                continue
            self._cached[_key(block)] = block
            self.policy.add(_key(block))
            parent = _parent_key(block)
            if parent is not None:
                self._num_children[parent] = self._num_children.get(parent, 0) + 1
        self.num_free_blocks += len(blocks)

    def prepend_n(self, blocks: Sequence[KVCacheBlock]) -> None:
        for block in reversed(blocks):
            self._unordered[block.id] = block
            self._unordered.move_to_end(block.id, last=False)
        self.num_free_blocks += len(blocks)

    def _pop_cached(self, key: GroupHash) -> KVCacheBlock:
        block = self._cached.pop(key)
        remove_child(self._num_children, _parent_key(block))
        return block

    def __iter__(self) -> Iterator[KVCacheBlock]:
        yield from list(self._unordered.values())
        policy, num_children, cached = copy.deepcopy(self.policy), dict(self._num_children), dict(self._cached)
        for _ in range(len(cached)):
            block = cached[pop_leaf(policy, num_children)]
            remove_child(num_children, _parent_key(block))
            yield block


def pop_leaf(policy: EvictionPolicy[Key], num_children: Mapping[Key, int]) -> Key:
    skipped = []
    key = policy.pop()
    while key in num_children:
        skipped.append(key)
        key = policy.pop()
    for parent in reversed(skipped):
        policy.restore(parent)
    return key


def remove_child(num_children: dict[Key, int], parent: Key | None) -> None:
    if parent is None:
        return
    num_children[parent] -= 1
    if not num_children[parent]:
        del num_children[parent]


def _key(block: KVCacheBlock) -> GroupHash:
    assert block.hash is not None
    return block.group, block.hash


def _parent_key(block: KVCacheBlock) -> GroupHash | None:
    return None if block.parent is None else (block.group, block.parent)


class PriorityQueue:
    """A `FreeQueue` that evicts blocks of lower priorities first. It has one queue per priority.

    A block's priority is at least the priority of the next block in a chain, so a chain is evicted from its end.
    """

    def __init__(self, make_queue: Callable[[], FreeQueue], blocks: Iterable[KVCacheBlock] = ()) -> None:
        self._make_queue = make_queue
        self._uncached = FreeKVCacheBlockQueue()
        self._queues: dict[int, FreeQueue] = {}
        self.num_free_blocks = 0
        self.append_n(list(blocks))

    def popleft_n(self, count: int) -> list[KVCacheBlock]:
        self.num_free_blocks -= count
        popped: list[KVCacheBlock] = []
        for queue in self._queues_in_order():
            popped += queue.popleft_n(min(count - len(popped), queue.num_free_blocks))
            if len(popped) == count:
                break
        return popped

    def remove_blocks(self, blocks: Sequence[KVCacheBlock]) -> None:
        for block in blocks:
            (self._uncached if block.hash is None else self.queue_of_priority(block.priority)).remove_blocks([block])
        self.num_free_blocks -= len(blocks)

    def append_n(self, blocks: Sequence[KVCacheBlock]) -> None:
        self.num_free_blocks += len(blocks)
        if blocks and all(block.hash is not None and block.priority == blocks[0].priority for block in blocks):
            self.queue_of_priority(blocks[0].priority).append_n(blocks)
            return
        for block in blocks:
            (self._uncached if block.hash is None else self.queue_of_priority(block.priority)).append_n([block])

    def prepend_n(self, blocks: Sequence[KVCacheBlock]) -> None:
        self._uncached.prepend_n(blocks)
        self.num_free_blocks += len(blocks)

    def __iter__(self) -> Iterator[KVCacheBlock]:
        for queue in self._queues_in_order():
            yield from queue

    def queue_of_priority(self, priority: int) -> FreeQueue:
        queue = self._queues.get(priority)
        if queue is None:
            queue = self._queues[priority] = self._make_queue()
        return queue

    def _queues_in_order(self) -> list[FreeQueue]:
        return [self._uncached, *(self._queues[priority] for priority in sorted(self._queues))]
