"""The binary format of a chunk.

    magic 8 | checksum 16 | version u32 | tokens u32 | digest length u32 | header length u32 | payload length u64
    | fingerprint 32 | digest | token ids u32 .. | padding to 64 | payload

Little-endian. The checksum (xxh3_128) covers all bytes after it. `fingerprint` identifies the model and the layout of the
payload. `digest` is the hash of the chunk's last block, which covers all previous tokens of the prompt.
"""

import struct
import sys
from array import array
from collections.abc import Sequence
from dataclasses import dataclass

import xxhash

from kvproxy.tiers.chunk_store import ChunkData

MAGIC = b"kvchunk\n"
VERSION = 1
ALIGNMENT = 64

_SUM_END = len(MAGIC) + 16
_FIXED = struct.Struct("<IIIIQ32s")


@dataclass(frozen=True, slots=True)
class ChunkName:
    """The identity of a chunk: `fingerprint` of the model, `digest` of the prompt up to the chunk's end, and its tokens."""

    fingerprint: bytes
    digest: bytes
    tokens: Sequence[int]

    @property
    def key(self) -> str:
        return f"{self.fingerprint.hex()[:16]}-{self.digest.hex()}"


def payload_offset(name: ChunkName) -> int:
    used = _SUM_END + _FIXED.size + len(name.digest) + 4 * len(name.tokens)
    return -(-used // ALIGNMENT) * ALIGNMENT


def write_header(buffer: memoryview, name: ChunkName) -> None:
    """Write header and checksum to a buffer that has the payload at `payload_offset`."""
    start = payload_offset(name)
    header = _encode_header(name, len(buffer))
    buffer[:start] = bytes(start)
    buffer[_SUM_END : _SUM_END + len(header)] = header
    buffer[: len(MAGIC)] = MAGIC
    buffer[len(MAGIC) : _SUM_END] = xxhash.xxh3_128_digest(buffer[_SUM_END:])


def read_payload(data: ChunkData, name: ChunkName) -> memoryview | None:
    """Return the payload of a chunk; None if the chunk is damaged or has another `ChunkName`."""
    view = memoryview(data)
    start = payload_offset(name)
    if len(view) < start or view[: len(MAGIC)] != MAGIC:
        return None
    header = _encode_header(name, len(view))
    is_named = view[_SUM_END : _SUM_END + len(header)] == header
    is_intact = is_named and view[len(MAGIC) : _SUM_END] == xxhash.xxh3_128_digest(view[_SUM_END:])
    return view[start:] if is_intact else None


def _encode_header(name: ChunkName, chunk_bytes: int) -> bytes:
    start = payload_offset(name)
    ids = array("I", name.tokens)
    if sys.byteorder == "big":
        ids.byteswap()
    fixed = _FIXED.pack(VERSION, len(name.tokens), len(name.digest), start, chunk_bytes - start, name.fingerprint)
    return fixed + name.digest + ids.tobytes()
