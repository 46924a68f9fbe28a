"""Reads traces. A line describes a prompt by hash ids of its blocks, by token ids, or only by its length."""

import csv
import io
import itertools
import json
import math
from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, TypeVar

from kvproxy.analyse.compressed_files import DamagedFile, read_decompressed
from kvproxy.analyse.simulate.file_kinds import describe_binary
from kvproxy.analyse.simulate.pool_simulation import ChainRequest, TraceRequest, check_count
from kvproxy.blocks.block_hash import BlockHasher, check_token
from kvproxy.blocks.eviction.session_policy import CacheUse
from kvproxy.errors import InvalidRequest, describe_cause

T = TypeVar("T")
JsonObject = dict[str, Any]
DEFAULT_BLOCK_SIZE = 16
# Blocks have 512 tokens in Mooncake's traces, and 16 in Qwen-Bailian's.
_HASHED_BLOCK_SIZES = (512, 16, 64, 32, 128, 256, 1024)
_FIELD_ERRORS = (KeyError, TypeError, ValueError, OverflowError, AttributeError)
# Columns of tables with lengths: time, prompt tokens, response tokens, and requests that failed have no response tokens.
TRACE_TABLES = {
    "BurstGPT": ("Timestamp", "Request tokens", "Response tokens"),
    "Azure": ("TIMESTAMP", "ContextTokens", "GeneratedTokens"),
}
_SHOWN_COLUMNS = 8
_REQUEST_FIELDS = {"messages", "prompt", "input", "body", "request_body", "request", "conversations", "conversation"}
_ONLY_LENGTHS = "the trace has lengths only: no reuse can be known, and each prompt counts as new"


class TraceError(InvalidRequest):
    """A trace is invalid. The message names the line and the fix."""


@dataclass(frozen=True, slots=True)
class Workload:
    """The requests of a trace or of several files.

    Attributes:
        arrivals: in order of time; without times, in the order of the file.
        block_tokens: tokens in a block.
        notes: sentences for the user about information that the format lacks.
        has_only_lengths: the blocks of each prompt count as new, because the trace has only their number.
    """

    arrivals: list[TraceRequest]
    block_tokens: int
    notes: tuple[str, ...] = ()
    has_only_lengths: bool = False

    @property
    def chains(self) -> list[ChainRequest]:
        """The prompts of `arrivals`, with `ChainRequest.use` if the trace has times."""
        if not self.has_times:
            return [arrival.chain for arrival in self.arrivals]
        uses = (CacheUse(arrival.seconds, arrival.client, arrival.awaits_user) for arrival in self.arrivals)
        return [replace(arrival.chain, use=use) for arrival, use in zip(self.arrivals, uses, strict=True)]

    @property
    def has_times(self) -> bool:
        return not any(math.isnan(arrival.seconds) for arrival in self.arrivals)


class BlockNumbers:
    """Assigns numbers to blocks. Two blocks have the same number if their prompts are equal up to the end of the block."""

    def __init__(self) -> None:
        self._numbers: dict[tuple[int, Hashable], int] = {}
        self._num_scopes = 0
        self._num_single = 0

    def new_scope(self) -> int:
        """Return a scope for `chain_numbers`. Blocks of different scopes never have the same number."""
        self._num_scopes += 1
        return -self._num_scopes

    def chain_numbers(self, ids: Iterable[Hashable], scope: int) -> list[int]:
        parent, numbers = scope, self._numbers
        return [parent := numbers.setdefault((parent, id), len(numbers)) for id in ids]

    def new_numbers(self, count: int) -> range:
        """Return negative numbers for blocks that no other request has."""
        self._num_single += count
        return range(-self._num_single, count - self._num_single)


@dataclass(frozen=True, slots=True)
class TraceSession:
    """A session of an agent trace. Its requests are JSON objects with the fields `t`, `in`, `out`, `model`, and `hash_ids`."""

    name: str
    block_size: int
    requests: list[JsonObject]


@dataclass(frozen=True, slots=True)
class _TraceLine:
    position: str
    fields: dict[str, Any]


