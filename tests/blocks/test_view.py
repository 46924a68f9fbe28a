"""The rows that show the block cache."""

from hypothesis import given
from hypothesis import strategies as st

from kvproxy.blocks.divergence import find_divergence
from kvproxy.blocks.groups import GroupSpec
from kvproxy.blocks.manager import KVCacheManager
from kvproxy.blocks.pins import Pins
from kvproxy.blocks.request import CacheRequest
from kvproxy.blocks.residency import Residency
from kvproxy.blocks.rows import Divergence
from kvproxy.blocks.view import all_blocks, idle_blocks, match, show_block, stats
from kvproxy.blocks.view import rows as row_list


def run(manager: KVCacheManager, id: str, tokens: list[int]) -> CacheRequest:
    request = CacheRequest(id, tokens)
    computed = manager.get_computed_blocks(request)
    assert manager.allocate_slots(request, len(tokens) - computed.num_tokens, computed) is not None
    return request


def test_every_state_of_a_block_has_its_row() -> None:
    manager = KVCacheManager(10, 4, keep_tokens=True, residency=Residency())
    manager.free(run(manager, "pinned", [1, 2, 3, 4]))
    Pins(manager).pin("p", CacheRequest("", [1, 2, 3, 4, 0]))
    manager.free(run(manager, "cached", [5, 6, 7, 8]))
    run(manager, "live", [9] * 5)
    rows = row_list(all_blocks(manager))
    assert [row.id for row in rows] == list(range(10))
    assert [row.state for row in rows[:6]] == ["null", "pinned", "cached", "used", "used", "free"]
    assert [row.requests for row in rows[:4]] == [(), (), (), ("live",)]
    assert [row.num_tokens for row in rows[1:6]] == [4, 4, 4, 0, 0]
    queue = row_list(idle_blocks(manager))
    assert [row.id for row in queue] == [5, 6, 7, 8, 9, 2]
    shown = show_block(manager, 2)
    assert shown is not None
    assert (shown.block, shown.tokens, shown.text) == (rows[2], (5, 6, 7, 8), "")
    assert show_block(manager, 10) is show_block(manager, -1) is None
    figures = stats(manager)
    assert (figures.pinned, figures.used, figures.cached, figures.free) == (1, 3, 1, 6)
    assert figures.residency is not None


def test_each_group_has_its_share_of_the_pool() -> None:
    manager = KVCacheManager(40, groups=[GroupSpec("full", 4), GroupSpec("sliding_window", 4, 9)])
    manager.free(run(manager, "over", list(range(8))))
    run(manager, "live", list(range(100, 108)))
    full, window = stats(manager).groups
    assert (full.number, full.kind, full.reach) == (0, "full_attention", 0)
    assert (window.number, window.kind, window.reach) == (1, "sliding_window", 9)
    assert (full.used, full.cached) == (window.used, window.cached) == (2, 2)
    assert stats(KVCacheManager(10, 4)).groups == ()


def test_a_match_names_its_blocks_and_changes_nothing() -> None:
    manager = KVCacheManager(10, 4, keep_tokens=True)
    manager.free(run(manager, "a", list(range(8))))
    before = row_list(all_blocks(manager))
    found = match(manager, CacheRequest("b", list(range(9))))
    assert (found.prompt_tokens, found.matched_tokens, found.blocks, found.divergence) == (9, 8, (1, 2), None)
    assert row_list(all_blocks(manager)) == before


tokens = st.lists(st.integers(0, 2), max_size=12)


@given(prompt=tokens, held=tokens, others=st.lists(st.lists(st.integers(0, 2), min_size=4, max_size=4), max_size=5))
def test_the_divergence_is_from_the_closest_block(prompt: list[int], held: list[int], others: list[list[int]]) -> None:
    start = 0
    while prompt[start : start + 4] == held[start : start + 4] and len(prompt[start : start + 4]) == 4:
        start += 4
    rest = prompt[start : start + 4]
    # The cache follows a prompt as far as it can, so no block equals what comes next.
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


def test_twelve_tokens_before_a_divergence_are_shown() -> None:
    prompt = list(range(40))
    found = find_divergence(prompt, 32, 8, [[32, 33, 99, 35, 36, 37, 38, 39]])
    assert found is not None
    assert (found.position, found.before) == (34, tuple(range(22, 34)))
    early = find_divergence(prompt, 0, 8, [[0, 9, 9, 9, 9, 9, 9, 9]])
    assert early is not None
    assert early.before == (0,)
