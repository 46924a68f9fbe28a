"""Batches of KV events as vLLM and SGLang encode them with msgpack: maps, and the positional arrays of older versions.

The bytes come from outside, so everything that they can hold is checked here: what leaves this file has the types that it says.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

import msgpack

Hash = int | bytes
"""A block's name as published: 64 bits of its digest as an integer, or the raw digest."""
Extra = tuple[Any, ...] | None
GPU = "GPU"

# Fields after the tag, in the order of the positional encoding.
_STORED = (
    "block_hashes parent_block_hash token_ids block_size lora_id medium lora_name extra_keys group_idx kv_cache_spec_kind"
    " kv_cache_spec_sliding_window"
).split()
_REMOVED = ("block_hashes", "medium", "group_idx")
_MAX_BLOCK_SIZE = 1 << 20
_DEEPEST = 8
"""Lists inside lists that an extra key may have."""
_T = TypeVar("_T", int, str)
_UNREADABLE = (ValueError, TypeError, OverflowError, RecursionError, msgpack.UnpackException)


class WireError(ValueError):
    """A payload that is no batch of KV events. The message names the field, never its content: prompts are in there."""


@dataclass(frozen=True, slots=True)
class Stored:
    """A run of blocks of one chain became cached.

    Attributes:
        hashes: first block first.
        parent: name of the block before the run, None where the chain begins.
        tokens: ids of all blocks of the run; empty where they are not published as plain ids.
        block_size: tokens in a block.
        extras: for each block what else names it (adapter, salt, media), or None where nothing does.
        medium: where the copy lies, `GPU` unless an offloading tier says otherwise.
        group: number of the attention group, None where there is one.
        kind: the group's kind of attention, where it is told.
        window: tokens of the group's sliding window, where it has one.
    """

    hashes: list[Hash]
    parent: Hash | None
    tokens: Sequence[int]
    block_size: int
    extras: list[Extra] | None = None
    medium: str = GPU
    group: int | None = None
    kind: str | None = None
    window: int | None = None


@dataclass(frozen=True, slots=True)
class Removed:
    """One physical copy of each named block was given up."""

    hashes: list[Hash]
    medium: str = GPU
    group: int | None = None


@dataclass(frozen=True, slots=True)
class Cleared:
    """The cache was reset."""


Event = Stored | Removed | Cleared


@dataclass(frozen=True, slots=True)
class Batch:
    """What one scheduler step changed.

    Attributes:
        timestamp: the publisher's clock, in seconds.
        events: in order.
        rank: data-parallel rank, None where there is one engine.
    """

    timestamp: float
    events: list[Event]
    rank: int | None

    @property
    def clears(self) -> bool:
        """Whether the cache was reset in this step."""
        return any(isinstance(event, Cleared) for event in self.events)


def decode_batch(payload: bytes) -> Batch:
    """A batch in either encoding; kinds of events that are not known are passed over.

    Raises:
        WireError: the payload cannot be read.
    """
    try:
        raw = msgpack.unpackb(payload, strict_map_key=False)
    except _UNREADABLE as error:
        raise WireError(f"it is no msgpack: {type(error).__name__}") from None
    if isinstance(raw, dict):
        raw = [raw.get("ts"), raw.get("events"), raw.get("data_parallel_rank")]
    if not isinstance(raw, list) or len(raw) < 2:
        raise WireError("it is no list of a time and events")
    timestamp, events = raw[0], raw[1]
    if type(timestamp) not in (int, float) or not math.isfinite(timestamp):
        raise WireError("its time is no number")
    if not isinstance(events, list):
        raise WireError("its events are no list")
    decoded = [event for event in map(_event, events) if event is not None]
    return Batch(float(timestamp), decoded, _optional(raw[2] if len(raw) > 2 else None, int, "data_parallel_rank"))


