"""Reads files that may be compressed with gzip or Zstandard."""

import gzip
import zlib
from collections.abc import Iterator
from typing import BinaryIO

GZIP = b"\x1f\x8b"
ZSTANDARD = b"\x28\xb5\x2f\xfd"
_STEP = 2**16
_MAX_WINDOW = 2**31


class DamagedFile(Exception):
    """A compressed file that is incomplete or invalid."""


def read_decompressed(file: BinaryIO, size: int | None = None) -> bytes:
    """Return the content of a seekable file, or its first `size` bytes. Raises DamagedFile or OSError."""
    parts, length = list[bytes](), 0
    for part in _parts(file):
        parts.append(part)
        length += len(part)
        if size is not None and length >= size:
            break
    return b"".join(parts)[:size]


def _parts(file: BinaryIO) -> Iterator[bytes]:
    head = file.read(len(ZSTANDARD))
    file.seek(0)
    try:
        if head.startswith(GZIP):
            with gzip.GzipFile(fileobj=file) as unpacked:
                yield from iter(lambda: unpacked.read(_STEP), b"")
        elif head == ZSTANDARD:
            yield from _unpack_zstandard(file)
        else:
            yield from iter(lambda: file.read(_STEP), b"")
    except EOFError:
        raise DamagedFile("it ends early") from None
    except (gzip.BadGzipFile, zlib.error):
        raise DamagedFile("its compressed data is invalid") from None


def _unpack_zstandard(file: BinaryIO) -> Iterator[bytes]:
    import zstandard

    unpacker = zstandard.ZstdDecompressor(max_window_size=_MAX_WINDOW)
    frame = unpacker.decompressobj()
    try:
        while data := file.read(_STEP):
            while data:
                # A file may have several frames.
                frame = unpacker.decompressobj() if frame.eof else frame
                yield frame.decompress(data)
                data = frame.unused_data if frame.eof else b""
    except zstandard.ZstdError as error:
        raise DamagedFile(str(error)) from None
    if not frame.eof:
        raise DamagedFile("it ends early")