def read_chains(path: str | Path, block_size: int | None = None) -> tuple[list[ChainRequest], int]:
    """Return the prompts of a trace file, and the number of tokens in a block. Raises TraceError.

    `block_size` is in tokens; by default, it is the size in the trace, or 16. Raises TypeError or ValueError for another one.
    """
    if block_size is not None:
        check_count("block_size", block_size, "token")
    trace = read_trace(Path(path), block_size)
    return trace.chains, trace.block_tokens


def read_trace(path: Path, block_size: int | None = None, ids: BlockNumbers | None = None) -> Workload:
    """Read a trace file, which may be compressed, as `read_chains` does. `ids` are block numbers to share between files."""
    lines = _read_lines(path)
    kind = next((field for field in ("hash_ids", "tokens", "input_length") if field in lines[0].fields), None)
    if kind is None:
        if _REQUEST_FIELDS & set(lines[0].fields):
            raise TraceError(
                f"{path}, line 1: this is a log of requests: kvproxy estimate shows its hit"
                " rates by pool size, and kvproxy lint its prompts. To simulate it, write a tokenizer's ids as tokens on each"
                " line"
            )
        raise TraceError(
            f"{path}, line 1: expected hash_ids (Mooncake, Qwen-Bailian), tokens, or lengths on each line, the columns of"
            " BurstGPT or Azure, or an agent trace of WEKA"
        )
    size = _block_size(path, lines, block_size) if kind == "hash_ids" else block_size or DEFAULT_BLOCK_SIZE
    parse = _make_parser(kind, size, ids or BlockNumbers())
    arrivals = [_convert_line(path, line, parse) for line in lines]
    untimed = [line for line, arrival in zip(lines, arrivals, strict=True) if math.isnan(arrival.seconds)]
    if not untimed:
        arrivals.sort(key=lambda arrival: arrival.seconds)
    elif len(untimed) < len(lines):
        raise TraceError(f"{path}, {untimed[0].position}: has no timestamp, and other lines have one")
    has_only_lengths = kind == "input_length"
    return Workload(arrivals, size, (_ONLY_LENGTHS,) if has_only_lengths else (), has_only_lengths)


_MAX_BYTES = 2**31


def read_text(path: Path, characters: int = -1) -> str:
    """Read a UTF-8 file, which may be compressed, or about its first characters. Raises TraceError."""
    content = _read_bytes(path, characters if characters >= 0 else _MAX_BYTES + 1)
    if len(content) > _MAX_BYTES:
        raise TraceError(f"{path}, line 1: the file unpacks to more than {_MAX_BYTES:,} bytes: split it")
    return io.TextIOWrapper(io.BytesIO(content), encoding="utf-8-sig", errors="replace").read()


def _read_bytes(path: Path, size: int) -> bytes:
    if path.exists() and not path.is_file():
        raise TraceError(f"{path}, line 1: this is no file")
    try:
        with path.open("rb") as file:
            return read_decompressed(file, size)
    except DamagedFile as error:
        raise TraceError(f"{path}, line 1: the file is damaged ({error})") from None
    except OSError as error:
        raise TraceError(f"{path}, line 1: cannot be read ({error.strerror})") from None


def _refuse_binary(path: Path) -> None:
    if (kind := describe_binary(_read_bytes(path, 4096))) is not None:
        raise TraceError(f"{path}, line 1: the file {kind}")


def _read_lines(path: Path) -> list[_TraceLine]:
    text = read_text(path)
    _refuse_binary(path)
    if '"hash_id_scope"' in text[:4096]:
        return _weka_lines(path, text)
    numbered = [(number, line) for number, line in enumerate(text.split("\n"), 1) if line.strip()]
    if not numbered:
        raise TraceError(f"{path}, line 1: the file is empty")
    head = numbered[0][1]
    if head.lstrip()[:1] not in ("{", "[") and "," in head:
        return _csv_lines(path, next(csv.reader([head])), numbered[1:])
    lines = [_TraceLine(f"line {number}", _parse_line(path, number, line)) for number, line in numbered]
    return _join_sessions(path, lines) if any("session_id" in line.fields for line in lines) else lines


