"""Prefixes in computation: kept until their events should have arrived, bounded, and removed after a failure."""

import pytest

from kvproxy.upstreams import pending_prefixes
from kvproxy.upstreams.pending_prefixes import COMPUTE_SECONDS, EVENT_SECONDS, PendingPrefixes


class Clock:
    now = 100.0

    def __call__(self) -> float:
        return self.now


def test_a_prefix_counts_until_its_events_should_have_arrived() -> None:
    clock = Clock()
    pending = PendingPrefixes(clock)
    prompt = pending.add([1, 2, 3])
    assert [pending.prefix_length(hashes) for hashes in ([1, 2, 9], [1, 2, 3, 4], [9, 2])] == [2, 3, 0]
    clock.now += COMPUTE_SECONDS - EVENT_SECONDS - 1
    prompt.expect_events()
    clock.now += EVENT_SECONDS - 0.1
    prompt.fail()  # The end of the response.
    assert pending.prefix_length([1, 2, 3]) == 3
    clock.now += 0.2
    assert pending.prefix_length([1, 2, 3]) == 0


def test_a_failed_or_slow_prompt_counts_no_more() -> None:
    clock = Clock()
    pending = PendingPrefixes(clock)
    failed, slow = pending.add([1]), pending.add([2])
    failed.fail()
    assert (pending.prefix_length([1]), pending.prefix_length([2])) == (0, 1)
    clock.now += COMPUTE_SECONDS
    assert pending.prefix_length(slow.hashes) == 0
    pending.add([3])
    assert list(pending._by_hash) == [3]


@pytest.mark.parametrize("failed", [0, 1])
def test_a_prefix_counts_while_one_of_its_prompts_is_computed(failed: int) -> None:
    pending = PendingPrefixes(Clock())
    prompts = [pending.add([1, 2]), pending.add([1, 2, 3])]
    prompts[failed].fail()
    assert pending.prefix_length([1, 2]) == 2
    prompts[1 - failed].fail()
    assert pending.prefix_length([1, 2]) == 0
    # Equal hashes in one prompt.
    pending.add([7, 7])
    assert sorted(pending._by_hash) == [7]


def test_prompts_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pending_prefixes, "MAX_BLOCKS", 10)
    pending = PendingPrefixes()
    for start in range(0, 100, 4):
        pending.add(range(start, start + 4))
    assert sorted(pending._by_hash) == list(range(92, 100))
