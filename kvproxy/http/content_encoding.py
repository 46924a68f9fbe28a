"""Decodes compressed request bodies (RFC 9110, section 8.4), in steps that a limit of their size can stop."""

import zlib
from collections.abc import Callable, Iterable, Iterator

import brotli
import zstandard

from kvproxy.errors import InvalidRequest, UnsupportedEncoding

_STEP = 2**18  # Decoded bytes of a step.
_ZSTD_INPUT = 64  # Encoded bytes of a step: a block of 128 KiB may occupy 4 bytes.
_MAX_WINDOW = 2**23  # RFC 9659.
_MAX_CODINGS = 3


def codings_of(values: Iterable[str]) -> list[str]:
    """Return the codings of a body in the order in which they were applied. Raises UnsupportedEncoding."""
    codings = [coding.strip().lower() for value in values for coding in value.split(",")]
    codings = [coding.removeprefix("x-") for coding in codings if coding not in ("", "identity")]
    unknown = [coding for coding in codings if coding not in _DECODERS]
    if unknown or len(codings) > _MAX_CODINGS:
        what = f"content-encoding {unknown[0][:40]!r}" if unknown else f"{len(codings)} content-encodings"
        raise UnsupportedEncoding(f"{what} of a request body: send {', '.join(_DECODERS)}, or the body uncompressed")
    return codings


def decode(chunks: Iterable[bytes], codings: list[str]) -> Iterator[bytes]:
    """Yield the decoded body in chunks of bounded size. Raises InvalidRequest if the body is invalid or incomplete."""
    for coding in reversed(codings):
        chunks = _checked(_DECODERS[coding](chunks), coding)
    return _merged(chunks)


def _merged(chunks: Iterable[bytes]) -> Iterator[bytes]:
    parts, size = list[bytes](), 0
    for chunk in chunks:
        parts.append(chunk)
        size += len(chunk)
        if size >= _STEP:
            yield b"".join(parts)
            parts, size = [], 0
    if parts:
        yield b"".join(parts)


def _checked(chunks: Iterator[bytes], coding: str) -> Iterator[bytes]:
    try:
        yield from chunks
    except (zlib.error, brotli.error, zstandard.ZstdError, EOFError) as error:
        raise InvalidRequest(f"the body is not valid {coding}: {error}") from None


def _decode_gzip(chunks: Iterable[bytes]) -> Iterator[bytes]:
    return _inflate(chunks, lambda data: zlib.decompressobj(wbits=31))


def _decode_deflate(chunks: Iterable[bytes]) -> Iterator[bytes]:
    # Some clients send raw deflate data instead of the zlib format that RFC 9110 requires.
    return _inflate(chunks, lambda data: zlib.decompressobj(wbits=15 if data[0] & 0x0F == 8 else -15))


def _inflate(chunks: Iterable[bytes], start: "Callable[[bytes], zlib._Decompress]") -> Iterator[bytes]:
    stream: zlib._Decompress | None = None
    for chunk in chunks:
        while chunk:
            if stream is None or stream.eof:
                # A gzip file may have several members.
                stream = start(chunk)
            data = stream.decompress(chunk, _STEP)
            chunk = stream.unused_data if stream.eof else stream.unconsumed_tail
            if data:
                yield data
    if stream is not None and not stream.eof:
        yield stream.flush()
        if not stream.eof:
            raise EOFError("it ends early")


def _decode_brotli(chunks: Iterable[bytes]) -> Iterator[bytes]:
    stream = brotli.Decompressor()
    for chunk in chunks:
        data = stream.process(chunk, output_buffer_limit=_STEP)
        while data:
            yield data
            data = b"" if stream.is_finished() else stream.process(b"", output_buffer_limit=_STEP)
    if not stream.is_finished():
        raise EOFError("it ends early")


def _decode_zstd(chunks: Iterable[bytes]) -> Iterator[bytes]:
    decompressor = zstandard.ZstdDecompressor(max_window_size=_MAX_WINDOW)
    stream = decompressor.decompressobj()
    for chunk in chunks:
        view = memoryview(chunk)
        while view:
            step, view = view[:_ZSTD_INPUT], view[_ZSTD_INPUT:]
            while step:
                if stream.eof:
                    stream = decompressor.decompressobj()
                yield stream.decompress(step)
                step = memoryview(stream.unused_data) if stream.eof else step[:0]
    if not stream.eof:
        raise EOFError("it ends early")


_DECODERS: dict[str, Callable[[Iterable[bytes]], Iterator[bytes]]] = {
    "gzip": _decode_gzip,
    "deflate": _decode_deflate,
    "br": _decode_brotli,
    "zstd": _decode_zstd,
}
CODINGS = tuple(_DECODERS)
"""Names of the supported codings."""