def _join_sessions(path: Path, lines: list[_TraceLine]) -> list[_TraceLine]:
    """Give each row of a session (AIPerf, Dynamo) its whole prompt and a time.

    A row has only the blocks after those of the session's previous rows, unless it repeats them. `delay` is in
    milliseconds after the previous row. Answers in the history have no blocks, so they are left out. The last block of each
    row may be incomplete, so that a prompt of several rows has more ids than blocks; the ids at its end are unused.
    """
    sessions: dict[object, list[_TraceLine]] = {}
    for line in lines:
        sessions.setdefault(line.fields.get("session_id", line.position), []).append(line)
    repeats = any(
        line.fields.get("hash_ids") and line.fields["hash_ids"][:1] == rows[0].fields.get("hash_ids", [])[:1]
        for rows in sessions.values()
        for line in rows[1:]
    )
    joined = []
    try:
        for rows in sessions.values():
            ids: list[Any] = []
            length, time = 0, 0.0
            for line in rows:
                fields = line.fields
                time = float(fields.get("timestamp", time + float(fields.get("delay") or 0.0)))
                if repeats:
                    ids, length = fields.get("hash_ids", []), fields["input_length"]
                else:
                    ids, length = [*ids, *fields.get("hash_ids", [])], length + fields["input_length"]
                whole: dict[str, Any] = {"timestamp": time, "input_length": length, "is_joined": line is not rows[0]}
                if "hash_ids" in fields:
                    whole["hash_ids"] = ids
                joined.append(_TraceLine(line.position, fields | whole))
    except _FIELD_ERRORS as error:
        raise TraceError(f"{path}, {line.position}: bad request ({describe_cause(error)})") from None
    return joined


def _csv_lines(path: Path, columns: list[str], numbered: list[tuple[int, str]]) -> list[_TraceLine]:
    names = next((names for names in TRACE_TABLES.values() if set(names) <= set(columns)), None)
    if names is None:
        known = "; ".join(f"{name}: {', '.join(fields)}" for name, fields in TRACE_TABLES.items())
        shown = ", ".join(columns[:_SHOWN_COLUMNS]) + (", ..." if len(columns) > _SHOWN_COLUMNS else "")
        raise TraceError(f"{path}, line 1: unknown columns {shown}: known tables have {known}")
    lines = []
    for number, line in numbered:
        row = dict(zip(columns, next(csv.reader([line])), strict=False))
        try:
            time, prompt, response = (row[name] for name in names)
            lengths = {"input_length": int(prompt), "output_length": int(response)}
            lines.append(_TraceLine(f"line {number}", {"timestamp": 1000 * _table_seconds(time), **lengths}))
        except (KeyError, ValueError) as error:
            raise TraceError(f"{path}, line {number}: bad request ({describe_cause(error)})") from None
    start = min((line.fields["timestamp"] for line in lines), default=0.0)
    return [_TraceLine(line.position, line.fields | {"timestamp": line.fields["timestamp"] - start}) for line in lines]


def _table_seconds(time: str) -> float:
    """Return seconds from a number, or from a date and time with up to nine digits of a fraction."""
    try:
        return float(time)
    except ValueError:
        moment = datetime.fromisoformat(time)
        return (moment if moment.tzinfo else moment.replace(tzinfo=UTC)).timestamp()


def _parse_line(path: Path, line_number: int, text: str) -> dict[str, Any]:
    try:
        line = json.loads(text)
    except (ValueError, RecursionError) as error:
        prompts = "; kvproxy estimate --format prompts reads a prompt per line" if line_number == 1 else ""
        raise TraceError(f"{path}, line {line_number}: not JSON ({error}){prompts}") from None
    if not isinstance(line, dict):
        raise TraceError(f"{path}, line {line_number}: expected a JSON object")
    return line


def weka_sessions(path: Path, text: str) -> list[TraceSession]:
    """Return the sessions of an agent trace of WEKA, and of its sub-agents. Raises TraceError."""
    try:
        trace = json.loads(text)
        size, name = int(trace["block_size"]), str(trace.get("id", path.name))
        sessions = list(_weka_requests(trace["requests"], 0.0))
    except _FIELD_ERRORS as error:
        raise TraceError(f"{path}, line 1: not an agent trace of WEKA ({describe_cause(error)})") from None
    names = (f"{name} agent {number}" if number else name for number in itertools.count())
    return [TraceSession(own, size, requests) for own, requests in zip(names, sessions, strict=False) if requests]


