"""Block hashes: the digest of a full block covers its parent's hash, its tokens, and its extra keys.

    h_i = H((h_(i-1), (t_0, .., t_(n-1)), extra_keys))

The four algorithms equal vLLM's bit for bit. The CBOR algorithms depend on the values only; the others use pickle.
"""

import hashlib
import os
import pickle
from array import array
from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import Any, Literal, get_args

import xxhash

_MIN_VECTOR_TOKENS = 64  # Below, numpy's fixed cost exceeds the cost of a loop.
_CBOR_NULL = b"\xf6"


def encode_as_cbor(tokens: Sequence[int], block_size: int) -> list[bytes]:
    """Encode each block's tokens as a CBOR array, followed by null (no extra keys)."""
    head = _head(0x80, block_size)
    if len(tokens) > _MIN_VECTOR_TOKENS:
        try:
            return _encode_many(array("I", tokens), block_size, head)
        except OverflowError:
            pass  # An id exceeds 32 bits.
    return [
        head + b"".join(map(_encode_token, tokens[start : start + block_size])) + _CBOR_NULL
        for start in range(0, len(tokens), block_size)
    ]


def _encode_many(tokens: "array[int]", block_size: int, head: bytes) -> list[bytes]:
    import numpy as np

    ids = np.frombuffer(tokens, dtype=np.uint32)
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


@lru_cache(maxsize=65_536)
def _encode_token(token: int) -> bytes:
    return _head(0x00, token)


def _head(major: int, value: int) -> bytes:
    """Encode the shortest CBOR head of a major type with an argument (RFC 8949, section 3)."""
    if value < 24:
        return bytes((major | value,))
    for code, width in ((24, 1), (25, 2), (26, 4), (27, 8)):
        if value < 1 << (8 * width):
            return bytes((major | code,)) + value.to_bytes(width, "big")
    raise ValueError(f"token {value} exceeds 64 bits")


HashAlgorithm = Literal["sha256_cbor", "xxhash_cbor", "sha256", "xxhash"]
ExtraKeys = tuple[Any, ...] | None

_DEFAULT_SEED = "vllm-none-hash"


class BlockHasher:
    """Computes block hashes.

    `seed` determines the first block's parent hash. None uses `PYTHONHASHSEED` as vLLM does; if that is not set,
    vLLM's fixed string for sha256, and random bytes for xxhash.
    """

    def __init__(self, algorithm: HashAlgorithm = "sha256_cbor", seed: str | None = None) -> None:
        if algorithm not in get_args(HashAlgorithm):
            raise ValueError(f"unknown hash algorithm {algorithm!r}: use one of {', '.join(get_args(HashAlgorithm))}")
        self.algorithm = algorithm
        self._is_cbor = algorithm.endswith("_cbor")
        self._digest: Callable[[bytes], bytes] = _sha256 if algorithm.startswith("sha256") else _xxh3_128
        self.none_hash = self._none_hash(seed if seed is not None else os.environ.get("PYTHONHASHSEED"))
        self._head = b"\x83\x58\x20" if len(self.none_hash) == 32 else b"\x83\x50"

    def _none_hash(self, seed: str | None) -> bytes:
        if seed is None:
            if self.algorithm.startswith("xxhash"):
                return os.urandom(16) if self._is_cbor else os.urandom(32)
            seed = _DEFAULT_SEED
        return self._digest(_cbor(seed) if self._is_cbor else pickle.dumps(seed, pickle.HIGHEST_PROTOCOL))

    def chain(
        self,
        tokens: Sequence[int],
        block_size: int,
        *,
        parent: bytes | None = None,
        extra_keys: Callable[[int], ExtraKeys] | None = None,
        start: int = 0,
    ) -> list[bytes]:
        """Hash the full blocks in `tokens[start:]`; `parent` is the hash of the block that ends at `start`."""
        parent = self.none_hash if parent is None else parent
        if self._is_cbor:
            return self._chain_cbor(tokens, block_size, parent, extra_keys, start)
        digests: list[bytes] = []
        for begin in range(start, len(tokens) - block_size + 1, block_size):
            block = (parent, tuple(tokens[begin : begin + block_size]), extra_keys(begin) if extra_keys else None)
            parent = self._digest(pickle.dumps(block, pickle.HIGHEST_PROTOCOL))
            digests.append(parent)
        return digests

    def _chain_cbor(
        self,
        tokens: Sequence[int],
        block_size: int,
        parent: bytes,
        extra_keys: Callable[[int], ExtraKeys] | None,
        start: int,
    ) -> list[bytes]:
        count = (len(tokens) - start) // block_size
        if count <= 0:
            return []
        encoded = encode_as_cbor(tokens[start : start + count * block_size], block_size)
        head = self._head
        digests: list[bytes] = []
        append = digests.append
        if extra_keys is not None:
            for index, block in enumerate(encoded):
                keys = extra_keys(start + index * block_size)
                parent = self._digest(head + parent + block[:-1] + (_CBOR_NULL if keys is None else _cbor(keys)))
                append(parent)
        elif self._digest is _sha256:
            sha256 = hashlib.sha256
            for block in encoded:
                parent = sha256(head + parent + block).digest()
                append(parent)
        else:
            xxh3 = xxhash.xxh3_128_digest
            for block in encoded:
                parent = xxh3(head + parent + block)
                append(parent)
        return digests


def _sha256(data: bytes) -> bytes:
    return hashlib.sha256(data).digest()


def _xxh3_128(data: bytes) -> bytes:
    return xxhash.xxh3_128_digest(data)


def _cbor(value: object) -> bytes:
    import cbor2

    encoded: bytes = cbor2.dumps(value, canonical=True)
    return encoded


def event_hash(digest: bytes) -> int:
    """Return the hash's integer form in KV events: the low 64 bits, big-endian."""
    return int.from_bytes(digest[-8:], "big")
