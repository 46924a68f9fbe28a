"""Wrong arguments of the block cache are refused with the fix."""

from typing import Any

import pytest

from kvproxy import BlockHasher, CacheRequest, GroupSpec, KVCacheManager


def test_groups_and_hashers_are_checked() -> None:
    kind: Any = "mamba"
    with pytest.raises(ValueError, match="unknown kind of group 'mamba': use full, sliding_window, chunked_local"):
        GroupSpec(kind=kind, window=4)
    hasher: Any = "sha256"
    with pytest.raises(TypeError, match=r"write BlockHasher\('sha256'\)"):
        KVCacheManager(10, 4, hasher=hasher)
    for name in ("alignment_tokens", "hash_block_size"):
        sizes: dict[str, Any] = {name: -1}
        with pytest.raises(ValueError, match=f"{name} is -1: use"):
            KVCacheManager(10, 4, **sizes)


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


@pytest.mark.parametrize("algorithm", ["sha256_cbor", "sha256", "xxhash"])
@pytest.mark.parametrize("num_tokens", [8, 200])
def test_a_later_token_that_is_no_integer_is_refused_when_it_is_hashed(algorithm: Any, num_tokens: int) -> None:
    request = CacheRequest("a", [*range(num_tokens - 1)])
    token: Any = 0.5
    request.append(token)
    manager = KVCacheManager(100, 4, hasher=BlockHasher(algorithm))
    with pytest.raises(TypeError, match="tokens must be integers, not float"):
        manager.get_computed_blocks(request)
