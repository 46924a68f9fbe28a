"""Blocks outside of the GPU: names of media, clear events, ways of counting removals, and unknown names."""

from typing import Any

import msgpack
import pytest

from kvproxy.upstreams.mirror.apply_events import MirrorState
from kvproxy.upstreams.mirror.event_decoder import decode_batch

SIZE = 16


def stored(name: bytes, parent: bytes | None = None, **fields: Any) -> dict[str, Any]:
    tokens = {"token_ids": [1] * SIZE, "block_size": SIZE, "lora_id": None}
    return {"type": "BlockStored", "block_hashes": [name], "parent_block_hash": parent} | tokens | fields


def removed(name: bytes, **fields: Any) -> dict[str, Any]:
    return {"type": "BlockRemoved", "block_hashes": [name]} | fields


def state_of(*events: object) -> MirrorState:
    state = MirrorState()
    apply(state, *events)
    return state


def apply(state: MirrorState, *events: object) -> None:
    state.apply(decode_batch(msgpack.packb({"ts": 1.0, "events": list(events)})))


def counts(state: MirrorState) -> dict[str, int]:
    return {key.medium: len(pool.blocks) for key, pool in state.pools.items()}


@pytest.mark.parametrize(
    ("names", "medium"),
    [
        (("gpu", "GPU", "device", None), "GPU"),
        (("cpu", "CPU", "CPU_PINNED", "CPU_TIER1"), "CPU"),
        (("STORAGE", "disk", "NVME", "CPU_TIER2", "FS"), "DISK"),
        (("EXTERNAL", "shared", "OBJ"), "EXTERNAL"),
    ],
)
def test_the_names_of_a_medium_are_one_pool(names: tuple[str | None, ...], medium: str) -> None:
    state = state_of(*(stored(b"%d" % index, medium=name) for index, name in enumerate(names)))
    assert counts(state) == {medium: len(names)}
    apply(state, *(removed(b"%d" % index, medium=name) for index, name in enumerate(names)))
    assert (counts(state), state.unknown_removals) == ({medium: 0}, 0)


def test_blocks_of_another_engine_are_remote_in_each_medium() -> None:
    state = state_of(stored(b"a", medium="STORAGE", locality="REMOTE"), stored(b"b", medium="GPU", locality="REMOTE"))
    assert counts(state) == {"REMOTE": 2}
    apply(state, removed(b"a", medium="STORAGE", locality="REMOTE"))
    assert counts(state) == {"REMOTE": 1}


@pytest.mark.parametrize(
    "clear",
    [
        {"type": "TierBlocksCleared", "medium": "GPU"},
        {"type": "AllBlocksCleared", "medium": "gpu"},
        ["TierBlocksCleared", "GPU"],
    ],
)
def test_a_clear_event_of_a_medium_keeps_the_others(clear: object) -> None:
    state = state_of(stored(b"a"), stored(b"a", medium="CPU"), clear)
    assert counts(state) == {"GPU": 0, "CPU": 1}
    assert not decode_batch(msgpack.packb({"ts": 1.0, "events": [clear]})).has_reset
    apply(state, {"type": "AllBlocksCleared"})
    assert counts(state) == {"GPU": 0, "CPU": 0}


def test_a_clear_event_of_an_owner_keeps_the_blocks_of_others() -> None:
    state = state_of(stored(b"a", medium="CPU"), stored(b"a", medium="CPU", ownership="kvcr"))
    apply(state, {"type": "TierBlocksCleared", "medium": "CPU", "ownership": "kvcr"})
    assert sorted((key.owner or "", len(pool.blocks)) for key, pool in state.pools.items()) == [("", 1), ("kvcr", 0)]


def test_removals_of_each_copy_and_of_the_last_copy() -> None:
    state = state_of(stored(b"a"), stored(b"a"), removed(b"a"))
    assert counts(state) == {"GPU": 1}
    apply(state, removed(b"a"))
    assert counts(state) == {"GPU": 0}
    apply(state, stored(b"b"), stored(b"b"), removed(b"b"), stored(b"c"), stored(b"c"))
    # From now on the block `b` counts as removed, and `c` has been removed by no event.
    state.count_last_removals()
    assert counts(state) == {"GPU": 1}
    apply(state, removed(b"c"), stored(b"d", medium="CPU"), stored(b"d", medium="CPU"), removed(b"d", medium="CPU"))
    assert (counts(state), state.unknown_removals) == ({"GPU": 0, "CPU": 0}, 0)
    assert all(pool.num_copies == 0 for pool in state.pools.values())


def test_unknown_events_and_media_are_counted() -> None:
    state = state_of({"type": "BlockMoved"}, ["BlockMoved", 1], stored(b"a", medium="tape"), stored(b"b"))
    assert state.unknown_names == {"event BlockMoved": 2, "medium TAPE": 1}
    assert [pool.medium for pool in state.pools_by_rank()[None]] == ["GPU"]


def test_the_names_of_unknown_events_are_bounded() -> None:
    state = state_of(*({"type": f"E{number}"} for number in range(1000)))
    assert len(state.unknown_names) <= 17
    assert sum(state.unknown_names.values()) == 1000


def test_a_block_without_tokens_is_described_by_the_gpu() -> None:
    """vLLM's offloading connector publishes the last hash of each chunk."""
    state = state_of(stored(b"a", group_idx=0), stored(b"b", b"a", group_idx=0))
    offloaded = {"token_ids": [], "block_size": 0, "medium": "CPU", "group_idx": 0}
    apply(state, stored(b"b", **offloaded), stored(b"unknown", **offloaded))
    pool = next(pool for pool in state.pools.values() if pool.medium == "CPU")
    assert (pool.block_size, pool.blocks[b"b"].parent, len(pool.blocks[b"b"].tokens)) == (2 * SIZE, b"a", SIZE)
    assert pool.blocks[b"unknown"].tokens == ()
    apply(state, removed(b"b", medium="CPU", group_idx=0), removed(b"unknown", medium="CPU", group_idx=0))
    assert (counts(state), state.unknown_removals) == ({"GPU": 2, "CPU": 0}, 0)


def test_sglang_names_the_salt_beside_the_blocks() -> None:
    batch = [1.0, [stored(b"a", cache_salt="s", medium="GPU"), stored(b"b", b"a", cache_salt="s", medium="GPU")], 3]
    state = MirrorState()
    state.apply(decode_batch(msgpack.packb(batch)))
    ((key, pool),) = state.pools.items()
    assert (key.rank, pool.blocks[b"a"].extra_keys, pool.blocks[b"b"].extra_keys) == (3, ("s",), None)
