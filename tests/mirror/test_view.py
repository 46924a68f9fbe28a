"""The rows that show a mirrored engine."""

from kvproxy.blocks.rows import BlockLocation
from kvproxy.mirror.state import MirrorState
from kvproxy.mirror.view import chain_to, chains, hex_of, list_blocks, shelves, show_blocks, stats
from kvproxy.mirror.wire import Batch, Cleared, Event, Removed, Stored

URL = "http://engine"


def of(*events: Event, rank: int | None = None) -> MirrorState:
    state = MirrorState()
    state.apply(Batch(1.0, list(events), rank))
    return state


def test_names_in_hexadecimal() -> None:
    assert (hex_of(b"\x01\xff"), hex_of(255), hex_of(-1)) == ("01ff", f"{255:016x}", "f" * 16)


def test_blocks_and_chains_of_one_group() -> None:
    state = of(Stored([1, 2], None, (1, 2, 3, 4), 2), Stored([3], 1, (5, 6), 2), Stored([3], 1, (5, 6), 2), rank=1)
    rows = list_blocks(shelves(state, URL))
    assert [(row.hash, row.copies, row.num_tokens) for row in rows] == [
        (hex_of(1), 1, 2),
        (hex_of(2), 1, 2),
        (hex_of(3), 2, 2),
    ]
    assert [row.parent for row in rows] == [None, hex_of(1), hex_of(1)]
    assert all(row.place == BlockLocation(URL, 1, "GPU") and row.id is None and row.requests is None for row in rows)
    (shown,) = show_blocks(shelves(state, URL), hex_of(3)[:16])
    assert (shown.block, shown.tokens, shown.text) == (rows[2], (5, 6), "")
    assert show_blocks(shelves(state, URL), "f") == []
    second, first = chains(shelves(state, URL))
    assert (first.leaf, second.leaf, second.num_blocks, second.num_tokens) == (hex_of(2), hex_of(3), 2, 4)
    assert first.complete
    assert first.first_tokens == (1, 2)
    figures = stats(state)
    assert (figures.cached, figures.distinct, figures.block_size, figures.evictions) == (4, 3, 2, 0)


def test_the_tokens_up_to_a_block() -> None:
    state = of(Stored([1, 2], None, (1, 2, 3, 4), 2), Stored([3], 1, (5, 6), 2), Stored([4], 9, (7, 8), 2))
    held = shelves(state, URL)
    assert [chain_to(held, hex_of(name)) for name in (1, 2, 3)] == [[1, 2], [1, 2, 3, 4], [1, 2, 5, 6]]
    # Its beginning is not there, or there is no such block.
    assert (chain_to(held, hex_of(4)), chain_to(held, "f")) == (None, None)
    salted = of(Stored([1], None, (1, 2), 2, [("salt",)]), Stored([2], 1, (3, 4), 2), Stored([5], None, (), 2))
    assert [chain_to(shelves(salted, URL), hex_of(name)) for name in (1, 2, 5)] == [None] * 3
    assert chain_to([], "0") is None
    circle = of(Stored([1], 2, (1, 2), 2), Stored([2], 1, (3, 4), 2))
    assert chain_to(shelves(circle, URL), hex_of(1)) is None
    other = of(Stored([6], None, (7, 8), 2), rank=1)
    assert chain_to([*held, *shelves(other, URL)], hex_of(6)) == [7, 8]


def test_a_chain_that_lost_its_beginning_says_so() -> None:
    state = of(Stored([1, 2], None, (1, 2, 3, 4), 2), Removed([1]))
    (chain,) = chains(shelves(state, URL))
    assert (chain.complete, chain.num_blocks, chain.first_tokens) == (False, 1, (3, 4))
    assert stats(state).evictions == 1


def test_a_hybrid_models_blocks_are_shown_once_with_their_groups() -> None:
    window = {"kind": "sliding_window", "window": 3}
    state = of(
        Stored([2, 3], 1, (), 2, group=0, **window),
        Stored([1, 2, 3], None, (1, 2, 3, 4, 5, 6), 2, group=1, kind="full_attention"),
        # Of three blocks the last is kept.
        Stored([3], None, (1, 2, 3, 4, 5, 6), 2, group=2, **window),
    )
    rows = list_blocks(shelves(state, URL))
    assert [(row.hash, row.copies) for row in rows] == [(hex_of(1), 1), (hex_of(2), 2), (hex_of(3), 3)]
    assert [row.place and row.place.groups for row in rows] == [(1,), (1, 0), (1, 0, 2)]
    assert [content.tokens for content in show_blocks(shelves(state, URL), "")] == [(1, 2), (3, 4), (5, 6)]
    (chain,) = chains(shelves(state, URL))
    assert (chain.num_blocks, chain.complete, chain.place) == (3, True, BlockLocation(URL, None, "GPU", (1,)))
    figures = stats(state)
    assert (figures.cached, figures.distinct) == (6, 3)


def test_ranks_and_media_lie_apart() -> None:
    state = of(Stored([1], None, (1, 2), 2), Stored([1], None, (1, 2), 2, medium="CPU"), rank=0)
    state.apply(Batch(2.0, [Stored([1], None, (1, 2), 2)], 1))
    assert [row.place for row in list_blocks(shelves(state, URL))] == [
        BlockLocation(URL, 0, "GPU"),
        BlockLocation(URL, 0, "CPU"),
        BlockLocation(URL, 1, "GPU"),
    ]
    assert len(chains(shelves(state, URL))) == stats(state).cached == 3
    state.apply(Batch(3.0, [Cleared()], 0))
    assert [row.place for row in list_blocks(shelves(state, URL))] == [BlockLocation(URL, 1, "GPU")]


def test_a_removal_is_of_its_own_group() -> None:
    stored = [Stored([1], None, (1, 2), 2, group=group) for group in (0, 1)]
    state = of(*stored, Removed([1], group=2))
    assert (stats(state).cached, state.unknown) == (2, 1)
    state.apply(Batch(2.0, [Removed([1], group=1)], None))
    assert [row.place and row.place.groups for row in list_blocks(shelves(state, URL))] == [(0,)]
    # Older publishers do not name it.
    state.apply(Batch(3.0, [Removed([1])], None))
    assert (stats(state).cached, state.unknown) == (0, 1)
