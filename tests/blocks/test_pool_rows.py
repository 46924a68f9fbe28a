"""Views of the block cache: rows, statistics, residency, matches, columns, and the tree of chains."""

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvproxy.blocks import pool_rows
from kvproxy.blocks.cache_request import CacheRequest
from kvproxy.blocks.divergence import Divergence, find_divergence
from kvproxy.blocks.manager import KVCacheManager
from kvproxy.blocks.pins import Pins
from kvproxy.blocks.pool_rows import TreeNode, list_branches, map_block_rows, map_pool, tree_nodes_from_pool
from kvproxy.blocks.residency import ResidencyTracker
from kvproxy.blocks.row_types import BlockRow
from kvproxy.blocks.single_type_manager import GroupSpec
from tests.blocks.driver import Clock, begin, serve
from tests.reference.integrity import check_integrity


def test_every_state_of_a_block_has_its_row() -> None:
    manager = KVCacheManager(10, 4, residency=ResidencyTracker())
    serve(manager, "pinned", [1, 2, 3, 4])
    pins = Pins(manager)
    pins.pin("p", CacheRequest("", [1, 2, 3, 4, 0]))
    manager.free(begin(manager, "cached", [5, 6, 7, 8]))
    begin(manager, "live", [9] * 5)
    check_integrity(manager, pins)
    rows = pool_rows.list_blocks(manager)
    assert [row.id for row in rows] == list(range(10))
    assert [row.state for row in rows[:6]] == ["null", "pinned", "cached", "used", "used", "free"]
    assert [row.requests for row in rows[:4]] == [(), (), (), ("live",)]
    assert [row.num_tokens for row in rows[1:6]] == [4, 4, 4, 0, 0]
    queue = pool_rows.list_free_blocks(manager)
    assert [row.id for row in queue] == [5, 6, 7, 8, 9, 2]
    shown = pool_rows.read_block(manager, 2)
    assert shown is not None
    assert (shown.block, shown.tokens, shown.text) == (rows[2], (5, 6, 7, 8), "")
    assert pool_rows.read_block(manager, 10) is pool_rows.read_block(manager, -1) is None
    report = pool_rows.report_pool(manager)
    for state in ("free", "cached", "used", "pinned"):
        assert getattr(report, state) == [row.state for row in rows].count(state)
    assert (report.pinned, report.used, report.cached, report.free) == (1, 2, 1, 5)
    assert report.usage == pytest.approx(3 / 9)
    assert report.residency is not None


def test_each_group_has_its_share_of_the_pool() -> None:
    manager = KVCacheManager(40, groups=[GroupSpec("full", 4), GroupSpec("sliding_window", 4, 9)])
    serve(manager, "over", range(8))
    begin(manager, "live", range(100, 108))
    full, window = pool_rows.report_pool(manager).groups
    assert (full.number, full.kind, full.window) == (0, "full_attention", 0)
    assert (window.number, window.kind, window.window) == (1, "sliding_window", 9)
    assert (full.used, full.cached) == (window.used, window.cached) == (2, 2)
    assert pool_rows.report_pool(KVCacheManager(10, 4)).groups == ()


def test_a_divergence_in_a_pool_of_one_or_several_groups() -> None:
    for groups in (None, [GroupSpec("full", 4), GroupSpec("sliding_window", 2, 8)]):
        manager = KVCacheManager(40, groups=groups) if groups else KVCacheManager(40, 4)
        serve(manager, "a", range(12))
        before = pool_rows.list_blocks(manager)
        match = pool_rows.match_prefix(manager, CacheRequest("b", [0, 1, 2, 3, 4, 5, 6, 7, 8, 99]))
        assert (match.prompt_tokens, match.matched_tokens, match.blocks[0]) == (10, 8, 1)
        assert pool_rows.list_blocks(manager) == before
        found = match.divergence
        assert found is not None
        assert (found.position, found.cached, found.prompt) == (9, (9, 10, 11), (99,))
        assert [chain.num_tokens for chain in pool_rows.list_chains(manager)] == [12]


tokens = st.lists(st.integers(0, 2), max_size=12)


@given(prompt=tokens, held=tokens, others=st.lists(st.lists(st.integers(0, 2), min_size=4, max_size=4), max_size=5))
def test_the_divergence_is_from_the_closest_block(prompt: list[int], held: list[int], others: list[list[int]]) -> None:
    start = 0
    while prompt[start : start + 4] == held[start : start + 4] and len(prompt[start : start + 4]) == 4:
        start += 4
    rest = prompt[start : start + 4]
    # The lookup follows a prompt as far as it can, so no child equals the next block.
    children = [child for child in others if child != rest]
    found = find_divergence(prompt, start, 4, children)
    shared = [next(at for at in range(5) if at == 4 or child[: at + 1] != rest[: at + 1]) for child in children]
    if not children or max(shared) >= len(rest):
        assert found is None
    else:
        most = max(shared)
        closest = children[shared.index(most)]
        at = start + most
        before = tuple(prompt[max(0, at - 12) : at])
        assert found == Divergence(at, tuple(closest[most:]), tuple(rest[most:]), before)


FOREST = st.lists(st.integers(-1, 30), max_size=30).map(
    lambda parents: [(number, min(parent, number - 1)) for number, parent in enumerate(parents)]
)


