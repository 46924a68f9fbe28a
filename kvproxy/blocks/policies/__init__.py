"""Orders of eviction other than LRU, and the queue that lets the pool follow them."""

from collections.abc import Callable, Iterable
from typing import Any

from kvproxy.blocks.block import Block
from kvproxy.blocks.free_queue import FreeBlockQueue, FreeQueue
from kvproxy.blocks.policies.arc import ARC
from kvproxy.blocks.policies.lfu import LFU
from kvproxy.blocks.policies.order import Order
from kvproxy.blocks.policies.priority import PriorityQueue
from kvproxy.blocks.policies.queue import PolicyQueue
from kvproxy.blocks.policies.s3fifo import S3FIFO

ORDERS: dict[str, Callable[[int], Order[Any]]] = {"lfu": LFU, "s3fifo": S3FIFO, "arc": ARC}

__all__ = ["ORDERS", "Order", "PolicyQueue", "PriorityQueue", "make_queue", "queue_maker"]


def make_queue(policy: str, blocks: Iterable[Block], capacity: int) -> FreeQueue:
    """A queue of idle blocks that follows a policy.

    Args:
        policy: lru, or a name of `ORDERS`.
        blocks: idle blocks to begin with.
        capacity: blocks of the pool, from which some policies size their lists.

    Raises:
        ValueError: the policy is unknown.
    """
    if policy == "lru":
        return FreeBlockQueue(blocks)
    if policy not in ORDERS:
        raise ValueError(f"unknown eviction policy {policy!r}: use lru, {', '.join(ORDERS)}")
    return PolicyQueue(ORDERS[policy](capacity), blocks)


def queue_maker(policy: str, capacity: int, *, priorities: bool) -> Callable[[Iterable[Block]], FreeQueue]:
    """What builds a queue of a policy from idle blocks; with `priorities`, one such queue for each priority."""
    if priorities:
        return lambda blocks: PriorityQueue(lambda: make_queue(policy, (), capacity), blocks)
    return lambda blocks: make_queue(policy, blocks, capacity)