def _weka_requests(requests: list[JsonObject], start: float) -> Iterator[list[JsonObject]]:
    timed = [(request, start + float(request.get("t", 0.0))) for request in requests]
    yield [{**request, "t": seconds} for request, seconds in timed if "hash_ids" in request]
    for request, seconds in timed:
        if isinstance(request.get("requests"), list):
            yield from _weka_requests(request["requests"], seconds)


def _weka_lines(path: Path, text: str) -> list[_TraceLine]:
    rows = [(row, session.block_size) for session in weka_sessions(path, text) for row in session.requests]
    lines = []
    for number, (row, size) in enumerate(sorted(rows, key=lambda pair: pair[0]["t"]), 1):
        fields = {"timestamp": 1000 * row["t"], "hash_ids": row["hash_ids"], "block_size": size}
        fields |= {"input_length": row.get("in"), "output_length": row.get("out", 0)}
        lines.append(_TraceLine(f"request {number}", fields | {"awaits_user": row.get("stop") == "end_turn"}))
    return lines


def _block_size(path: Path, lines: list[_TraceLine], requested: int | None) -> int:
    named: set[int] = {line.fields["block_size"] for line in lines if isinstance(line.fields.get("block_size"), int)}
    if len(named) > 1:
        raise TraceError(
            f"{path}, line 1: names several block sizes: split the file, or give the block size (--block-size)"
        )
    sizes = (requested,) if requested is not None else tuple(named) or _HASHED_BLOCK_SIZES
    lines = [line for line in lines if not line.fields.get("is_joined")]
    counts = [
        _convert_line(path, line, lambda fields: (int(fields["input_length"]), len(fields["hash_ids"])))
        for line in lines
    ]
    for size in sizes:
        if all(blocks - tokens // size in (0, 1) for tokens, blocks in counts):
            return size
    wrong = next(at for at, (tokens, blocks) in enumerate(counts) if blocks - tokens // sizes[0] not in (0, 1))
    tokens, blocks = counts[wrong]
    raise TraceError(
        f"{path}, {lines[wrong].position}: {tokens:,} tokens do not fill {blocks:,} blocks of {sizes[0]:,} tokens:"
        " give the block size (--block-size)"
    )


def _convert_line(path: Path, line: _TraceLine, parse: Callable[[dict[str, Any]], T]) -> T:
    try:
        return parse(line.fields)
    except _FIELD_ERRORS as error:
        raise TraceError(f"{path}, {line.position}: bad request ({describe_cause(error)})") from None


def _make_parser(kind: str, block_size: int, ids: BlockNumbers) -> Callable[[dict[str, Any]], TraceRequest]:
    scope, hasher = ids.new_scope(), BlockHasher(seed="")

    def parse(fields: dict[str, Any]) -> TraceRequest:
        blocks: Sequence[int]
        if kind == "tokens":
            if not isinstance(fields["tokens"], list):
                raise TypeError("tokens is a list of ids")
            length = len(fields["tokens"])
            for token in fields["tokens"][length // block_size * block_size :]:
                check_token(token)  # The others are hashed.
            blocks = ids.chain_numbers(hasher.hash_blocks(fields["tokens"], block_size), scope)
        else:
            length = _parse_count(fields["input_length"])
            if kind == "hash_ids":
                blocks = ids.chain_numbers((int(id) for id in fields["hash_ids"][: length // block_size]), scope)
            else:
                blocks = ids.new_numbers(length // block_size)
        # Some traces have an id for the incomplete last block, and some have none.
        chain = ChainRequest(blocks, max(0, min(len(blocks), (length - 1) // block_size)), length % block_size > 0)
        output, awaits_user = _parse_count(fields.get("output_length", 0)), fields.get("awaits_user") is True
        return TraceRequest(_parse_seconds(fields), chain, length, output, awaits_user=awaits_user)

    return parse


def _parse_count(value: object) -> int:
    if not isinstance(value, int) or isinstance(value, bool) or value < 0:
        raise ValueError(f"{value!r} is not a number of tokens")
    return value


def _parse_seconds(fields: dict[str, Any]) -> float:
    if (time := fields.get("timestamp")) is None:
        return math.nan
    # Qwen-Bailian, which has chat ids, uses seconds; Mooncake and WEKA use milliseconds.
    seconds = float(time) / (1 if "chat_id" in fields else 1000)
    if not math.isfinite(seconds):
        raise ValueError("timestamp is not finite")
    return seconds
