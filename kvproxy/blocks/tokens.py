"""Token ids as canonical CBOR, a whole prompt at a time: the part of block hashing that numpy can do at once."""

from array import array
from collections.abc import Sequence
from functools import lru_cache

_SMALL = 64  # Below this many tokens numpy's fixed cost per call is larger than encoding them one by one.
_NULL = b"\xf6"


def encode_blocks(tokens: Sequence[int], block_size: int) -> list[bytes]:
    """Each block's tokens as a CBOR array, followed by CBOR's null (the usual extra keys of a block).

    Args:
        tokens: ids from 0 to 2**64 - 1, a multiple of `block_size` of them.
        block_size: tokens in a block.
    """
    head = _head(0x80, block_size)
    if len(tokens) > _SMALL:
        try:
            return _encode_many(array("I", tokens), block_size, head)
        except OverflowError:
            pass  # An id of more than 32 bits: no vocabulary has one, but the format allows it.
    return [
        head + b"".join(map(_encode_token, tokens[start : start + block_size])) + _NULL
        for start in range(0, len(tokens), block_size)
    ]


def _encode_many(tokens: "array[int]", block_size: int, head: bytes) -> list[bytes]:
    """All blocks at once: every token gets five bytes of room, and a mask keeps those of its shortest form."""
    import numpy as np

    ids = np.frombuffer(tokens, dtype=np.uint32)
    blocks, lead = len(ids) // block_size, len(head)
    width = lead + 5 * block_size + 1
    # 0: the id itself; 1, 2, 3: a leading byte, then one, two or four bytes.
    form = (ids > 23).view(np.uint8) + (ids > 0xFF).view(np.uint8) + (ids > 0xFFFF).view(np.uint8)
    room = np.empty((blocks, width), dtype=np.uint8)
    room[:, :lead] = np.frombuffer(head, dtype=np.uint8)
    room[:, -1] = _NULL[0]
    cells = room[:, lead:-1].reshape(blocks, block_size, 5)
    cells[:, :, 0] = (form + np.uint8(0x17)).reshape(blocks, block_size)
    cells[:, :, 1:] = ids.astype(">u4").view(np.uint8).reshape(blocks, block_size, 4)
    kept = np.array([[0, 0, 0, 0, 1], [1, 0, 0, 0, 1], [1, 0, 0, 1, 1], [1, 1, 1, 1, 1]], dtype=bool)
    mask = np.ones((blocks, width), dtype=bool)
    mask[:, lead:-1] = kept.take(form, axis=0).reshape(blocks, 5 * block_size)
    sizes = np.array([1, 2, 3, 5]).take(form).reshape(blocks, block_size).sum(axis=1) + (lead + 1)
    data = room.ravel().compress(mask.ravel()).tobytes()
    ends = sizes.cumsum().tolist()
    return [data[begin:end] for begin, end in zip([0, *ends], ends, strict=False)]


@lru_cache(maxsize=65_536)
def _encode_token(token: int) -> bytes:
    return _head(0x00, token)


def _head(major: int, value: int) -> bytes:
    """CBOR's shortest head of a major type with an argument (RFC 8949, section 3)."""
    if value < 24:
        return bytes((major | value,))
    for code, width in ((24, 1), (25, 2), (26, 4), (27, 8)):
        if value < 1 << (8 * width):
            return bytes((major | code,)) + value.to_bytes(width, "big")
    raise ValueError(f"token {value} does not fit 64 bits")