def below(children: dict[int, list[int]], node: int) -> list[int]:
    return [each for child in children.get(node, []) for each in [child, *below(children, child)]]


@given(FOREST, st.sets(st.integers(0, 30)))
def test_the_tree_equals_a_naive_walk(forest: list[tuple[int, int]], in_use: set[int]) -> None:
    children: dict[int, list[int]] = {}
    for number, parent in forest:
        children.setdefault(parent, []).append(number)
    # A block with an unknown parent is a root.
    nodes = [
        TreeNode(f"n{n}", f"h{n}", f"h{p}" if p >= 0 else ("gone" if n % 2 else None), n in in_use) for n, p in forest
    ]
    queue: list[tuple[str | None, int]] = [(None, -1)]
    while queue:
        parent, node = queue.pop()
        found, total = list_branches(nodes, parent, 0, 100)
        assert total == len(found) == len(children.get(node, []))
        assert found == [branch for at in range(total) for branch in list_branches(nodes, parent, at, 1)[0]]
        assert [each.blocks + each.below for each in found] == sorted(
            (1 + len(below(children, child)) for child in children.get(node, [])), reverse=True
        )
        for each in found:
            run = [int(name[1:]) for name in each.names]
            assert run[0] in children[node]
            assert all(children.get(one) == [next_] for one, next_ in pairwise(run))
            assert len(children.get(run[-1], [])) != 1
            rest = below(children, run[-1])
            assert (each.end, each.blocks, each.below) == (f"h{run[-1]}", len(run), len(rest))
            assert each.leaves == sum(not children.get(one) for one in [run[-1], *rest])
            assert each.in_use == len(in_use & {*run, *rest})
            queue.append((each.end, run[-1]))


def test_columns_equal_rows() -> None:
    manager = KVCacheManager(40, 4)
    for number, (tenant, live) in enumerate([("a", False), ("b", True), ("a", True)]):
        request = begin(manager, f"r{number}", [number, *range(20)], cache_salt=tenant)
        if not live:
            manager.free(request)
    found, rows = map_pool(manager), pool_rows.list_blocks(manager)
    letters = {"null": "0", "used": "u", "pinned": "p", "cached": "c", "free": "f"}
    assert found.states == "".join(letters[row.state] for row in rows)
    assert set("0ucf") <= set(found.states)
    assert found.refs == [row.ref_count for row in rows]
    assert found.used == [row.last_accessed for row in rows]
    assert found.queue == [row.id for row in pool_rows.list_free_blocks(manager)]
    assert found.tenants is not None
    assert found.tenant is not None
    assert set(found.tenant) == {-1, 0, 1}
    tenants = [found.tenants[index] if index >= 0 else None for index in found.tenant]
    assert {name for name, row in zip(tenants, rows, strict=True) if row.hash is not None} == {"a", "b"}
    assert {node.name for node in tree_nodes_from_pool(manager)} == {
        str(row.id) for row in rows if row.hash is not None
    }


def test_columns_of_mirrored_blocks() -> None:
    def row(name: str | None) -> BlockRow:
        return BlockRow(hash=name, num_tokens=4)

    shown = map_block_rows([row("0123456789abcdef" * 4), row("ab"), row(None)])
    assert (shown.names, shown.states) == (["0123456789abcdef", "ab", ""], "ccc")
    assert (shown.refs, shown.used, shown.tenants, shown.tenant, shown.queue) == (None,) * 5


def test_lifetime_idle_time_and_reuse_gap_of_cached_blocks() -> None:
    clock = Clock()
    residency = ResidencyTracker(clock)
    manager = KVCacheManager(5, 4, residency=residency)
    first = begin(manager, "a", range(9))  # two blocks cached, a third holds one token
    clock.now = 10
    manager.free(first)
    clock.now = 30
    serve(manager, "b", range(5))  # hits the first block after 20 s idle
    found = residency.stats()
    assert (found.evicted, found.lifetime, found.reuse_gap) == (0, None, 20)
    clock.now = 100
    serve(manager, "c", range(100, 116))  # takes all four blocks, of which two were cached
    found = residency.stats()
    assert (found.evicted, found.lifetime, found.idle, found.never_hit) == (2, 100, (70 + 90) / 2, 0.5)


def test_evictions_name_the_client_of_the_block_and_the_client_that_took_it() -> None:
    residency = ResidencyTracker(Clock())
    manager = KVCacheManager(5, 4, residency=residency)
    serve(manager, "a", range(9), client="one")
    serve(manager, "b", range(100, 116), client="two")
    serve(manager, "c", range(200, 216), client="two")
    serve(manager, "d", range(300, 303))
    manager.evict_blocks([4])
    found = [(each.owner, each.evictor, each.blocks) for each in residency.stats().by_client]
    assert found == [("two", "two", 4), ("one", "two", 2), ("two", None, 1)]


def test_uncached_blocks_and_resets_are_not_evictions() -> None:
    residency = ResidencyTracker(Clock())
    manager = KVCacheManager(5, 4, residency=residency)
    for number in range(3):
        serve(manager, str(number), range(3))
    serve(manager, "a", range(9))
    assert manager.reset_prefix_cache()
    serve(manager, "b", range(100, 116))
    assert residency.stats().evicted == 0
