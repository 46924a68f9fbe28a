"""Forked requests, their pending copies, and calls that would lose count of blocks."""

import pytest

from kvproxy.blocks.groups import GroupSpec
from kvproxy.blocks.manager import KVCacheManager
from kvproxy.blocks.pins import Pins
from kvproxy.blocks.request import CacheRequest, MMItem
from kvproxy.blocks.view import chains, match


def begin(manager: KVCacheManager, request: CacheRequest) -> CacheRequest:
    computed = manager.get_computed_blocks(request)
    assert manager.allocate_slots(request, request.num_tokens - computed.num_tokens, computed) is not None
    request.num_computed_tokens = request.num_tokens
    return request


def decode(manager: KVCacheManager, request: CacheRequest, *tokens: int) -> None:
    for token in tokens:
        request.append(token)
        assert manager.allocate_slots(request, 1) is not None
        request.num_computed_tokens += 1


def fork(manager: KVCacheManager, parent: CacheRequest, id: str) -> CacheRequest:
    child = CacheRequest(id, [])
    manager.fork(parent, child)
    return child


def test_a_child_names_its_blocks_as_its_parent_does() -> None:
    """A prompt shorter than a block has no named block yet: the salt must reach the child's first one."""
    manager = KVCacheManager(20, 4)
    parent = begin(manager, CacheRequest("a", range(2), salt="tenant", lora=("l", "/l"), mm=[MMItem("cat", 0, 1)]))
    child = fork(manager, parent, "b")
    decode(manager, child, 8, 9, 10)
    assert manager.get_computed_blocks(CacheRequest("c", [0, 1, 8, 9, 10])).num_tokens == 0
    same = CacheRequest("d", [0, 1, 8, 9, 10], salt="tenant", lora=("l", "/l"), mm=[MMItem("cat", 0, 1)])
    assert manager.get_computed_blocks(same).num_tokens == 4


def test_copies_can_be_carried_out_all_at_once() -> None:
    """Every source holds its content before the first copy, and no block is written twice."""
    manager = KVCacheManager(20, 4)
    first = begin(manager, CacheRequest("a", range(6)))
    source = manager.block_ids("a")[-1]
    second = fork(manager, first, "b")
    decode(manager, second, 7)
    third = fork(manager, second, "c")
    decode(manager, third, 8)
    assert manager.take_copies() == [(source, manager.block_ids("b")[-1]), (source, manager.block_ids("c")[-1])]
    assert manager.take_copies() == []


def test_a_copy_nobody_holds_any_more_gives_way() -> None:
    manager = KVCacheManager(20, 4)
    first = begin(manager, CacheRequest("a", range(6)))
    second, third = fork(manager, first, "b"), fork(manager, first, "c")
    decode(manager, second, 7)
    destination = manager.block_ids("b")[-1]
    manager.free(second)
    decode(manager, third, 8)
    assert manager.block_ids("c")[-1] == destination
    assert [pair[1] for pair in manager.take_copies()] == [destination]


def test_an_id_lives_once() -> None:
    manager = KVCacheManager(20, 4)
    request = begin(manager, CacheRequest("a", range(9)))
    again = CacheRequest("a", range(9))
    with pytest.raises(ValueError, match="'a' is live"):
        manager.allocate_slots(again, 1, manager.get_computed_blocks(again))
    with pytest.raises(ValueError, match="'a' is live"):
        manager.fork(request, again)
    with pytest.raises(ValueError, match="'x' holds no blocks"):
        manager.fork(CacheRequest("x", range(3)), CacheRequest("y", []))
    manager.check_integrity()
    manager.free(request)
    begin(manager, again)


@pytest.mark.parametrize("watermark", [-0.1, 1.0])
def test_a_watermark_is_a_share(watermark: float) -> None:
    with pytest.raises(ValueError, match="watermark"):
        KVCacheManager(10, 4, watermark=watermark)


def test_the_watermark_is_kept_free_of_new_requests_only() -> None:
    manager = KVCacheManager(11, 4, watermark=0.2)
    request = CacheRequest("a", range(36))
    assert manager.allocate_slots(request, 36, manager.get_computed_blocks(request)) is None
    request = begin(manager, CacheRequest("a", range(32)))
    decode(manager, request, 1)


def test_integrity_knows_of_pins() -> None:
    manager = KVCacheManager(10, 4)
    manager.free(begin(manager, CacheRequest("a", range(9))))
    pins = Pins(manager)
    pins.pin("p", CacheRequest("b", range(9)))
    manager.check_integrity(pins.held())


def test_hybrids_tell_where_a_prompt_diverges() -> None:
    specs = [GroupSpec("full", 4), GroupSpec("sliding_window", 2, 8)]
    manager = KVCacheManager(40, groups=specs, keep_tokens=True)
    manager.free(begin(manager, CacheRequest("a", range(12))))
    found = match(manager, CacheRequest("b", [0, 1, 2, 3, 4, 5, 6, 7, 8, 99]))
    assert found.divergence is not None
    assert (found.divergence.position, found.divergence.cached, found.divergence.prompt) == (9, (9, 10, 11), (99,))
    assert [chain.num_tokens for chain in chains(manager)] == [12]


def test_prompt_embeddings_name_each_block_by_its_own_digest() -> None:
    manager = KVCacheManager(40, 4)
    manager.free(begin(manager, CacheRequest("a", [0] * 9, prompt_embeds=[b"1", b"2", b"3"])))
    assert manager.get_computed_blocks(CacheRequest("b", [0] * 9, prompt_embeds=[b"1", b"x", b"3"])).num_tokens == 4
    assert manager.get_computed_blocks(CacheRequest("c", [0] * 9)).num_tokens == 0
