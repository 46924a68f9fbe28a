"""Eviction policies by name, and free queues that apply them."""

from collections.abc import Callable, Iterable

from kvproxy.blocks.block import KVCacheBlock
from kvproxy.blocks.eviction.free_queues import (
    EvictionPolicy,
    FreeKVCacheBlockQueue,
    FreeQueue,
    GroupHash,
    PolicyQueue,
    PriorityQueue,
)
from kvproxy.blocks.eviction.lru import LRU
from kvproxy.blocks.eviction.session_policy import SessionPolicy
from kvproxy.doors import EVICTION

__all__ = ["LRU", "EvictionPolicy", "queue_factory", "session_policy_of"]


def queue_factory(policy: str, capacity: int, *, priorities: bool) -> Callable[[Iterable[KVCacheBlock]], FreeQueue]:
    """Return a function that makes a queue with an eviction policy of `EVICTION`. Raises PluginError."""
    is_lru = EVICTION.load(policy) is LRU

    def make_queue(blocks: Iterable[KVCacheBlock] = ()) -> FreeQueue:
        # A linked list is several times faster than a policy.
        return FreeKVCacheBlockQueue(blocks) if is_lru else PolicyQueue(EVICTION.create(policy, capacity), blocks)

    return (lambda blocks: PriorityQueue(make_queue, blocks)) if priorities else make_queue


def session_policy_of(queue: FreeQueue, priority: int) -> SessionPolicy[GroupHash] | None:
    level = queue.queue_of_priority(priority) if isinstance(queue, PriorityQueue) else queue
    policy = level.policy if isinstance(level, PolicyQueue) else None
    return policy if isinstance(policy, SessionPolicy) else None
