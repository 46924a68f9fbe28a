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

__all__ = ["POLICIES", "EvictionPolicy", "make_queue", "queue_factory", "session_policy_of"]


def make_queue(policy: str, blocks: Iterable[KVCacheBlock], capacity: int) -> FreeQueue:
    if policy == "lru":
        return FreeKVCacheBlockQueue(blocks)
    if policy not in POLICIES:
        raise ValueError(f"unknown eviction policy {policy!r}: use lru, {', '.join(POLICIES)}")
    return PolicyQueue(POLICIES[policy](capacity), blocks)


def queue_factory(policy: str, capacity: int, *, priorities: bool) -> Callable[[Iterable[KVCacheBlock]], FreeQueue]:
    if priorities:
        return lambda blocks: PriorityQueue(lambda: make_queue(policy, (), capacity), blocks)
    return lambda blocks: make_queue(policy, blocks, capacity)


def session_policy_of(queue: FreeQueue, priority: int) -> SessionPolicy[GroupHash] | None:
    level = queue.level(priority) if isinstance(queue, PriorityQueue) else queue
    policy = level.policy if isinstance(level, PolicyQueue) else None
    return policy if isinstance(policy, SessionPolicy) else None
