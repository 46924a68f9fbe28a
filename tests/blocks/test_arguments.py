"""Wrong arguments of the block cache are refused with the fix."""

from typing import Any

import pytest

from kvproxy import BlockHasher, CacheRequest, GroupSpec, KVCacheManager
from tests.blocks.driver import begin


def test_groups_and_hashers_are_checked() -> None:
    kind: Any = "mamba"
    with pytest.raises(ValueError, match="unknown kind of group 'mamba': use full, sliding_window, chunked_local"):
        GroupSpec(kind=kind, window=4)
    hasher: Any = "sha256"
    with pytest.raises(TypeError, match=r"write BlockHasher\('sha256'\)"):
        KVCacheManager(10, 4, hasher=hasher)
    seed: Any = 0
    with pytest.raises(TypeError, match="seed must be a string, as PYTHONHASHSEED is, not int: write '0'"):
        BlockHasher(seed=seed)
    with pytest.raises(ValueError, match="block_size is 4, but the groups have their own"):
        KVCacheManager(10, 4, groups=[GroupSpec("full", 16)])
    for name in ("alignment_tokens", "hash_block_size"):
        sizes: dict[str, Any] = {name: -1}
        with pytest.raises(ValueError, match=f"{name} is -1: use"):
            KVCacheManager(10, 4, **sizes)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"id": 1}, "id must be a string, not int"),
        ({"cache_salt": 1}, "cache_salt must be a string, not int"),
        ({"lora": "ab"}, "lora must be a pair of a name and a digest, not 'ab'"),
        ({"lora": ("a",)}, "lora must be a pair of a name and a digest"),
    ],
)
def test_the_options_of_a_request_are_checked(options: dict[str, Any], message: str) -> None:
    with pytest.raises(TypeError, match=message):
        CacheRequest(**{"id": "a", "tokens": [1], **options})


def test_groups_have_specifications() -> None:
    with pytest.raises(ValueError, match="groups is empty: leave it out"):
        KVCacheManager(10, groups=[])
    groups: Any = ["full"]
    with pytest.raises(TypeError, match="groups must be a sequence of GroupSpec, not of str"):
        KVCacheManager(10, groups=groups)


@pytest.mark.parametrize("request_", [None, "a", [1, 2]])
def test_the_manager_takes_requests_only(request_: Any) -> None:
    manager = KVCacheManager(10, 4)
    for call in (manager.get_computed_blocks, lambda each: manager.allocate_slots(each, 2), manager.free):
        with pytest.raises(TypeError, match="request must be a CacheRequest, not"):
            call(request_)


def test_a_negative_number_of_tokens_changes_nothing() -> None:
    manager = KVCacheManager(10, 4)
    with pytest.raises(ValueError, match="num_new_tokens is -1: use 0 or more"):
        manager.allocate_slots(CacheRequest("a", [1]), -1)
    assert manager.requests == {}


def test_a_fork_with_tokens_of_its_own_is_refused() -> None:
    manager = KVCacheManager(10, 4)
    parent = begin(manager, "p", range(6))
    with pytest.raises(ValueError, match=r"'c' has other tokens than its parent: create it with \[\]"):
        manager.fork(parent, CacheRequest("c", [1, 2]))
    manager.fork(parent, CacheRequest("c", range(6)))


@pytest.mark.parametrize("id", [-1, 10, 999])
def test_a_block_that_does_not_exist_cannot_be_evicted(id: int) -> None:
    manager = KVCacheManager(10, 4)
    with pytest.raises(ValueError, match=f"there is no block {id}: ids are 1 to 9"):
        manager.evict_blocks([1, id])


@pytest.mark.parametrize("priority", [-1, 10, 99])
def test_a_priority_has_one_digit(priority: int) -> None:
    with pytest.raises(ValueError, match=f"priority is {priority}: use 0 to 9"):
        CacheRequest("a", [1], priority=priority)


@pytest.mark.parametrize("tokens", ["hello", [1.0, 2.0], ["1"], [None]])
def test_tokens_are_integers(tokens: Any) -> None:
    with pytest.raises(TypeError, match="tokens must be integers, not"):
        CacheRequest("a", tokens)


@pytest.mark.parametrize("token", [None, "x", [4, 5], 0.5])
def test_an_appended_token_is_an_integer(token: Any) -> None:
    request = CacheRequest("a", [1])
    with pytest.raises(TypeError, match="tokens must be integers, not"):
        request.append(token)
    assert request.tokens == [1]


@pytest.mark.parametrize("algorithm", ["sha256_cbor", "sha256", "xxhash"])
@pytest.mark.parametrize("num_tokens", [8, 200])
def test_a_later_token_that_is_no_integer_is_refused_when_it_is_hashed(algorithm: Any, num_tokens: int) -> None:
    request = CacheRequest("a", [*range(num_tokens - 1)])
    token: Any = 0.5
    request.tokens.append(token)
    manager = KVCacheManager(100, 4, hasher=BlockHasher(algorithm))
    with pytest.raises(TypeError, match="tokens must be integers, not float"):
        manager.get_computed_blocks(request)
