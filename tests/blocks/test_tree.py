"""Chains as a tree, against a naive walk; and a pool in columns, against its rows."""

from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from kvproxy.blocks import view
from kvproxy.blocks.manager import KVCacheManager
from kvproxy.blocks.map import map_pool
from kvproxy.blocks.request import CacheRequest
from kvproxy.blocks.tree import Link, branches, links_of_blocks, named_blocks

FOREST = st.lists(st.integers(-1, 30), max_size=30).map(
    lambda parents: [(number, min(parent, number - 1)) for number, parent in enumerate(parents)]
)


def below(children: dict[int, list[int]], node: int) -> list[int]:
    return [each for child in children.get(node, []) for each in [child, *below(children, child)]]


@given(FOREST, st.sets(st.integers(0, 30)))
def test_the_tree_is_what_a_naive_walk_finds(forest: list[tuple[int, int]], held: set[int]) -> None:
    children: dict[int, list[int]] = {}
    for number, parent in forest:
        children.setdefault(parent, []).append(number)
    # A parent that nobody knows begins a chain, like none at all.
    links = [Link(f"n{n}", f"h{n}", f"h{p}" if p >= 0 else ("gone" if n % 2 else None), n in held) for n, p in forest]
    queue: list[tuple[str | None, int]] = [(None, -1)]
    while queue:
        parent, node = queue.pop()
        found, total = branches(links, parent, 0, 100)
        assert total == len(found) == len(children.get(node, []))
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
            assert each.held == len(held & {*run, *rest})
            queue.append((each.end, run[-1]))


def test_pages_of_ways_together_are_all_of_them() -> None:
    links = [Link(str(number), str(number), None) for number in range(10)]
    every, total = branches(links, None, 0, 100)
    assert total == 10
    assert [each for start in range(0, 10, 4) for each in branches(links, None, start, 4)[0]] == every


def test_the_columns_say_what_the_rows_say() -> None:
    manager = KVCacheManager(40, 4, keep_tokens=True)
    for number, (tenant, live) in enumerate([("a", False), ("b", True), ("a", True)]):
        request = CacheRequest(f"r{number}", [number, *range(20)], salt=tenant)
        computed = manager.get_computed_blocks(request)
        assert manager.allocate_slots(request, 21, computed) is not None
        request.num_computed_tokens = 21
        manager.cache_blocks(request, 21)
        if not live:
            manager.free(request)
    found, rows = map_pool(manager), view.rows(view.all_blocks(manager))
    letters = {"null": "0", "used": "u", "pinned": "p", "cached": "c", "free": "f"}
    assert found.states == "".join(letters[row.state] for row in rows)
    assert set("0ucf") <= set(found.states)
    assert found.refs == [row.ref_count for row in rows]
    assert found.used == [row.last_accessed for row in rows]
    assert found.queue == [row.id for row in view.rows(view.idle_blocks(manager))]
    assert found.tenants is not None
    assert found.tenant is not None
    named = [found.tenants[place] if place >= 0 else None for place in found.tenant]
    assert {name for name, row in zip(named, rows, strict=True) if row.hash is not None} == {"a", "b"}
    assert {link.name for link in links_of_blocks(named_blocks(manager))} == {
        str(row.id) for row in rows if row.hash is not None
    }
