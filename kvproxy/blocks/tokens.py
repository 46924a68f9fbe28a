"""Token ids as canonical CBOR, a whole prompt at a time: the part of block hashing that numpy can do at once."""

from collections.abc import Sequence
from functools import lru_cache

_SMALL = 64  # Below this many tokens numpy's fixed cost per call is larger than encoding them one by one.


def encode_blocks(tokens: Sequence[int], block_size: int) -> list[bytes]:
    """Each block's tokens as a CBOR array, followed by CBOR's null (the usual extra keys of a block).

    Args:
        tokens: ids from 0 to 2**64 - 1, a multiple of `block_size` of them.
        block_size: tokens in a block.
    """
    head = _head(0x80, block_size)
    if len(tokens) <= _SMALL:
        return [
            head + b"".join(map(_encode_token, tokens[start : start + block_size])) + b"\xf6"
            for start in range(0, len(tokens), block_size)
        ]
    return _encode_many(tokens, block_size, head)


def _encode_many(tokens: Sequence[int], block_size: int, head: bytes) -> list[bytes]:
    import numpy as np

    ids = np.asarray(tokens, dtype=np.uint64)
    if int(ids.max()) > 0xFFFF_FFFF:
        return [
            head + b"".join(map(_encode_token, tokens[start : start + block_size])) + b"\xf6"
            for start in range(0, len(tokens), block_size)
        ]
    ids = ids.astype(np.uint32)
    # A row of five bytes a token: the first byte of its form, then its value; `keep` picks the bytes of the form.
    rows = np.empty((len(ids), 5), dtype=np.uint8)
    rows[:, 1:] = ids.astype(">u4").view(np.uint8).reshape(-1, 4)
    keep = np.zeros((len(ids), 5), dtype=bool)
    keep[:, 4] = True
    keep[:, 0] = one = ids > 23
    two, four = ids > 0xFF, ids > 0xFFFF
    keep[:, 3] = two
    keep[:, 1] = keep[:, 2] = four
    rows[:, 0] = 0x17 + one.view(np.uint8) + two.view(np.uint8) + four.view(np.uint8)
    data = rows[keep].tobytes()
    sizes = keep.sum(axis=1).reshape(-1, block_size).sum(axis=1)
    ends = np.cumsum(sizes).tolist()
    begin, blocks = 0, []
    for end in ends:
        blocks.append(head + data[begin:end] + b"\xf6")
        begin = end
    return blocks


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
