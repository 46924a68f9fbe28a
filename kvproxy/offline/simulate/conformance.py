"""Reads conformance traces: a header, requests, and block operations (see docs/simulate.md)."""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from kvproxy.blocks.request import MMItem
from kvproxy.offline.simulate.errors import TraceError
from kvproxy.offline.simulate.workload import parse_line

_GOLDEN = np.uint64(0x9E3779B97F4A7C15)
_MAX_COUNT = 10_000_000
"""Maximum tokens of a segment and blocks of a pool."""


@dataclass(frozen=True, slots=True)
class TraceHeader:
    """The first line of a trace: the pool and the vocabulary."""

    name: str
    block_size: int
    num_blocks: int
    vocab: int
    max_model_len: int


@dataclass(frozen=True, slots=True)
class TraceRequest:
    """A declared request: its prompt, output, and extra hash keys."""

    id: str
    prompt: list[int]
    output: list[int]
    salt: str | None
    lora: tuple[str, str] | None
    mm: tuple[MMItem, ...]


@dataclass(frozen=True, slots=True)
class TraceOperation:
    """A step of a declared request, or a reset (without an id)."""

    op: str
    id: str
    count: int


def read_header(path: Path) -> TraceHeader:
    """Read the header of a conformance trace.

    Raises:
        TraceError: the first line is not a header of version 1.
    """
    with path.open() as lines:
        line = parse_line(path, 1, lines.readline())
    if line.get("op") != "meta" or line.get("v") != 1:
        raise TraceError(f"{path}, line 1: a conformance trace begins with a 'meta' line of version 1")
    try:
        header = TraceHeader(
            name=str(line.get("name", path.stem)),
            block_size=_count(line["block_size"], 1),
            num_blocks=_count(line["num_blocks"], 2),
            vocab=_count(line["vocab"], 1, 2**64 - 1),
            max_model_len=_count(line["max_model_len"], 1),
        )
    except KeyError as missing:
        raise TraceError(f"{path}, line 1: the header lacks {missing}") from None
    except ValueError as error:
        raise TraceError(f"{path}, line 1: bad header ({error})") from None
    return header


def read_operations(path: Path, header: TraceHeader) -> Iterator[TraceRequest | TraceOperation]:
    """Read the lines after the header."""
    with path.open() as lines:
        next(lines)
        for number, text in enumerate(lines, 2):
            if not text.strip():
                continue
            line = parse_line(path, number, text)
            try:
                yield _operation(line, header.vocab)
            except (KeyError, IndexError, TypeError, ValueError) as error:
                raise TraceError(f"{path}, line {number}: bad operation ({error!r})") from None


def _operation(line: dict[str, Any], vocab: int) -> TraceRequest | TraceOperation:
    op = line["op"]
    if op == "req":
        prompt = [token for seed, length in line["segs"] for token in _segment(seed, length, vocab)]
        seed, length = line["out"]
        lora, salt = line.get("lora"), line.get("salt")
        if not prompt or not (salt is None or isinstance(salt, str)):
            raise ValueError("a request needs a prompt, and its salt is a string")
        return TraceRequest(
            id=str(line["id"]),
            prompt=prompt,
            output=_segment(seed, length, vocab),
            salt=salt,
            lora=(str(lora[0]), str(lora[1])) if lora else None,
            mm=tuple(
                MMItem(str(name), _count(offset), _count(length)) for name, offset, length in line.get("mm") or ()
            ),
        )
    if op not in ("start", "extend", "decode", "finish", "abort", "reset"):
        raise ValueError(f"unknown op {op!r}")
    return TraceOperation(op, str(line["id"]) if op != "reset" else "", _count(line.get("n", 0)))


def _segment(seed: object, length: object, vocab: int) -> list[int]:
    if type(seed) is not int:
        raise ValueError(f"{seed!r} is not a seed")
    return segment(seed, _count(length), vocab)


def _count(value: object, least: int = 0, most: int = _MAX_COUNT) -> int:
    if type(value) is not int or not least <= value <= most:
        raise ValueError(f"{value!r} is not a number from {least} to {most:,}")
    return value


def segment(seed: int, length: int, vocab: int) -> list[int]:
    """Return `length` token ids below `vocab` from splitmix64."""
    with np.errstate(over="ignore"):
        z = np.uint64(seed % 2**64) + np.arange(1, length + 1, dtype=np.uint64) * _GOLDEN
        z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
        z ^= z >> np.uint64(31)
    tokens: list[int] = (z % np.uint64(vocab)).tolist()
    return tokens
