"""Eviction policies by name, and free queues that apply them."""

from collections.abc import Callable, Iterable
from typing import Any

from kvproxy.blocks.block import KVCacheBlock
from kvproxy.blocks.eviction.free_queues import (
    EvictionPolicy,
    FreeKVCacheBlockQueue,
    FreeQueue,
    GroupHash,
    PolicyQueue,
    PriorityQueue,
)
from kvproxy.blocks.eviction.s3fifo import S3FIFO
from kvproxy.blocks.eviction.session_policy import SessionPolicy

POLICIES: dict[str, Callable[[int], EvictionPolicy[Any]]] = {"s3fifo": S3FIFO, "sessions": SessionPolicy}

__all__ = ["POLICIES", "EvictionPolicy", "queue_factory", "session_policy_of"]


def queue_factory(policy: str, capacity: int, *, priorities: bool) -> Callable[[Iterable[KVCacheBlock]], FreeQueue]:
    def make_queue(blocks: Iterable[KVCacheBlock] = ()) -> FreeQueue:
        if policy == "lru":
            return FreeKVCacheBlockQueue(blocks)
        return PolicyQueue(POLICIES[policy](capacity), blocks)

    if policy != "lru" and policy not in POLICIES:
        raise ValueError(f"unknown eviction policy {policy!r}: use lru, {', '.join(POLICIES)}")
    return (lambda blocks: PriorityQueue(make_queue, blocks)) if priorities else make_queue


def session_policy_of(queue: FreeQueue, priority: int) -> SessionPolicy[GroupHash] | None:
    level = queue.queue_of_priority(priority) if isinstance(queue, PriorityQueue) else queue
    policy = level.policy if isinstance(level, PolicyQueue) else None
    return policy if isinstance(policy, SessionPolicy) else None
