"""Reads traces as chains of blocks: Mooncake, Qwen-Bailian, WEKA, and logs of token ids.

A hash id is a block of 512 tokens (Mooncake), 16 tokens (Qwen-Bailian), or the file's size (WEKA). Token counts that
contradict it are refused.
"""

import gzip
import json
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Literal, TypeVar

from kvproxy.blocks.block_hash import BlockHasher
from kvproxy.errors import InvalidRequest
from kvproxy.offline.simulate.pool_simulation import ChainRequest
from kvproxy.offline.simulate.routing_simulation import Arrival

T = TypeVar("T")
Kind = Literal["hash ids", "tokens", "weka"]
DEFAULT_BLOCK_SIZE = 16
"""Block size of logs of token ids."""
_SIZES = (512, 16, 64, 32, 128, 256, 1024)
"""The most common first."""
_FIELD_ERRORS = (KeyError, TypeError, ValueError, OverflowError, AttributeError)


class TraceError(InvalidRequest):
    """A trace is invalid. The message names the line and the fix."""


@dataclass(frozen=True, slots=True)
class _TraceLine:
    """A request of a trace, and its line."""

    position: str
    fields: dict[str, Any]


def read_chains(path: Path, block_size: int | None = None) -> tuple[list[ChainRequest], int]:
    """Return the requests of a trace, and its block size in tokens.

    Args:
        path: JSON lines with `input_length` and `hash_ids`, or with `tokens`; or a WEKA trace; may be gzipped.
        block_size: default 16 for token ids, from the trace for hash ids.

    Raises:
        TraceError: a line is invalid, or contradicts the block size.
    """
    lines, kind = _read(path)
    if kind == "tokens":
        size = block_size or DEFAULT_BLOCK_SIZE
        return _token_chains(path, lines, size), size
    size = _block_size(path, lines, block_size)
    return [_parse_fields(path, line, partial(_hash_chain, size)) for line in lines], size


def read_arrivals(path: Path, block_size: int | None = None) -> tuple[list[Arrival], int]:
    """Return the requests by time, and the block size. Raises TraceError without a `timestamp`."""
    chains, size = read_chains(path, block_size)
    lines, _ = _read(path)
    arrivals = []
    for line, chain in zip(lines, chains, strict=True):
        fields = line.fields
        try:
            tokens = int(fields["input_length"]) if "input_length" in fields else len(fields["tokens"])
            arrivals.append(Arrival(_seconds(fields), chain, tokens, int(fields.get("output_length", 0))))
        except _FIELD_ERRORS as error:
            raise TraceError(f"{path}, {line.position}: routing needs a timestamp on every line ({error!r})") from None
    return sorted(arrivals, key=lambda arrival: arrival.seconds), size


def _seconds(fields: dict[str, Any]) -> float:
    # Qwen-Bailian, which has chat ids, uses seconds; Mooncake and WEKA use milliseconds.
    return float(fields["timestamp"]) / (1 if "chat_id" in fields else 1000)


def _text(path: Path) -> str:
    raw = path.read_bytes()
    try:
        return (gzip.decompress(raw) if raw.startswith(b"\x1f\x8b") else raw).decode()
    except (OSError, EOFError, UnicodeDecodeError) as error:
        raise TraceError(f"{path}, line 1: cannot be read ({error})") from None


def _read(path: Path) -> tuple[list[_TraceLine], Kind]:
    text = _text(path)
    if '"hash_id_scope"' in text[:4096]:
        return _weka_lines(path, text), "weka"
    numbered = ((number, line) for number, line in enumerate(text.split("\n"), 1) if line.strip())
    lines = [_TraceLine(f"line {number}", _parse_line(path, number, line)) for number, line in numbered]
    kinds: tuple[tuple[Kind, str], ...] = (("hash ids", "hash_ids"), ("tokens", "tokens"))
    for kind, field in kinds:
        if lines and field in lines[0].fields:
            return lines, kind
    raise TraceError(
        f"{path}, line 1: expected a line with hash_ids (Mooncake, Qwen-Bailian), a line with tokens, or an agent trace of WEKA"
    )


