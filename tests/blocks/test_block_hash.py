"""Digests equal vLLM's: published vectors, and the recipe spelled out with a CBOR library and pickle."""

import hashlib
import pickle
from typing import Any

import cbor2
import pytest
import xxhash
from hypothesis import given, settings
from hypothesis import strategies as st

from kvproxy.blocks.block_hash import BlockHasher, event_hash
from kvproxy.blocks.cache_request import CacheRequest, MMItem

# Integers whose CBOR forms have different lengths, and between them the values that most tokens have.
EDGES = (0, 23, 24, 255, 256, 65_535, 65_536, 2**32 - 1, 2**32, 2**64 - 1)
TOKENS = st.lists(st.one_of(st.integers(0, 300), st.integers(0, 2**32 - 1), st.sampled_from(EDGES)), max_size=150)


def test_published_vectors(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("PYTHONHASHSEED", raising=False)
    hasher = BlockHasher()
    assert hasher.none_hash.hex().startswith("9bd96a48")
    assert hasher.none_hash.hex().endswith("81eef0")
    (digest,) = hasher.hash_blocks([1, 2, 3, 4], 4)
    assert digest.hex().startswith("58d0879d")
    assert digest.hex().endswith("d55111")
    assert event_hash(digest) == 9561501211280363793
    monkeypatch.setenv("PYTHONHASHSEED", "0")
    assert BlockHasher().none_hash.hex().startswith("4e1195df")
    assert BlockHasher().none_hash.hex().endswith("e61c3e")


@settings(max_examples=50)
@given(TOKENS, st.integers(1, 40))
def test_chain_is_the_recipe(tokens: list[int], size: int) -> None:
    for algorithm, digest in (("sha256_cbor", _sha256), ("xxhash_cbor", xxhash.xxh3_128_digest)):
        hasher = BlockHasher(algorithm, seed="s")  # type: ignore[arg-type]
        parent, expected = hasher.none_hash, []
        for start in range(0, len(tokens) - size + 1, size):
            parent = digest(cbor2.dumps((parent, tuple(tokens[start : start + size]), None), canonical=True))
            expected.append(parent)
        assert hasher.hash_blocks(tokens, size) == expected


@settings(max_examples=40)
@given(TOKENS, TOKENS, st.integers(1, 20))
def test_incremental_equals_whole(head: list[int], tail: list[int], size: int) -> None:
    hasher = BlockHasher(seed="s")
    request = CacheRequest("r", head)
    request.update_hashes(hasher, size)
    for token in tail:
        request.append(token)
        request.update_hashes(hasher, size)
    assert request.block_hashes == hasher.hash_blocks(head + tail, size)


def test_extra_keys_in_vllms_order() -> None:
    request = CacheRequest("r", range(12), cache_salt="pepper", lora=("name", "/path"), mm=[MMItem("picture", 2, 4)])
    assert request.extra_keys(0, 4) == (("lora", "name", "/path"), ("mm", "picture", 2), ("cache_salt", "pepper"))
    assert request.extra_keys(4, 8) == (("lora", "name", "/path"), ("mm", "picture", -2))
    assert request.extra_keys(8, 12) == (("lora", "name", "/path"),)
    hasher = BlockHasher(seed="s")
    first = cbor2.dumps((hasher.none_hash, (0, 1, 2, 3), request.extra_keys(0, 4)), canonical=True)
    assert request.update_hashes(hasher, 4)[0] == _sha256(first)


def test_pickle_kinds_and_random_seed() -> None:
    hasher = BlockHasher("sha256", seed="s")
    expected = pickle.dumps((hasher.none_hash, (1, 2), None), pickle.HIGHEST_PROTOCOL)
    assert hasher.hash_blocks([1, 2], 2) == [_sha256(expected)]
    assert len(BlockHasher("xxhash", seed="s").hash_blocks([1, 2], 2)[0]) == 16


@pytest.mark.parametrize(("algorithm", "size"), [("xxhash", 32), ("xxhash_cbor", 16)])
def test_without_a_seed_xxhash_begins_at_random(algorithm: Any, size: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("PYTHONHASHSEED", raising=False)
    beginnings = {BlockHasher(algorithm).none_hash for _ in range(4)}
    assert len(beginnings) == 4
    assert {len(beginning) for beginning in beginnings} == {size}
    assert len({BlockHasher(algorithm, seed="s").none_hash for _ in range(4)}) == 1


def test_unknown_algorithm_is_named() -> None:
    with pytest.raises(ValueError, match="md5"):
        BlockHasher("md5")  # type: ignore[arg-type]


def _sha256(data: bytes) -> bytes:
    return hashlib.sha256(data).digest()
