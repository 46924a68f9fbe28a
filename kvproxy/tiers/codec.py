"""A chunk as bytes: who may read it, what it holds, and a checksum over all of it.

    magic 8 | checksum 16 | version u32 | tokens u32 | digest length u32 | header length u32 | payload length u64
    | fingerprint 32 | digest | token ids u32 .. | padding to 64 | payload

Little-endian. The checksum (xxh3_128) covers everything after itself. `fingerprint` names the model, its weights and
the layout of the payload; `digest` is the chain hash of the chunk's last block, so it names all tokens before it too.
"""

import struct
import sys
from array import array
from collections.abc import Sequence
from dataclasses import dataclass

import xxhash

from kvproxy.tiers.store import Data

MAGIC = b"kvchunk\n"
VERSION = 1
ALIGNMENT = 64
"""Bytes to which the payload is aligned in its buffer, so that a tensor can be laid over it."""

_SUM_END = len(MAGIC) + 16
_FIXED = struct.Struct("<IIIIQ32s")


@dataclass(frozen=True, slots=True)
class ChunkName:
    """What a chunk must be to be used: of this model, at the end of this chain, over these tokens."""

    fingerprint: bytes
    digest: bytes
    tokens: Sequence[int]

    @property
    def key(self) -> str:
        """What stores keep it under: models never meet, not even in a shared folder."""
        return f"{key_prefix(self.fingerprint)}{self.digest.hex()}"


def key_prefix(fingerprint: bytes) -> str:
    """How the keys of a model's chunks begin."""
    return f"{fingerprint.hex()[:16]}-"


def header_bytes(name: ChunkName) -> int:
    """Where the payload begins in a chunk's buffer."""
    used = _SUM_END + _FIXED.size + len(name.digest) + 4 * len(name.tokens)
    return -(-used // ALIGNMENT) * ALIGNMENT


def seal(buffer: memoryview, name: ChunkName) -> None:
    """Write the header in front of a payload that is in the buffer already, at `header_bytes`."""
    start = header_bytes(name)
    fixed = _FIXED.pack(
        VERSION, len(name.tokens), len(name.digest), start, len(buffer) - start, name.fingerprint
    )  # fmt: skip
    header = fixed + name.digest + _ids(name.tokens)
    buffer[:start] = bytes(start)
    buffer[_SUM_END : _SUM_END + len(header)] = header
    buffer[: len(MAGIC)] = MAGIC
    buffer[len(MAGIC) : _SUM_END] = xxhash.xxh3_128_digest(buffer[_SUM_END:])


def unseal(data: Data, name: ChunkName) -> memoryview | None:
    """The payload of a chunk, or None unless it is whole and is what `name` says."""
    view = memoryview(data)
    start = header_bytes(name)
    if len(view) < start or view[: len(MAGIC)] != MAGIC:
        return None
    fixed = _FIXED.pack(VERSION, len(name.tokens), len(name.digest), start, len(view) - start, name.fingerprint)
    header = fixed + name.digest + _ids(name.tokens)
    if view[_SUM_END : _SUM_END + len(header)] != header:
        return None
    if view[len(MAGIC) : _SUM_END] != xxhash.xxh3_128_digest(view[_SUM_END:]):
        return None
    return view[start:]


def _ids(tokens: Sequence[int]) -> bytes:
    ids = array("I", tokens)
    if sys.byteorder == "big":
        ids.byteswap()
    return ids.tobytes()
