"""Tiers together: order, promotion, damage, failures, and a bounded backlog."""

import threading
from collections.abc import Iterator

import pytest

from kvproxy.tiers.chunk_store import ChunkData, TierError
from kvproxy.tiers.tier_chain import TierChain
from tests.tiers.doubles import DictStore


def whole(data: ChunkData) -> bytes | None:
    return None if bytes(data).startswith(b"bad") else bytes(data)


@pytest.fixture
def stores() -> tuple[DictStore, DictStore, DictStore]:
    return DictStore("fast"), DictStore("middle"), DictStore("slow", remote=True)


@pytest.fixture
def chain(stores: tuple[DictStore, ...]) -> Iterator[TierChain]:
    chain = TierChain(stores)
    yield chain
    chain.close()


def test_a_chunk_is_written_through_and_found_in_the_fastest(stores: tuple[DictStore, ...], chain: TierChain) -> None:
    chain.save("k", b"data")
    assert chain.flush(300)
    assert [store.chunks for store in stores] == [{"k": b"data"}] * 3
    assert chain.load("k", whole) == b"data"
    assert [store.calls["get"] for store in stores] == [1, 0, 0]


def test_a_hit_in_a_slow_tier_is_promoted(stores: tuple[DictStore, ...], chain: TierChain) -> None:
    stores[2].put("k", b"data")
    assert chain.may_contain("k")
    assert chain.find_tier("k") == "slow"
    assert chain.load("k", whole) == b"data"
    assert chain.flush(300)
    assert chain.find_tier("k") == "fast"
    assert stores[2].calls["put"] == 1
    assert [row.hits for row in chain.stats()] == [0, 0, 1]


def test_a_damaged_chunk_is_deleted_and_loaded_from_the_next_tier(
    stores: tuple[DictStore, ...], chain: TierChain
) -> None:
    stores[0].put("k", b"bad data")
    stores[1].put("k", b"data")
    assert chain.load("k", whole) == b"data"
    assert chain.flush(300)
    assert stores[0].chunks == {"k": b"data"}
    assert chain.stats()[0].damaged == 1


def test_a_failing_tier_is_skipped(stores: tuple[DictStore, ...], chain: TierChain) -> None:
    stores[0].failing = True
    chain.save("k", b"data")
    assert chain.flush(300)
    assert chain.load("k", whole) == b"data"
    assert chain.stats()[0].errors > 0
    assert stores[1].chunks == {"k": b"data"}
    stores[2].failing = True
    assert not chain.may_contain("unknown")


def test_a_tier_fails_until_it_has_written_a_chunk_again(stores: tuple[DictStore, ...], chain: TierChain) -> None:
    def failures() -> list[str | None]:
        return [tier.failure for tier in chain.stats()]

    def save(key: str) -> None:
        chain.save(key, b"data")
        assert chain.flush(300)

    save("before")
    stores[0].failing = True
    save("lost")
    assert failures() == ["fast fails", None, None]
    assert [tier.available for tier in chain.stats()] == [False, True, True]
    stores[0].failing = False
    assert chain.load("before", whole) == b"data"
    assert failures()[0] == "fast fails"
    save("after")
    assert failures() == [None] * 3
    # A tier that is only read works again with the first chunk that it finds.
    stores[2].failing = True
    assert chain.find_tier("absent") is None
    assert failures()[2] == "slow fails"
    stores[2].failing = False
    stores[0].chunks.clear()
    stores[1].chunks.clear()
    assert chain.load("before", whole) == b"data"
    assert failures() == [None] * 3


def test_the_backlog_is_bounded_and_a_refused_chunk_can_be_saved_later() -> None:
    gate = threading.Event()
    store = DictStore()
    chain = TierChain([store], max_pending_bytes=100)
    assert chain.save("first", b"x" * 60, lambda: gate.wait(300) and None)
    assert not chain.should_save("first")
    assert not chain.has_room(60)
    assert not chain.save("second", b"x" * 60)
    assert chain.should_save("second")
    assert chain.stats()[0].dropped == 0, "the chunk can be saved later"
    chain.count_dropped("second")
    assert chain.stats()[0].dropped == 1
    gate.set()
    assert chain.flush(300)
    assert chain.has_room(1000)
    assert chain.save("second", b"x" * 60)
    chain.close()
    assert set(store.chunks) == {"first", "second"}


def test_a_tier_is_cleared_after_pending_chunks(stores: tuple[DictStore, ...], chain: TierChain) -> None:
    gate = threading.Event()
    chain.save("own-1", b"data", lambda: gate.wait(300) and None)
    chain.save("other-1", b"data")
    threading.Timer(0.05, gate.set).start()
    assert chain.clear("middle") == 2
    assert stores[1].chunks == {}
    assert set(stores[0].chunks) == {"own-1", "other-1"}
    assert chain.should_save("own-1")
    assert chain.clear("nowhere") is None
    stores[2].failing = True
    with pytest.raises(TierError, match="fails"):
        chain.clear("slow")
    gate.clear()
    chain.save("own-2", b"data", lambda: gate.wait(300) and None)
    with pytest.raises(TierError, match="busy"):
        chain.clear("fast", timeout=0.05)
    gate.set()


def test_a_failed_task_does_not_end_the_writer() -> None:
    store = DictStore()
    chain = TierChain([store])

    def broken() -> None:
        raise ValueError("failed")

    chain.save("a", b"data", broken)
    chain.save("b", b"data")
    assert chain.flush(300)
    assert set(store.chunks) == {"b"}
    assert chain.should_save("a")
    chain.close()


def test_a_closed_chain_refuses_chunks(stores: tuple[DictStore, ...]) -> None:
    chain = TierChain(stores)
    stores[2].put("slow", b"data")
    chain.close()
    assert not chain.save("k", b"data")
    # A load that ends after the close promotes nothing, and does not fail.
    assert chain.load("slow", whole) == b"data"
    assert stores[0].chunks == {}
