"""The pool's idle blocks in the order of a policy."""

import copy
from collections import OrderedDict
from collections.abc import Iterable, Iterator, Sequence

from kvproxy.blocks.block import Block
from kvproxy.blocks.policies.order import Order

Name = tuple[int | None, bytes]
"""Group and digest: a policy counts the uses of content, whichever block holds it."""


class PolicyQueue:
    """A `FreeQueue` that asks a policy which cached block goes first.

    Blocks that cache nothing go before all others, then second copies of content that another idle block holds. A block is
    passed over while an idle child of it is cached, since the child could not be reached without it. (A child in use
    needs no such care: its request holds the parent too, wherever attention reaches that far back.)

    Args:
        order: the policy, still empty.
        blocks: idle blocks to begin with, none of which caches anything.
    """

    def __init__(self, order: Order[Name], blocks: Iterable[Block] = ()) -> None:
        self.num_free = 0
        self._order = order
        self._spare: OrderedDict[int, Block] = OrderedDict()
        self._named: dict[Name, Block] = {}
        self._children: dict[Name, int] = {}
        self.append_n(list(blocks))

    def popleft_n(self, count: int) -> list[Block]:
        if count > self.num_free:
            raise RuntimeError(f"{count} blocks asked of {self.num_free} free ones")
        popped = []
        for _ in range(count):
            if self._spare:
                popped.append(self._spare.popitem(last=False)[1])
            else:
                name = _victim(self._order, self._children)
                popped.append(self._forget(name))
        self.num_free -= count
        return popped

    def remove_n(self, blocks: Sequence[Block]) -> None:
        for block in blocks:
            self._remove(block)
        self.num_free -= len(blocks)

    def _remove(self, block: Block) -> None:
        other: Block | None = block
        if self._spare.pop(block.id, None) is not None:
            # The hit counts for the content, so the copy that held its place in the order becomes the spare one.
            other = self._named.get(_name(block)) if block.hash is not None else None
            if other is not None:
                self._spare[other.id] = other
        elif block.hash is None or self._named.get(_name(block)) is not block:
            raise RuntimeError(f"{block!r} is not in the free queue")
        if other is not None:
            self._order.remove(_name(block))
            self._forget(_name(block))

    def append_n(self, blocks: Sequence[Block]) -> None:
        for block in blocks:
            if block.hash is None or _name(block) in self._named:
                self._spare[block.id] = block
                continue
            self._named[_name(block)] = block
            self._order.add(_name(block))
            parent = _parent(block)
            if parent is not None:
                self._children[parent] = self._children.get(parent, 0) + 1
        self.num_free += len(blocks)

    def prepend_n(self, blocks: Sequence[Block]) -> None:
        for block in reversed(blocks):
            self._spare[block.id] = block
            self._spare.move_to_end(block.id, last=False)
        self.num_free += len(blocks)

    def _forget(self, name: Name) -> Block:
        block = self._named.pop(name)
        _drop_child(self._children, _parent(block))
        return block

    def __iter__(self) -> Iterator[Block]:
        """Blocks in the order in which they would go if none were added or hit; costs a copy of the policy's state."""
        yield from list(self._spare.values())
        order, children, named = copy.deepcopy(self._order), dict(self._children), dict(self._named)
        for _ in range(len(named)):
            block = named[_victim(order, children)]
            _drop_child(children, _parent(block))
            yield block


def _victim(order: Order[Name], children: dict[Name, int]) -> Name:
    passed = []
    name = order.pop()
    while name in children:
        passed.append(name)
        name = order.pop()
    for parent in reversed(passed):
        order.restore(parent)
    return name


def _drop_child(children: dict[Name, int], parent: Name | None) -> None:
    if parent is None:
        return
    children[parent] -= 1
    if not children[parent]:
        del children[parent]


def _name(block: Block) -> Name:
    assert block.hash is not None
    return block.group, block.hash


def _parent(block: Block) -> Name | None:
    return None if block.parent is None else (block.group, block.parent)
