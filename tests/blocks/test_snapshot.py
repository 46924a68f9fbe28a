"""A late subscriber: a snapshot and later events lead to the same state as all events."""

from collections import Counter
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kvproxy.blocks.cache_request import CacheRequest, MMItem
from kvproxy.blocks.events import AllBlocksCleared, BlockRemoved, BlockStored, KVEvent
from kvproxy.blocks.manager import KVCacheManager
from kvproxy.blocks.single_type_manager import GroupSpec


class Subscriber:
    """Number of copies and content of each block. Groups may have blocks with the same hash."""

    def __init__(self) -> None:
        self.copies: Counter[tuple[int | None, bytes]] = Counter()
        self.content: dict[tuple[int | None, bytes], tuple[Any, ...]] = {}

    def apply(self, event: KVEvent) -> None:
        if isinstance(event, AllBlocksCleared):
            self.copies.clear()
            self.content.clear()
        elif isinstance(event, BlockRemoved):
            for block in ((event.group, digest) for digest in event.hashes):
                self.copies[block] -= 1
                if not self.copies[block]:
                    del self.copies[block], self.content[block]
        else:
            self.store(event)

    def store(self, event: BlockStored) -> None:
        parent, size = event.parent, event.block_size
        for index, digest in enumerate(event.hashes):
            self.copies[event.group, digest] += 1
            tokens = event.tokens[index * size : (index + 1) * size]
            extra = event.extra_keys[index] if event.extra_keys else None
            self.content[event.group, digest] = (parent, tokens, size, event.lora, extra)
            parent = digest


GROUPS = [[GroupSpec("full", 4), GroupSpec("sliding_window", 2, 5)], [GroupSpec("full", 2), GroupSpec("full", 4)]]


@pytest.mark.parametrize("groups", [None, *GROUPS])
@settings(max_examples=25, deadline=None)
@given(st.data())
def test_a_late_subscriber_catches_up(groups: list[GroupSpec] | None, data: st.DataObject) -> None:
    manager = KVCacheManager(24, 2, groups=groups, record_events=True)
    early = Subscriber()
    subscribers = [early]
    live: list[CacheRequest] = []

    def deliver() -> None:
        for event in manager.take_events():
            for subscriber in subscribers:
                subscriber.apply(event)

    for step in range(data.draw(st.integers(1, 25))):
        action = data.draw(st.sampled_from(["start", "start", "decode", "decode", "end", "reset", "join"]))
        if action == "start":
            tokens = data.draw(st.lists(st.integers(0, 1), min_size=1, max_size=10))
            salt = data.draw(st.sampled_from([None, "s"]))
            mm = data.draw(st.sampled_from([(), (MMItem("cat", 0, 3),)]))
            request = CacheRequest(str(step), tokens, salt=salt, mm=mm)
            computed = manager.get_computed_blocks(request)
            if manager.allocate_slots(request, len(tokens) - computed.num_tokens, computed) is not None:
                request.num_computed_tokens = len(tokens)
                live.append(request)
        elif action == "decode" and live:
            request = live[data.draw(st.integers(0, len(live) - 1))]
            request.append(data.draw(st.integers(0, 1)))
            if manager.allocate_slots(request, 1) is None:
                live.remove(request)
                manager.free(request)
            else:
                request.num_computed_tokens += 1
        elif action == "end" and live:
            manager.free(live.pop(data.draw(st.integers(0, len(live) - 1))))
        elif action == "reset":
            manager.reset_prefix_cache()
        elif action == "join":
            deliver()
            subscribers.append(Subscriber())
            for event in manager.snapshot():
                subscribers[-1].apply(event)
        if data.draw(st.booleans()):
            deliver()
    deliver()
    cached = Counter((block.group, block.hash) for block in manager.pool.blocks if block.hash is not None)
    for subscriber in subscribers:
        assert subscriber.copies == cached
        assert subscriber.content == early.content
