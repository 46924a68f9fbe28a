"""Saving a sequence's chunks: every chunk while there is room, no chunk behind a missing one, and no wasted memory."""

import gc
import threading
from dataclasses import replace
from typing import get_args

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from kvproxy.blocks.block_hash import BlockHasher, HashAlgorithm
from kvproxy.blocks.cache_request import CacheRequest
from kvproxy.engine.chunk_transfer import PinnedBufferPool, allocate_pinned
from kvproxy.settings import TierSettings
from kvproxy.tiers.tier_chain import TierChain, build_chain
from tests.engine.driven import Driven
from tests.engine.models import VOCABULARY
from tests.tiers.doubles import DictStore

PROMPT = [(7 * place) % VOCABULARY for place in range(160)]


def driven_with(pending_chunks: float) -> tuple[Driven, DictStore, threading.Event]:
    driven = Driven(tiers={"host": "64MiB"})
    gate, store = threading.Event(), DictStore()
    size = driven.tiers._transfer.buffer_bytes(driven.tiers._transfer.chunk_names(_cache(), 0, 1)[0])
    driven.replace_chain(TierChain([store], max_pending_bytes=int(pending_chunks * size)))
    put = store.put
    store.put = lambda key, data: put(key, data) if gate.wait(300) else None  # type: ignore[method-assign]
    return driven, store, gate


def _cache() -> CacheRequest:
    return CacheRequest("names", PROMPT)


def prefix_saved(driven: Driven, store: DictStore) -> tuple[int, int]:
    keys = [name.key for name in driven.tiers._transfer.chunk_names(_cache(), 0, len(PROMPT) // 16)]
    run = next((at for at, key in enumerate(keys) if key not in store.chunks), len(keys))
    return run, sum(key in store.chunks for key in keys)


@pytest.mark.parametrize("room", [1, 2, 3.5])
def test_a_refused_chunk_leaves_no_hole_and_comes_later(room: float) -> None:
    driven, store, gate = driven_with(room)
    driven.submit("a", PROMPT, 24)
    for _ in range(6):
        driven.step()
    # The prompt is computed; the pending chunks are a prefix of it.
    gate.set()
    driven.settle()
    run, saved = prefix_saved(driven, store)
    assert run == saved == int(room)
    while driven.engine.has_work:
        driven.step()
        driven.settle()
    # The steps of the answer brought the rest, a part at a time.
    assert prefix_saved(driven, store) == (10, 10)
    assert driven.tiers.chain.stats()[0].dropped == 0
    driven.engine.close()


def test_what_finds_no_room_to_the_end_is_counted_once() -> None:
    driven, store, gate = driven_with(2)
    driven.submit("a", PROMPT, 4)
    driven.run()
    assert driven.tiers.chain.stats()[0].dropped == 10 - 2
    gate.set()
    driven.settle()
    assert prefix_saved(driven, store) == (2, 2)
    driven.engine.close()


@pytest.mark.parametrize(("token", "batch"), [(131_072, 2048), (24_576, 2048), (229_376, 8192)])
def test_two_steps_of_chunks_may_wait_to_be_written(token: int, batch: int) -> None:
    chain = build_chain(
        TierSettings(host="200GiB", chunk_tokens=256), 16, kv_bytes_per_token=token, max_step_tokens=batch
    )  # type: ignore[arg-type]
    assert chain is not None
    assert chain._max_pending_bytes >= 2 * token * batch
    chain.close()


class Locked:
    def __init__(self) -> None:
        self.taken = 0

    def __call__(self, size: int) -> torch.Tensor:
        self.taken += 1 << (size - 1).bit_length()
        return torch.empty(size, dtype=torch.uint8)


@pytest.mark.parametrize("size", [32 * 1024 + 1088, 14 * 1024 + 1088, 40 * 1024, 16 * 1024])
def test_page_locked_memory_is_what_the_chunks_need(size: int) -> None:
    locked = Locked()
    arena = PinnedBufferPool(locked)
    held = [arena.take_buffer(size) for _ in range(200)]
    assert {len(each) for each in held} == {size}
    assert arena.allocated == locked.taken
    assert locked.taken <= 1.2 * 200 * size


def test_reserved_memory_suffices_for_its_buffers() -> None:
    locked = Locked()
    arena = PinnedBufferPool(locked)
    arena.reserve(1000, 100_000)
    assert 98_000 < locked.taken <= 100_000
    held = [arena.take_buffer(1000) for _ in range(60)]
    assert arena.allocated == locked.taken <= 100_000
    assert {len(buffer) for buffer in held} == {1000}


def test_memory_that_cannot_be_reserved_is_reported(caplog: pytest.LogCaptureFixture) -> None:
    locked = Locked()

    def allocate(size: int) -> torch.Tensor:
        if locked.taken > 20_000:
            raise MemoryError("out of memory")
        return locked(size)

    arena = PinnedBufferPool(allocate)
    arena.reserve(1000, 100_000)
    assert arena.allocated == locked.taken < 100_000
    assert "out of memory" in caplog.text


def test_a_lack_of_pinned_memory_is_no_failure_of_the_device(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object, **__: object) -> None:
        raise torch.AcceleratorError("CUDA error: out of memory\nSearch for `cudaErrorMemoryAllocation'")

    monkeypatch.setattr(torch, "empty", fail)
    with pytest.raises(MemoryError, match=r"cannot pin 1,000 bytes .*\(CUDA error: out of memory\)"):
        allocate_pinned(1000)


@pytest.mark.parametrize("algorithm", get_args(HashAlgorithm))
def test_all_chunks_take_buffers_of_one_size(algorithm: HashAlgorithm) -> None:
    hasher = BlockHasher(algorithm)
    driven = Driven(tiers={"host": "64MiB"}, hash_algorithm=algorithm)
    transfer = driven.tiers._transfer
    (name,) = transfer.chunk_names(_cache(), 0, 1)
    assert transfer.buffer_bytes(name) == transfer.buffer_bytes(replace(name, digest=hasher.none_hash))


def test_no_two_buffers_overlap_and_each_comes_back_when_nothing_lies_over_it() -> None:
    locked = Locked()
    arena = PinnedBufferPool(locked)
    held = [arena.take_buffer(100) for _ in range(10)]
    for number, buffer in enumerate(held):
        buffer[:] = bytes([number]) * 100
    assert [bytes(buffer) for buffer in held] == [bytes([number]) * 100 for number in range(10)]
    before = locked.taken
    tensor = torch.frombuffer(held[3][10:], dtype=torch.uint8)
    del buffer
    held.clear()
    gc.collect()
    again = [arena.take_buffer(100) for _ in range(9)]
    for buffer in again:
        buffer[:] = b"\xff" * 100
    assert tensor.tolist() == [3] * 90, "a tensor keeps its buffer"
    assert locked.taken == before
    del tensor, again, buffer
    gc.collect()
    assert len([arena.take_buffer(100) for _ in range(10)]) == 10
    assert locked.taken == before


@given(st.lists(st.binary(min_size=1, max_size=40), min_size=1, max_size=30))
def test_what_is_kept_is_a_copy_unless_it_lies_there_already(contents: list[bytes]) -> None:
    arena = PinnedBufferPool(Locked())
    kept = [arena.copy_to_pinned_memory(bytearray(content)) for content in contents]
    assert [bytes(each) for each in kept] == contents
    assert all(arena.copy_to_pinned_memory(each) is each for each in kept)
    assert all(arena.copy_to_pinned_memory(each[:1]) is not None for each in kept)
