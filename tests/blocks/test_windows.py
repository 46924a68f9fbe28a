"""Groups that do not attend to everything, and hybrids of them, against what their rules say outright."""

import random
from collections.abc import Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kvproxy.blocks.groups import GroupSpec, Kept
from kvproxy.blocks.manager import KVCacheManager
from kvproxy.blocks.request import CacheRequest

KINDS = st.sampled_from(
    [
        GroupSpec("full", 2),
        GroupSpec("sliding_window", 2, 5),
        GroupSpec("sliding_window", 4, 6),
        GroupSpec("chunked_local", 2, 8),
        GroupSpec("full", 4),
        GroupSpec("sliding_window", 2, 1),
    ]
)


def usable(spec: GroupSpec, cached: Sequence[bool], blocks: int) -> bool:
    """Whether a prefix of so many blocks has all that a next token would attend to."""
    if spec.kind == "full":
        first = 0
    elif spec.kind == "sliding_window":
        first = max(0, blocks - -(-(spec.reach - 1) // spec.block_size))
    else:
        first = blocks * spec.block_size // spec.reach * spec.reach // spec.block_size
    return all(cached[first:blocks])


def cache_some(manager: KVCacheManager, request: CacheRequest, kept: list[list[bool]]) -> None:
    """Cache the whole request, then forget the blocks that are not to be kept."""
    manager.allocate_slots(request, request.num_tokens, manager.get_computed_blocks(request))
    tables = [list(group.tables[request.id]) for group in manager.groups]
    manager.free(request)
    for table, keep in zip(tables, kept, strict=True):
        for block, stays in zip(table, keep, strict=True):
            if not stays:
                manager.pool.forget([block])


@settings(deadline=None, max_examples=300)
@given(st.lists(KINDS, min_size=1, max_size=3), st.integers(1, 12), st.data())
def test_the_longest_prefix_that_every_group_can_use(specs: list[GroupSpec], fours: int, data: st.DataObject) -> None:
    manager = KVCacheManager(200, groups=specs)
    ordered = [group.spec for group in manager.groups]
    tokens = list(range(fours * 4))
    kept = [
        data.draw(
            st.lists(st.booleans(), min_size=len(tokens) // spec.block_size, max_size=len(tokens) // spec.block_size)
        )
        for spec in ordered
    ]
    step = max(spec.block_size for spec in ordered)
    cache_some(manager, CacheRequest("a", tokens, skip_read=True), kept)
    limit = (len(tokens) - 1) // step * step
    best = next(
        length
        for length in range(limit, -1, -step)
        if all(usable(spec, keep, length // spec.block_size) for spec, keep in zip(ordered, kept, strict=True))
    )
    found = manager.get_computed_blocks(CacheRequest("b", tokens))
    assert found.num_tokens == best
    for spec, blocks in zip(ordered, found.groups, strict=True):
        assert len(blocks) == best // spec.block_size


@pytest.mark.parametrize(
    "specs",
    [
        [GroupSpec("sliding_window", 2, 5)],
        [GroupSpec("full", 4), GroupSpec("sliding_window", 2, 5)],
        [GroupSpec("full", 2), GroupSpec("chunked_local", 2, 8), GroupSpec("sliding_window", 4, 6)],
        [GroupSpec("sliding_window", 2, 5, "last")],
        [GroupSpec("full", 2), GroupSpec("sliding_window", 2, 5, "last"), GroupSpec("sliding_window", 4, 6, "last")],
    ],
)
def test_random_traffic_keeps_every_invariant(specs: list[GroupSpec]) -> None:
    chance = random.Random(1)
    manager = KVCacheManager(60, groups=specs)
    live: dict[str, CacheRequest] = {}
    refused = 0
    for number in range(600):
        if live and chance.random() < 0.4:
            manager.free(live.pop(chance.choice(list(live))))
        elif live and chance.random() < 0.5:
            request = live[chance.choice(list(live))]
            request.append(chance.randrange(2))
            if manager.allocate_slots(request, request.num_tokens - request.num_computed_tokens) is None:
                manager.free(live.pop(request.id))
                refused += 1
            else:
                request.num_computed_tokens = request.num_tokens
        else:
            request = CacheRequest(f"r{number}", [chance.randrange(2) for _ in range(chance.randrange(1, 20))])
            computed = manager.get_computed_blocks(request)
            if manager.allocate_slots(request, request.num_tokens - computed.num_tokens, computed) is None:
                refused += 1
            else:
                request.num_computed_tokens = request.num_tokens
                live[request.id] = request
        manager.check_integrity()
    for request in live.values():
        manager.free(request)
    assert manager.reset_prefix_cache()
    assert refused > 0
    assert manager.lookups.hits > 0


def test_a_window_holds_no_more_than_it_reaches() -> None:
    manager = KVCacheManager(100, groups=[GroupSpec("sliding_window", 4, 8)])
    request = CacheRequest("a", range(8))
    manager.allocate_slots(request, 8, manager.get_computed_blocks(request))
    request.num_computed_tokens = 8
    for token in range(200):
        request.append(token)
        assert manager.allocate_slots(request, 1) is not None
        request.num_computed_tokens += 1
        assert manager.stats().used <= 4
    assert manager.block_ids("a")[0] == 0


def test_eagle_recomputes_the_last_block() -> None:
    for specs in ([GroupSpec("full", 4)], [GroupSpec("sliding_window", 4, 9)]):
        manager = KVCacheManager(100, groups=specs, eagle=True)
        request = CacheRequest("a", range(21))
        manager.allocate_slots(request, 21, manager.get_computed_blocks(request))
        manager.free(request)
        assert manager.get_computed_blocks(CacheRequest("b", range(21))).num_tokens == 16
    with pytest.raises(ValueError, match="EAGLE"):
        KVCacheManager(100, groups=[GroupSpec("full"), GroupSpec("chunked_local", 16, 32)], eagle=True)


EAGLE_KINDS = KINDS.filter(lambda spec: spec.kind != "chunked_local")


@settings(deadline=None, max_examples=300)
@given(st.lists(EAGLE_KINDS, min_size=2, max_size=3), st.integers(1, 12), st.data())
def test_eagle_needs_one_more_block_of_every_group(specs: list[GroupSpec], fours: int, data: st.DataObject) -> None:
    manager = KVCacheManager(200, groups=specs, eagle=True)
    ordered = [group.spec for group in manager.groups]
    tokens = list(range(fours * 4))
    sizes = [len(tokens) // spec.block_size for spec in ordered]
    kept = [data.draw(st.lists(st.booleans(), min_size=size, max_size=size)) for size in sizes]
    step = max(spec.block_size for spec in ordered)
    cache_some(manager, CacheRequest("a", tokens, skip_read=True), kept)

    def fits(spec: GroupSpec, keep: Sequence[bool], length: int) -> bool:
        if length == 0:
            return True
        blocks = length // spec.block_size
        first = 0
        if spec.kind == "sliding_window":
            first = max(0, blocks - -(-(spec.reach - 1) // spec.block_size))
        return blocks < len(keep) and all(keep[first : blocks + 1])

    best = next(
        length
        for length in range((len(tokens) - 1) // step * step, -1, -step)
        if all(fits(spec, keep, length) for spec, keep in zip(ordered, kept, strict=True))
    )
    assert manager.get_computed_blocks(CacheRequest("b", tokens)).num_tokens == best


def serve(manager: KVCacheManager, id: str, tokens: Sequence[int], answer: int = 0) -> int:
    """Compute a prompt and so many tokens of an answer; the tokens that were reused."""
    request = CacheRequest(id, tokens)
    computed = manager.get_computed_blocks(request)
    assert manager.allocate_slots(request, request.num_tokens - computed.num_tokens, computed) is not None
    request.num_computed_tokens = request.num_tokens
    for token in range(answer):
        request.append(token)
        assert manager.allocate_slots(request, 1) is not None
        request.num_computed_tokens += 1
    manager.free(request)
    manager.check_integrity()
    return computed.num_tokens


def hybrid(kept: Kept, num_blocks: int = 200) -> KVCacheManager:
    return KVCacheManager(num_blocks, groups=[GroupSpec("sliding_window", 4, 9, kept), GroupSpec("full", 4)])


@pytest.mark.parametrize("length", range(1, 40))
def test_the_last_window_serves_the_same_prompt_and_longer_ones(length: int) -> None:
    manager, prompt = hybrid("last"), list(range(length))
    assert serve(manager, "a", prompt) == 0
    whole = (length - 1) // 4 * 4
    assert manager.get_computed_blocks(CacheRequest("b", prompt)).num_tokens == whole
    # A prompt that ends with a block leaves that one out: sent again it would be computed anyway.
    assert manager.get_computed_blocks(CacheRequest("c", [*prompt, *range(50)])).num_tokens == whole
    kept = [block for block in manager.pool.blocks if block.hash is not None and block.group == 0]
    assert len(kept) == min(2, whole // 4)


def test_of_an_answer_no_window_is_kept_unless_all_are() -> None:
    prompt = list(range(30))
    answered = [*prompt, *range(20), 99]
    found = {}
    for kept in ("all", "last"):
        manager = hybrid(kept)  # type: ignore[arg-type]
        serve(manager, "a", prompt, answer=20)
        found[kept] = manager.get_computed_blocks(CacheRequest("b", answered)).num_tokens
    assert found == {"all": 48, "last": 28}


def test_a_shared_beginning_is_kept_from_the_second_prompt_on() -> None:
    manager, shared = hybrid("last"), list(range(22))
    prompts = [[*shared, *[number] * 30] for number in range(100, 104)]
    assert [serve(manager, str(number), prompt) for number, prompt in enumerate(prompts)] == [0, 0, 20, 20]
    manager = hybrid("all")
    assert [serve(manager, str(number), prompt) for number, prompt in enumerate(prompts)] == [0, 20, 20, 20]


def test_blocks_that_nobody_is_to_find_go_first() -> None:
    """So more prompts fit the pool."""
    found = {}
    for kept in ("all", "last"):
        manager = hybrid(kept, num_blocks=100)  # type: ignore[arg-type]
        prompts = [[number] * 80 for number in range(3)]
        for number, prompt in enumerate(prompts):
            serve(manager, str(number), prompt)
        found[kept] = [manager.get_computed_blocks(CacheRequest("x", prompt)).num_tokens for prompt in prompts]
    assert found == {"all": [0, 76, 76], "last": [76, 76, 76]}


def test_a_hit_that_must_be_a_multiple_has_its_window() -> None:
    """It is looked for, not cut off a longer one, which has no blocks before its own window."""
    manager = KVCacheManager(200, groups=[GroupSpec("sliding_window", 4, 9), GroupSpec("full", 4)], multiple=16)
    serve(manager, "a", range(64))
    found = manager.get_computed_blocks(CacheRequest("b", [*range(30), 99]))
    assert found.num_tokens == 16
    window, full = found.groups
    assert manager.pool.null_block not in [*window[2:], *full]
    assert len(window) == len(full) == 4


def test_last_windows_are_refused_where_they_cannot_be_kept() -> None:
    for options in ({"eagle": True}, {"merge": True}):
        with pytest.raises(ValueError, match="only the last"):
            KVCacheManager(100, groups=[GroupSpec("sliding_window", 4, 9, "last")], **options)  # type: ignore[arg-type]


def test_null_blocks_do_not_count_as_stored() -> None:
    manager = KVCacheManager(40, groups=[GroupSpec("sliding_window", 4, 8)], record_events=True)
    first, second = CacheRequest("a", range(40)), CacheRequest("b", range(48))
    for request in (first, second):
        computed = manager.get_computed_blocks(request)
        manager.allocate_slots(request, request.num_tokens - computed.num_tokens, computed)
        manager.free(request)
    assert manager.pool.stored == sum(len(event.hashes) for event in manager.take_events() if hasattr(event, "tokens"))


def test_context_parallel_blocks_hold_more_tokens() -> None:
    manager = KVCacheManager(10, 4, context_parallel=2)
    assert manager.block_size == 8
    request = CacheRequest("a", range(17))
    manager.allocate_slots(request, 17, manager.get_computed_blocks(request))
    assert len(manager.block_ids("a")) == 3


@pytest.mark.parametrize("step", [1, 3, 8])
@pytest.mark.parametrize(
    "spec",
    [
        GroupSpec("full", 4),
        *(GroupSpec("sliding_window", 4, reach) for reach in (1, 6, 13)),
        GroupSpec("chunked_local", 4, 12),
    ],
)
def test_a_request_holds_as_many_blocks_as_is_said_and_no_more(spec: GroupSpec, step: int) -> None:
    told, held = KVCacheManager(200, groups=[spec]).most_held(60, step), 0
    # Where a step begins in a block depends on where the first one ended.
    for first in range(1, step + 1):
        manager = KVCacheManager(200, groups=[spec])
        request = CacheRequest("r", list(range(60)))
        count = first
        while request.num_computed_tokens < 60:
            assert manager.allocate_slots(request, count) is not None
            table = manager.groups[0].tables["r"]
            held = max(held, sum(block is not manager.pool.null_block for block in table))
            request.num_computed_tokens += count
            count = min(step, 60 - request.num_computed_tokens)
    # The bound is one for all places where a chunk may begin.
    assert told - 2 <= held <= told
