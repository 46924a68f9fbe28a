"""Views of a mirrored engine."""

from kvproxy.blocks.row_types import BlockLocation, BlockRow
from kvproxy.upstreams.mirror.apply_events import MirrorState
from kvproxy.upstreams.mirror.event_decoder import ClearedEvent, Event, EventBatch, RemovedEvent, StoredEvent
from kvproxy.upstreams.mirror.pool_rows import find_blocks, hash_hex, list_chains, report_pools, snapshot_pools

URL = "http://engine"


def of(*events: Event, rank: int | None = None) -> MirrorState:
    state = MirrorState()
    state.apply(EventBatch(1.0, list(events), rank))
    return state


def rows_of(state: MirrorState) -> list[BlockRow]:
    return [content.block for content in find_blocks(snapshot_pools(state, URL), "")]


def test_names_in_hexadecimal() -> None:
    assert (hash_hex(b"\x01\xff"), hash_hex(255), hash_hex(-1)) == ("01ff", f"{255:016x}", "f" * 16)


def test_blocks_and_chains_of_one_group() -> None:
    state = of(
        StoredEvent([1, 2], None, (1, 2, 3, 4), 2),
        StoredEvent([3], 1, (5, 6), 2),
        StoredEvent([3], 1, (5, 6), 2),
        rank=1,
    )
    rows = rows_of(state)
    assert [(row.hash, row.copies, row.num_tokens) for row in rows] == [
        (hash_hex(1), 1, 2),
        (hash_hex(2), 1, 2),
        (hash_hex(3), 2, 2),
    ]
    assert [row.parent for row in rows] == [None, hash_hex(1), hash_hex(1)]
    assert all(row.place == BlockLocation(URL, 1, "GPU") and row.id is None and row.requests is None for row in rows)
    (shown,) = find_blocks(snapshot_pools(state, URL), hash_hex(3)[:16])
    assert (shown.block, shown.tokens, shown.text) == (rows[2], (5, 6), "")
    assert find_blocks(snapshot_pools(state, URL), "f") == []
    second, first = list_chains(snapshot_pools(state, URL))
    assert (first.leaf, second.leaf, second.num_blocks, second.num_tokens) == (hash_hex(2), hash_hex(3), 2, 4)
    assert first.complete
    assert first.first_tokens == (1, 2)
    figures = report_pools(state)
    assert (figures.cached, figures.distinct, figures.block_size, figures.evictions) == (4, 3, 2, 0)


def test_a_chain_without_its_first_block_is_incomplete() -> None:
    state = of(StoredEvent([1, 2], None, (1, 2, 3, 4), 2), RemovedEvent([1]))
    (chain,) = list_chains(snapshot_pools(state, URL))
    assert (chain.complete, chain.num_blocks, chain.first_tokens) == (False, 1, (3, 4))
    assert report_pools(state).evictions == 1


def test_a_hybrid_models_blocks_are_shown_once_with_their_groups() -> None:
    window = {"kind": "sliding_window", "window": 3}
    state = of(
        StoredEvent([2, 3], 1, (), 2, group=0, **window),
        StoredEvent([1, 2, 3], None, (1, 2, 3, 4, 5, 6), 2, group=1, kind="full_attention"),
        # The last of three blocks is cached.
        StoredEvent([3], None, (1, 2, 3, 4, 5, 6), 2, group=2, **window),
    )
    rows = rows_of(state)
    assert [(row.hash, row.copies) for row in rows] == [(hash_hex(1), 1), (hash_hex(2), 2), (hash_hex(3), 3)]
    assert [row.place and row.place.groups for row in rows] == [(1,), (1, 0), (1, 0, 2)]
    assert [content.tokens for content in find_blocks(snapshot_pools(state, URL), "")] == [(1, 2), (3, 4), (5, 6)]
    (chain,) = list_chains(snapshot_pools(state, URL))
    assert (chain.num_blocks, chain.complete, chain.place) == (3, True, BlockLocation(URL, None, "GPU", (1,)))
    figures = report_pools(state)
    assert (figures.cached, figures.distinct) == (6, 3)


def test_ranks_and_media_are_separate() -> None:
    state = of(StoredEvent([1], None, (1, 2), 2), StoredEvent([1], None, (1, 2), 2, medium="CPU"), rank=0)
    state.apply(EventBatch(2.0, [StoredEvent([1], None, (1, 2), 2)], 1))
    assert [row.place for row in rows_of(state)] == [
        BlockLocation(URL, 0, "GPU"),
        BlockLocation(URL, 0, "CPU"),
        BlockLocation(URL, 1, "GPU"),
    ]
    assert len(list_chains(snapshot_pools(state, URL))) == 3
    report = report_pools(state)
    assert (report.cached, report.offloaded) == (2, {"CPU": 1})
    state.apply(EventBatch(3.0, [ClearedEvent()], 0))
    assert [row.place for row in rows_of(state)] == [BlockLocation(URL, 1, "GPU")]


def test_a_removal_applies_to_its_own_group() -> None:
    stored = [StoredEvent([1], None, (1, 2), 2, group=group) for group in (0, 1)]
    state = of(*stored, RemovedEvent([1], group=2))
    assert (report_pools(state).cached, state.unknown_removals) == (2, 1)
    state.apply(EventBatch(2.0, [RemovedEvent([1], group=1)], None))
    assert [row.place and row.place.groups for row in rows_of(state)] == [(0,)]
    # Older publishers omit the group.
    state.apply(EventBatch(3.0, [RemovedEvent([1])], None))
    assert (report_pools(state).cached, state.unknown_removals) == (0, 1)
