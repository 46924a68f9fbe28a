"""Orders of eviction other than LRU, each an implementation of the `FreeQueue` protocol."""

from collections.abc import Iterable

from kvproxy.blocks.block import Block
from kvproxy.blocks.free_queue import FreeBlockQueue, FreeQueue


def make_queue(policy: str, blocks: Iterable[Block]) -> FreeQueue:
    """A queue of idle blocks that follows a policy.

    Raises:
        ValueError: the policy is unknown.
    """
    if policy == "lru":
        return FreeBlockQueue(blocks)
    raise ValueError(f"unknown eviction policy {policy!r}: use lru")
