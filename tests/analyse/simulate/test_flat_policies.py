"""Eviction policies on blocks without prefixes have the hits of libCacheSim."""

import pytest

from tests.reference.flat_policies import RECORDED, our_hits, stream


@pytest.mark.parametrize(("name", "capacity"), RECORDED)
def test_hits_equal_those_of_libcachesim(name: str, capacity: int) -> None:
    blocks, recorded = stream(name), RECORDED[name, capacity]
    found = {policy: our_hits(blocks, capacity, policy) for policy in recorded}
    assert (found["lru"], found["belady"]) == (recorded["lru"], recorded["belady"])
    # The sizes of the queues differ.
    if "s3fifo" in recorded:
        assert found["s3fifo"] == pytest.approx(recorded["s3fifo"], rel=0.02)
