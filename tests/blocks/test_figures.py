"""Figures of a pool, and the pool in columns."""

import pytest

from kvproxy.blocks.manager import KVCacheManager
from kvproxy.blocks.map import map_pool, map_rows
from kvproxy.blocks.request import CacheRequest
from kvproxy.blocks.rows import BlockRow


def run(manager: KVCacheManager, request: CacheRequest) -> None:
    computed = manager.get_computed_blocks(request)
    assert manager.allocate_slots(request, len(request.tokens) - computed.num_tokens, computed) is not None


def test_how_lookups_fared() -> None:
    manager = KVCacheManager(10, 4)
    stats = manager.stats()
    assert (stats.queries, stats.hits, stats.hit_rate, stats.usage, stats.evictions) == (0, 0, 0.0, 0.0, 0)
    assert (stats.num_blocks, stats.free, stats.cached, stats.used) == (10, 9, 0, 0)
    first, second = CacheRequest("a", range(9)), CacheRequest("b", range(11))
    run(manager, first)
    manager.free(first)
    run(manager, second)
    stats = manager.stats()
    assert (stats.queries, stats.hits, stats.hit_rate) == (20, 8, 0.4)
    assert (stats.used, stats.free, stats.cached) == (3, 6, 0)
    assert stats.usage == pytest.approx(3 / 9)
    manager.free(second)
    assert manager.stats().cached == 2


def test_a_pool_in_columns() -> None:
    manager = KVCacheManager(8, 4, keep_tokens=True)
    fresh = map_pool(manager)
    assert (fresh.states, fresh.refs, fresh.used) == ("0fffffff", [1, *[0] * 7], [0] * 8)
    assert (fresh.tenants, fresh.tenant, fresh.queue) == ([], [-1] * 8, list(range(1, 8)))
    request = CacheRequest("a", range(9), salt="t")
    run(manager, request)
    used = map_pool(manager)
    assert (used.states, used.refs) == ("0uuuffff", [1, 1, 1, 1, 0, 0, 0, 0])
    assert used.used is not None
    assert [ordinal > 0 for ordinal in used.used] == [False, *[True] * 3, *[False] * 4]
    assert (used.tenants, used.tenant, used.queue) == (["t"], [-1, 0, 0, *[-1] * 5], [4, 5, 6, 7])
    manager.free(request)
    assert map_pool(manager).states == "0ccfffff"


def test_mirrored_blocks_in_columns() -> None:
    def row(name: str | None) -> BlockRow:
        return BlockRow(None, "cached", None, name, None, True, 4, None, None, None)

    shown = map_rows([row("0123456789abcdef" * 4), row("ab"), row(None)])
    assert (shown.names, shown.states) == (["0123456789abcdef", "ab", ""], "ccc")
    assert (shown.refs, shown.used, shown.tenants, shown.tenant, shown.queue) == (None,) * 5
