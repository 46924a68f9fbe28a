"""Each policy against its plainest form, on random uses of a small cache."""

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kvproxy.blocks.policies import ORDERS
from tests.reference.naive_orders import NaiveARC, NaiveLFU, NaiveS3FIFO

NAIVE: dict[str, Any] = {"lfu": NaiveLFU, "s3fifo": NaiveS3FIFO, "arc": NaiveARC}


def test_every_policy_has_its_plain_form() -> None:
    assert set(NAIVE) == set(ORDERS)


@pytest.mark.parametrize("policy", ORDERS)
@settings(max_examples=300, deadline=None)
@given(st.lists(st.lists(st.integers(0, 14), min_size=1, max_size=3, unique=True), max_size=80), st.integers(3, 12))
def test_victims_are_the_plain_forms(policy: str, uses: list[list[int]], capacity: int) -> None:
    order, plain = ORDERS[policy](capacity), NAIVE[policy](capacity)
    held: set[int] = set()
    for batch in uses:
        # Keys of a batch are in use at the same time, as blocks of one request are.
        for key in batch:
            if key in held:
                order.remove(key)
                plain.remove(key)
        held |= set(batch)
        while len(held) > capacity:
            victim = order.pop()
            assert victim == plain.pop()
            assert victim not in batch
            held.remove(victim)
        for key in batch:
            order.add(key)
            plain.add(key)


@pytest.mark.parametrize("policy", ORDERS)
def test_nothing_idle_is_a_lookup_error(policy: str) -> None:
    order = ORDERS[policy](4)
    with pytest.raises(LookupError):
        order.pop()
    order.add(1)
    order.remove(1)
    with pytest.raises(LookupError):
        order.pop()


@pytest.mark.parametrize(("policy", "first"), [("lfu", "a"), ("arc", "a"), ("s3fifo", "b")])
def test_what_is_taken_back_is_idle_again(policy: str, first: str) -> None:
    """It is the next to go; with S3-FIFO after the others, so that it is not passed at every eviction."""
    order = ORDERS[policy](3)
    for key in "abc":
        order.add(key)
    assert order.pop() == "a"
    order.restore("a")
    assert order.pop() == first
    order.restore(first)
    order.remove("a")
    order.add("a")
    popped = [order.pop() for _ in range(3)]
    assert sorted(popped) == ["a", "b", "c"]
    # It was used again, and the others were not.
    assert policy == "s3fifo" or popped[-1] == "a"
    with pytest.raises(LookupError):
        order.pop()
