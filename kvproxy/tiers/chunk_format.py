"""The binary format of a chunk.

    magic 8 | checksum 16 | version u32 | tokens u32 | digest length u32 | header length u32 | payload length u64
    | fingerprint 32 | digest | token ids u32 .. | padding to 64 | payload

Little-endian. The checksum (xxh3_128) covers all bytes after it. `fingerprint` identifies the model, its weights, and the
layout of the payload; `digest` is the hash of the chunk's last block, so it covers all previous tokens too.
"""

import struct
import sys
from array import array
from collections.abc import Sequence
from dataclasses import dataclass

import xxhash

from kvproxy.tiers.chunk_store import Data

MAGIC = b"kvchunk\n"
VERSION = 1
ALIGNMENT = 64

_SUM_END = len(MAGIC) + 16
_FIXED = struct.Struct("<IIIIQ32s")


@dataclass(frozen=True, slots=True)
class ChunkName:
    """The identity of a chunk; see this module's docstring. `tokens` excludes earlier chunks."""

    fingerprint: bytes
    digest: bytes
    tokens: Sequence[int]

    @property
    def key(self) -> str:
        return f"{key_prefix(self.fingerprint)}{self.digest.hex()}"


def key_prefix(fingerprint: bytes) -> str:
    return f"{fingerprint.hex()[:16]}-"


def header_bytes(name: ChunkName) -> int:
    """Return the offset of the payload in a chunk's buffer."""
    used = _SUM_END + _FIXED.size + len(name.digest) + 4 * len(name.tokens)
    return -(-used // ALIGNMENT) * ALIGNMENT


def write_header(buffer: memoryview, name: ChunkName) -> None:
    """Write header and checksum into a buffer with the payload at `header_bytes`."""
    start = header_bytes(name)
    header = _header(name, len(buffer))
    buffer[:start] = bytes(start)
    buffer[_SUM_END : _SUM_END + len(header)] = header
    buffer[: len(MAGIC)] = MAGIC
    buffer[len(MAGIC) : _SUM_END] = xxhash.xxh3_128_digest(buffer[_SUM_END:])


def read_payload(data: Data, name: ChunkName) -> memoryview | None:
    """Return the payload of a chunk; None if the chunk is damaged or is not `name`."""
    view = memoryview(data)
    start = header_bytes(name)
    if len(view) < start or view[: len(MAGIC)] != MAGIC:
        return None
    header = _header(name, len(view))
    if view[_SUM_END : _SUM_END + len(header)] != header:
        return None
    if view[len(MAGIC) : _SUM_END] != xxhash.xxh3_128_digest(view[_SUM_END:]):
        return None
    return view[start:]


def _header(name: ChunkName, size: int) -> bytes:
    start = header_bytes(name)
    ids = array("I", name.tokens)
    if sys.byteorder == "big":
        ids.byteswap()
    fixed = _FIXED.pack(VERSION, len(name.tokens), len(name.digest), start, size - start, name.fingerprint)
    return fixed + name.digest + ids.tobytes()