def _parse_line(path: Path, number: int, text: str) -> dict[str, Any]:
    try:
        line = json.loads(text)
    except ValueError as error:
        raise TraceError(f"{path}, line {number}: not JSON ({error})") from None
    if not isinstance(line, dict):
        raise TraceError(f"{path}, line {number}: expected a JSON object")
    return line


def _weka_lines(path: Path, text: str) -> list[_TraceLine]:
    try:
        whole = json.loads(text)
        size = int(whole["block_size"])
        found = sorted(_weka_requests(whole["requests"], 0.0), key=lambda request: request["timestamp"])
    except _FIELD_ERRORS as error:
        raise TraceError(f"{path}, line 1: not an agent trace of WEKA ({error!r})") from None
    return [_TraceLine(f"request {number}", {**fields, "block_size": size}) for number, fields in enumerate(found, 1)]


def _weka_requests(requests: Iterable[dict[str, Any]], start: float) -> Iterator[dict[str, Any]]:
    for request in requests:
        seconds = start + float(request["t"])
        if isinstance(request.get("requests"), list):
            yield from _weka_requests(request["requests"], seconds)
        elif "hash_ids" in request:
            yield {
                "timestamp": 1000 * seconds,
                "input_length": request["in"],
                "output_length": request.get("out", 0),
                "hash_ids": request["hash_ids"],
            }


def _block_size(path: Path, lines: list[_TraceLine], requested: int | None) -> int:
    named: set[int] = {line.fields["block_size"] for line in lines if isinstance(line.fields.get("block_size"), int)}
    if len(named) > 1:
        raise TraceError(f"{path}, line 1: names several block sizes: split the file, or give --block-size")
    sizes = (requested,) if requested is not None else tuple(named) or _SIZES
    for size in sizes:
        fits = [_parse_fields(path, line, partial(_fits, size)) for line in lines]
        if all(fits):
            return size
    wrong = next(line for line in lines if not _fits(sizes[0], line.fields))
    tokens, blocks = wrong.fields["input_length"], len(wrong.fields["hash_ids"])
    raise TraceError(
        f"{path}, {wrong.position}: {tokens:,} tokens do not fill {blocks:,} blocks of {sizes[0]:,} tokens: give --block-size"
    )


def _fits(size: int, fields: dict[str, Any]) -> bool:
    full, blocks = int(fields["input_length"]) // size, len(fields["hash_ids"])
    return blocks in (full, full + 1)


def _parse_fields(path: Path, line: _TraceLine, read: Callable[[dict[str, Any]], T]) -> T:
    try:
        return read(line.fields)
    except _FIELD_ERRORS as error:
        raise TraceError(f"{path}, {line.position}: bad request ({error!r})") from None


def _hash_chain(size: int, fields: dict[str, Any]) -> ChainRequest:
    ids, length = tuple(int(id) for id in fields["hash_ids"]), int(fields["input_length"])
    full = min(len(ids), length // size)
    return ChainRequest(ids[:full], max(0, min(full, (length - 1) // size)), full < len(ids))


def _token_chains(path: Path, lines: list[_TraceLine], size: int) -> list[ChainRequest]:
    hasher = BlockHasher(seed="")
    ids: dict[bytes, int] = {}

    def read(fields: dict[str, Any]) -> ChainRequest:
        if not isinstance(fields["tokens"], list):
            raise TypeError("tokens is a list of ids")
        chain = hasher.chain(fields["tokens"], size)
        blocks = tuple(ids.setdefault(digest, len(ids)) for digest in chain)
        length = len(fields["tokens"])
        return ChainRequest(blocks, max(0, length - 1) // size, bool(length % size))

    return [_parse_fields(path, line, read) for line in lines]
