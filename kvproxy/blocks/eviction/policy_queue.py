import copy
from collections import OrderedDict
from collections.abc import Iterable, Iterator, Mapping, Sequence

from kvproxy.blocks.block import KVCacheBlock
from kvproxy.blocks.eviction.eviction_policy import EvictionPolicy, Key

GroupHash = tuple[int | None, bytes]


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
        if count > self.num_free_blocks:
            raise RuntimeError(f"cannot take {count} blocks: {self.num_free_blocks} are free")
        popped = []
        for _ in range(count):
            if self._unordered:
                popped.append(self._unordered.popitem(last=False)[1])
            else:
                popped.append(self._pop_cached(pop_leaf(self.policy, self._num_children)))
        self.num_free_blocks -= count
        return popped

    def remove_n(self, blocks: Sequence[KVCacheBlock]) -> None:
        for block in blocks:
            self._remove(block)
        self.num_free_blocks -= len(blocks)

    def _remove(self, block: KVCacheBlock) -> None:
        ordered: KVCacheBlock | None = block
        if self._unordered.pop(block.id, None) is not None:
            # The copy in the policy's order becomes a duplicate.
            ordered = self._cached.get(_key(block)) if block.hash is not None else None
            if ordered is not None:
                self._unordered[ordered.id] = ordered
        elif block.hash is None or self._cached.get(_key(block)) is not block:
            raise RuntimeError(f"{block!r} is not in the free queue")
        if ordered is not None:
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