def _event(raw: object) -> Event | None:
    if isinstance(raw, dict):
        tag, fields = raw.get("type"), raw
    elif isinstance(raw, list) and raw:
        tag = raw[0]
        fields = dict(zip(_STORED if tag == "BlockStored" else _REMOVED, raw[1:], strict=False))
    else:
        raise WireError("an event is neither a map nor an array")
    if not isinstance(tag, str):
        raise WireError("an event has no type")
    if tag == "BlockStored":
        return _stored(fields)
    if tag == "BlockRemoved":
        return Removed(_hashes(fields), _medium(fields), _optional(fields.get("group_idx"), int, "group_idx"))
    return Cleared() if tag == "AllBlocksCleared" else None


def _stored(fields: dict[Any, Any]) -> Stored:
    hashes = _hashes(fields)
    parent, block_size = fields.get("parent_block_hash"), fields.get("block_size")
    if parent is not None and type(parent) not in (int, bytes):
        raise WireError("parent_block_hash is no hash")
    if type(block_size) is not int or not 0 < block_size <= _MAX_BLOCK_SIZE:
        raise WireError("block_size is no number of tokens")
    return Stored(
        hashes,
        parent,
        _tokens(fields.get("token_ids")),
        block_size,
        _extras(fields, len(hashes)),
        _medium(fields),
        _optional(fields.get("group_idx"), int, "group_idx"),
        _optional(fields.get("kv_cache_spec_kind"), str, "kv_cache_spec_kind"),
        _optional(fields.get("kv_cache_spec_sliding_window"), int, "kv_cache_spec_sliding_window"),
    )


def _hashes(fields: dict[Any, Any]) -> list[Hash]:
    hashes = fields.get("block_hashes")
    if not isinstance(hashes, list) or not set(map(type, hashes)) <= {int, bytes}:
        raise WireError("block_hashes is no list of hashes")
    return hashes


def _tokens(value: object) -> Sequence[int]:
    if value is None:
        return ()
    if not isinstance(value, list):
        raise WireError("token_ids is no list")
    # SGLang publishes pairs of ids under EAGLE: such blocks are known by their names alone.
    return value if set(map(type, value)) == {int} and min(value) >= 0 else ()


def _extras(fields: dict[Any, Any], count: int) -> list[Extra] | None:
    """For each block of a run what else names it; None where nothing names any of them."""
    extras = _each(fields.get("extra_keys"), count, "extra_keys")
    ahead = _each(fields.get("lookahead_token_ids"), count, "lookahead_token_ids")
    lora = _optional(fields.get("lora_name"), str, "lora_name")
    if extras is None and lora:
        extras = [(lora,)] * count
    if ahead is None:
        return extras
    # The name of such a block covers tokens after it too, so its own tokens do not tell what it is.
    return [
        (*(extra or ()), "lookahead", tokens) for extra, tokens in zip(extras or [None] * count, ahead, strict=True)
    ]


def _each(value: object, count: int, name: str) -> list[Extra] | None:
    """A field that has a list, or nothing, for each block; None where it is left out."""
    if not value:
        return None
    if not isinstance(value, list) or len(value) != count:
        raise WireError(f"{name} is no list with an item for each block")
    if not all(item is None or isinstance(item, list) for item in value):
        raise WireError(f"{name} has an item that is no list")
    return [None if item is None else tuple(_frozen(key, _DEEPEST) for key in item) for item in value]


def _frozen(value: object, depth: int) -> object:
    """A value that can be compared and hashed: lists become tuples."""
    if isinstance(value, list) and depth:
        return tuple(_frozen(item, depth - 1) for item in value)
    if value is None or isinstance(value, str | bytes | int | float):
        return value
    raise WireError("extra_keys holds what names no block")


def _medium(fields: dict[Any, Any]) -> str:
    return _optional(fields.get("medium"), str, "medium") or GPU


def _optional(value: object, kind: type[_T], name: str) -> _T | None:
    """A field that may be left out.

    Raises:
        WireError: it is there, and of another type; truth values are no integers.
    """
    if value is None or (isinstance(value, kind) and not isinstance(value, bool)):
        return value
    raise WireError(f"{name} is no {'number' if kind is int else 'text'}")
