"""Block hashes: the digest of a full block covers its parent's hash, its tokens, and extra keys (adapter, image, salt).

    h_i = H((h_(i-1), (t_0, .., t_(n-1)), extra_keys))

All digests equal vLLM's. The algorithms without `_cbor` serialize with pickle, whose output depends on the Python version.
"""

import hashlib
import os
import pickle
from array import array
from collections.abc import Callable, Sequence
from typing import Any, Literal, get_args

import xxhash

_MIN_VECTOR_TOKENS = 64  # Below, numpy's fixed cost exceeds the cost of a loop.
_CBOR_NULL = b"\xf6"


def check_token(token: object) -> None:
    if not isinstance(token, int):
        raise TypeError(
            f"tokens must be integers, not {type(token).__name__}: give the ids of a tokenizer, or .tolist() of an array"
        )


def encode_as_cbor(tokens: Sequence[int], block_size: int) -> list[bytes]:
    if len(tokens) > _MIN_VECTOR_TOKENS:
        try:
            return _encode_with_numpy(array("I", tokens), block_size)
        except (OverflowError, TypeError):
            pass  # An id exceeds 32 bits, or is no integer.
    for token in tokens:
        check_token(token)
    starts = range(0, len(tokens), block_size)
    return [_cbor(tuple(tokens[start : start + block_size])) + _CBOR_NULL for start in starts]


def _encode_with_numpy(tokens: "array[int]", block_size: int) -> list[bytes]:
    import numpy as np

    ids = np.frombuffer(tokens, dtype=np.uint32)
    head = _cbor((0,) * block_size)[:-block_size]
    blocks, lead = len(ids) // block_size, len(head)
    width = lead + 5 * block_size + 1
    # 0: one byte with the id; 1, 2, 3: a head byte and one, two, or four bytes.
    form = (ids > 23).view(np.uint8) + (ids > 0xFF).view(np.uint8) + (ids > 0xFFFF).view(np.uint8)
    buffer = np.empty((blocks, width), dtype=np.uint8)
    buffer[:, :lead] = np.frombuffer(head, dtype=np.uint8)
    buffer[:, -1] = _CBOR_NULL[0]
    cells = buffer[:, lead:-1].reshape(blocks, block_size, 5)
    cells[:, :, 0] = (form + np.uint8(0x17)).reshape(blocks, block_size)
    cells[:, :, 1:] = ids.astype(">u4").view(np.uint8).reshape(blocks, block_size, 4)
    used = np.array([[0, 0, 0, 0, 1], [1, 0, 0, 0, 1], [1, 0, 0, 1, 1], [1, 1, 1, 1, 1]], dtype=bool)
    mask = np.ones((blocks, width), dtype=bool)
    mask[:, lead:-1] = used.take(form, axis=0).reshape(blocks, 5 * block_size)
    sizes = np.array([1, 2, 3, 5]).take(form).reshape(blocks, block_size).sum(axis=1) + (lead + 1)
    data = buffer.ravel().compress(mask.ravel()).tobytes()
    ends = sizes.cumsum().tolist()
    return [data[begin:end] for begin, end in zip([0, *ends], ends, strict=False)]


HashAlgorithm = Literal["sha256_cbor", "xxhash_cbor", "sha256", "xxhash"]
ExtraKeys = tuple[Any, ...] | None

_DEFAULT_SEED = "vllm-none-hash"


class BlockHasher:
    """Computes block hashes.

    `seed` determines `none_hash`, the parent hash of each prompt's first block. The default is `PYTHONHASHSEED`, as in
    vLLM. If that is not set, sha256 uses vLLM's fixed string, and xxhash uses random bytes.
    """

    def __init__(self, algorithm: HashAlgorithm = "sha256_cbor", seed: str | None = None) -> None:
        if algorithm not in get_args(HashAlgorithm):
            raise ValueError(f"unknown hash algorithm {algorithm!r}: use one of {', '.join(get_args(HashAlgorithm))}")
        if seed is not None and not isinstance(seed, str):
            raise TypeError(
                f"seed must be a string, as PYTHONHASHSEED is, not {type(seed).__name__}: write {str(seed)!r}"
            )
        self.algorithm = algorithm
        self._is_cbor = algorithm.endswith("_cbor")
        self._digest: Callable[[bytes], bytes] = _sha256 if algorithm.startswith("sha256") else xxhash.xxh3_128_digest
        seed = os.environ.get("PYTHONHASHSEED") if seed is None else seed
        if seed is None and algorithm.startswith("xxhash"):
            self.none_hash = os.urandom(16 if self._is_cbor else 32)
        else:
            seed = _DEFAULT_SEED if seed is None else seed
            encoded = _cbor(seed) if self._is_cbor else pickle.dumps(seed, pickle.HIGHEST_PROTOCOL)
            self.none_hash = self._digest(encoded)
        self._head = b"\x83\x58\x20" if len(self.none_hash) == 32 else b"\x83\x50"

    def hash_blocks(
        self,
        tokens: Sequence[int],
        block_size: int,
        *,
        parent: bytes | None = None,
        extra_keys: Callable[[int], ExtraKeys] | None = None,
        start: int = 0,
    ) -> list[bytes]:
        """Return the hashes of the full blocks in `tokens[start:]`.

        Args:
            parent: hash of the block before `start`; None if `start` is 0.
            extra_keys: returns the extra keys of a block, given the position of its first token.
        """
        parent = self.none_hash if parent is None else parent
        starts = range(start, len(tokens) - block_size + 1, block_size)
        keys = None if extra_keys is None else [extra_keys(begin) for begin in starts]
        digest, digests = self._digest, list[bytes]()
        if self._is_cbor:
            encoded = encode_as_cbor(tokens[start : start + len(starts) * block_size], block_size) if starts else []
            if keys is not None:
                encoded = [block[:-1] + _cbor(key) for block, key in zip(encoded, keys, strict=True)]
            head = self._head
            for block in encoded:
                parent = digest(head + parent + block)
                digests.append(parent)
            return digests
        for begin, key in zip(starts, keys or [None] * len(starts), strict=True):
            block_tokens = tuple(tokens[begin : begin + block_size])
            for token in block_tokens:
                check_token(token)
            content = (parent, block_tokens, key)
            parent = digest(pickle.dumps(content, pickle.HIGHEST_PROTOCOL))
            digests.append(parent)
        return digests


def _sha256(data: bytes) -> bytes:
    return hashlib.sha256(data).digest()


def _cbor(value: object) -> bytes:
    import cbor2

    encoded: bytes = cbor2.dumps(value, canonical=True)
    return encoded


def event_hash(digest: bytes) -> int:
    """Return the integer that stands for a block hash in KV events: its low 64 bits."""
    return int.from_bytes(digest[-8:], "big")
