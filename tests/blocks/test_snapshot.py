"""A late listener: a snapshot and the events after it lead to the same state as all events from the start."""

from collections import Counter
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kvproxy.blocks.events import AllBlocksCleared, BlockRemoved, BlockStored, KVEvent
from kvproxy.blocks.groups import GroupSpec
from kvproxy.blocks.manager import KVCacheManager
from kvproxy.blocks.request import CacheRequest, MMItem
from kvproxy.blocks.snapshot import take_snapshot


class Listener:
    """Copies by digest, and what is known of each digest."""

    def __init__(self) -> None:
        self.copies: Counter[bytes] = Counter()
        self.known: dict[bytes, tuple[Any, ...]] = {}

    def apply(self, event: KVEvent) -> None:
        if isinstance(event, AllBlocksCleared):
            self.copies.clear()
            self.known.clear()
        elif isinstance(event, BlockRemoved):
            self.copies.subtract(event.hashes)
            for digest in event.hashes:
                if not self.copies[digest]:
                    del self.copies[digest], self.known[digest]
        else:
            self.store(event)

    def store(self, event: BlockStored) -> None:
        parent, size = event.parent, event.block_size
        for index, digest in enumerate(event.hashes):
            self.copies[digest] += 1
            tokens = event.tokens[index * size : (index + 1) * size]
            extra = event.extra_keys[index] if event.extra_keys else None
            self.known[digest] = (parent, tokens, size, event.lora, extra, event.group)
            parent = digest


@pytest.mark.parametrize("groups", [None, [GroupSpec("full", 4), GroupSpec("sliding_window", 2, 5)]])
@settings(max_examples=60, deadline=None)
@given(st.data())
def test_a_late_listener_catches_up(groups: list[GroupSpec] | None, data: st.DataObject) -> None:
    manager = KVCacheManager(24, 2, groups=groups, keep_tokens=True, record_events=True)
    early, late = Listener(), Listener()
    number = 0
    joined: int | None = None
    live: list[CacheRequest] = []
    for step in range(data.draw(st.integers(1, 25))):
        action = data.draw(st.sampled_from(["start", "start", "end", "reset", "join"]))
        if action == "start":
            tokens = data.draw(st.lists(st.integers(0, 1), min_size=1, max_size=10))
            extras: dict[str, Any] = {"salt": data.draw(st.sampled_from([None, "s"]))}
            extras["mm"] = data.draw(st.sampled_from([(), (MMItem("cat", 0, 3),)]))
            request = CacheRequest(str(step), tokens, **extras)
            computed = manager.get_computed_blocks(request)
            if manager.allocate_slots(request, len(tokens) - computed.num_tokens, computed) is not None:
                request.num_computed_tokens = len(tokens)
                live.append(request)
        elif action == "end" and live:
            manager.free(live.pop(data.draw(st.integers(0, len(live) - 1))))
        elif action == "reset":
            manager.reset_prefix_cache()
        elif action == "join" and joined is None:
            snapshot = take_snapshot(manager)
            joined = snapshot.sequence
            for event in snapshot.events:
                late.apply(event)
        if data.draw(st.booleans()):
            number = deliver(manager, number, early, late, joined)
    number = deliver(manager, number, early, late, joined)
    cached = Counter(block.hash for block in manager.pool.blocks if block.hash is not None)
    assert early.copies == cached
    if joined is not None:
        assert late.copies == cached
        assert late.known == early.known


def deliver(manager: KVCacheManager, number: int, early: Listener, late: Listener, joined: int | None) -> int:
    for event in manager.take_events():
        early.apply(event)
        if joined is not None and number >= joined:
            late.apply(event)
        number += 1
    return number


def test_a_snapshot_needs_tokens_and_events() -> None:
    with pytest.raises(ValueError, match="keep_tokens and record_events"):
        take_snapshot(KVCacheManager(10, 4))
