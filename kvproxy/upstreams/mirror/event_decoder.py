"""Decodes KV events of vLLM, SGLang, and LMCache from msgpack. Events are maps, or positional arrays in older versions.

The bytes are untrusted, so every field is checked.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

import msgpack
import xxhash

Hash = int | bytes
"""A block hash as engines publish it: a digest, or the low 64 bits of a digest as an integer."""
BlockExtraKeys = tuple[Any, ...] | None
GPU, CPU, DISK, EXTERNAL, REMOTE = MEDIA = ("GPU", "CPU", "DISK", "EXTERNAL", "REMOTE")
"""Media of blocks, the fastest first: `EXTERNAL` is a pool that engines share, `REMOTE` the memory of another engine."""
_MEDIA_BY_NAME = {
    GPU: ("GPU", "DEVICE", "HBM", "CUDA"),
    CPU: ("CPU", "CPU_PINNED", "CPU_TIER1", "HOST", "DRAM"),
    DISK: ("DISK", "STORAGE", "CPU_TIER2", "NVME", "SSD", "FS", "FILE"),
    EXTERNAL: ("EXTERNAL", "NETWORK", "SHARED", "OBJ", "OBJECT"),
    REMOTE: ("REMOTE",),
}
_MEDIA = {name: medium for medium, names in _MEDIA_BY_NAME.items() for name in names}

# Fields in the order of the positional encoding, in events after the tag.
_BATCH = ("ts", "events", "data_parallel_rank")
_POSITIONAL: dict[str, Sequence[str]] = {
    "BlockStored": (
        "block_hashes parent_block_hash token_ids block_size lora_id medium lora_name extra_keys group_idx"
        " kv_cache_spec_kind kv_cache_spec_sliding_window locality ownership session_id"
    ).split(),
    "BlockRemoved": ("block_hashes", "medium", "group_idx", "locality", "ownership"),
    "TierBlocksCleared": ("medium", "ownership"),
}
_NUM_SGLANG_FIELDS = _POSITIONAL["BlockStored"].index("medium") + 1
_MAX_BLOCK_SIZE = 1 << 20
_MAX_KEY_DEPTH = 8
MAX_BLOCKS_OF_BATCH = 100_000
_MAX_HASH_BYTES = 64
_MAX_NAME = 128
_MAX_SALT = 4_096
_MAX_KEYS = 256
"""Values in the extra keys of a block, also in nested lists."""
_MAX_KEY_LENGTH = 256
_T = TypeVar("_T", int, str)
_MSGPACK_ERRORS = (ValueError, TypeError, OverflowError, RecursionError, msgpack.UnpackException)


class EventDecodeError(ValueError):
    """An invalid batch. The message quotes no values of the batch, which contains prompts."""


@dataclass(frozen=True, slots=True)
class StoredEvent:
    """Consecutive blocks of one prompt were cached.

    vLLM's offloading connector publishes hashes without tokens and with a `block_size` of 0: the blocks are known from the
    GPU's events.
    """

    hashes: list[Hash]
    parent: Hash | None
    tokens: Sequence[int]  # Of all blocks; empty if they were not published.
    block_size: int
    extra_keys: list[BlockExtraKeys] | None = None
    medium: str = GPU  # One of `MEDIA`, or the unknown name in upper case.
    group: int | None = None
    kind: str | None = None  # Attention type of the KV cache group; None if it was not published.
    window: int | None = None
    locality: str | None = None
    owner: str | None = None  # The offloading tier, if the engine has several in one medium.


@dataclass(frozen=True, slots=True)
class RemovedEvent:
    hashes: list[Hash]
    medium: str = GPU
    group: int | None = None
    owner: str | None = None
    remaining_copies: list[int] | None = None  # Of each block after the removal; None if it was not published.


@dataclass(frozen=True, slots=True)
class ClearedEvent:
    """The prefix cache was reset: all media, or one medium, or one owner's blocks in it."""

    medium: str | None = None
    owner: str | None = None


@dataclass(frozen=True, slots=True)
class UnknownEvent:
    name: str


Event = StoredEvent | RemovedEvent | ClearedEvent | UnknownEvent


@dataclass(frozen=True, slots=True)
class EventBatch:
    """Events of one scheduler step. `rank` is the data-parallel rank; None if there is only one."""

    timestamp: float
    events: list[Event]
    rank: int | None

    @property
    def has_reset(self) -> bool:
        return any(isinstance(event, ClearedEvent) and event.medium is None for event in self.events)


def decode_batch(payload: bytes) -> EventBatch:
    """Decode a batch. Raises EventDecodeError."""
    try:
        raw = msgpack.unpackb(payload, strict_map_key=False)
    except _MSGPACK_ERRORS as error:
        raise EventDecodeError(f"not msgpack: {type(error).__name__}") from None
    fields = dict(zip(_BATCH, raw, strict=False)) if isinstance(raw, list) else raw
    if not isinstance(fields, dict):
        raise EventDecodeError("the batch is neither a map nor an array")
    timestamp: Any = fields.get("ts")
    events = fields.get("events")
    if type(timestamp) not in (int, float) or not math.isfinite(timestamp):
        raise EventDecodeError("the time is not a number")
    if not isinstance(events, list):
        raise EventDecodeError("the events are not a list")
    if len(events) > MAX_BLOCKS_OF_BATCH:
        raise EventDecodeError(f"the batch has more than {MAX_BLOCKS_OF_BATCH:,} events")
    decoded = [_decode_event(event) for event in events]
    if (
        sum(len(event.hashes) for event in decoded if isinstance(event, StoredEvent | RemovedEvent))
        > MAX_BLOCKS_OF_BATCH
    ):
        raise EventDecodeError(f"the batch has more than {MAX_BLOCKS_OF_BATCH:,} blocks")
    rank = _optional_field(fields, "data_parallel_rank", int)
    return EventBatch(
        float(timestamp), decoded, rank if rank is not None else _optional_field(fields, "attn_dp_rank", int)
    )


def _decode_event(raw: object) -> Event:
    if isinstance(raw, dict):
        tag, fields = raw.get("type"), raw
    elif isinstance(raw, list) and raw:
        tag, fields = raw[0], {}
        if isinstance(tag, str):
            fields = _named_fields(tag, raw[1:])
    else:
        raise EventDecodeError("an event is neither a map nor an array")
    if not isinstance(tag, str):
        raise EventDecodeError("an event has no type")
    match tag:
        case "BlockStored":
            return _decode_stored(fields)
        case "BlockRemoved":
            hashes, owner = _decode_hashes(fields), _optional_field(fields, "ownership", str)
            group = _optional_field(fields, "group_idx", int)
            return RemovedEvent(hashes, _decode_medium(fields), group, owner, _decode_copies(fields, len(hashes)))
        case "AllBlocksCleared" | "TierBlocksCleared":
            is_scoped = tag == "TierBlocksCleared" or fields.get("medium") is not None
            medium = _decode_medium(fields) if is_scoped else None
            return ClearedEvent(medium, _optional_field(fields, "ownership", str))
    return UnknownEvent(tag[:_MAX_NAME])


def _named_fields(tag: str, values: list[object]) -> dict[str, object]:
    """Return the fields of a positional event by name.

    SGLang appends a map (`metadata`) or a list of names to its own shorter events, where vLLM has `lora_name`.
    """
    names = _POSITIONAL.get(tag, ())
    if tag == "BlockStored" and len(values) > _NUM_SGLANG_FIELDS:
        extension = values[_NUM_SGLANG_FIELDS]
        if isinstance(extension, dict | list):
            fields = dict(zip(names, values[:_NUM_SGLANG_FIELDS], strict=False))
            return fields | {"cache_salt": extension.get("cache_salt") if isinstance(extension, dict) else None}
    return dict(zip(names, values, strict=False))


def _decode_stored(fields: dict[Any, Any]) -> StoredEvent:
    hashes = _decode_hashes(fields)
    parent, block_size = fields.get("parent_block_hash"), fields.get("block_size")
    if parent is not None and not _is_hash(parent):
        raise EventDecodeError("parent_block_hash is not a hash")
    if type(block_size) is not int or not 0 <= block_size <= _MAX_BLOCK_SIZE:
        raise EventDecodeError(f"block_size is not a number from 0 to {_MAX_BLOCK_SIZE:,}")
    return StoredEvent(
        hashes,
        parent,
        _decode_tokens(fields.get("token_ids")) if block_size else (),
        block_size,
        _decode_extra_keys(fields, len(hashes), is_start=parent is None),
        _decode_medium(fields),
        _optional_field(fields, "group_idx", int),
        _optional_field(fields, "kv_cache_spec_kind", str),
        _optional_field(fields, "kv_cache_spec_sliding_window", int),
        _optional_field(fields, "locality", str),
        _optional_field(fields, "ownership", str),
    )


def _decode_hashes(fields: dict[Any, Any]) -> list[Hash]:
    hashes = fields.get("block_hashes")
    if not isinstance(hashes, list) or not all(map(_is_hash, hashes)):
        raise EventDecodeError("block_hashes is not a list of hashes")
    return hashes


def _decode_copies(fields: dict[object, object], count: int) -> list[int] | None:
    copies = fields.get("remaining_copy_counts")
    if copies is None:
        return None
    if (
        not isinstance(copies, list)
        or len(copies) != count
        or any(type(each) is not int or each < 0 for each in copies)
    ):
        raise EventDecodeError("remaining_copy_counts does not have a number for each block")
    return copies


def _is_hash(value: object) -> bool:
    return type(value) is int or (type(value) is bytes and len(value) <= _MAX_HASH_BYTES)


def _decode_tokens(value: object) -> Sequence[int]:
    if value is None:
        return ()
    if not isinstance(value, list):
        raise EventDecodeError("token_ids is not a list")
    # SGLang publishes pairs of ids under EAGLE: such blocks match by hash only.
    return value if set(map(type, value)) == {int} and min(value) >= 0 else ()


def _decode_extra_keys(fields: dict[Any, Any], count: int, *, is_start: bool) -> list[BlockExtraKeys] | None:
    extras = _list_per_block(fields.get("extra_keys"), count, "extra_keys")
    lookahead = _list_per_block(fields.get("lookahead_token_ids"), count, "lookahead_token_ids")
    # Old versions of vLLM publish only the number of the adapter, which no request has: its blocks match by hash only.
    lora = _optional_field(fields, "lora_name", str) or fields.get("lora_id")
    salt = _optional_field(fields, "cache_salt", str, max_length=_MAX_SALT)
    if extras is None and lora:
        extras = [_to_hashable_keys([lora])] * count
    if extras is None and salt and is_start and count:
        # SGLang publishes the salt beside the blocks, vLLM as a key of a prompt's first block.
        extras = [_to_hashable_keys([salt]), *[None] * (count - 1)]
    if lookahead is None:
        return extras
    # These hashes also cover later tokens, so the block's own tokens do not identify it.
    return [
        (*(extra or ()), "lookahead", tokens) for extra, tokens in zip(extras or [None] * count, lookahead, strict=True)
    ]


def _list_per_block(value: object, count: int, name: str) -> list[BlockExtraKeys] | None:
    if not value:
        return None
    if not isinstance(value, list) or len(value) != count:
        raise EventDecodeError(f"{name} does not have an item for each block")
    if not all(item is None or isinstance(item, list) for item in value):
        raise EventDecodeError(f"{name} has an item that is not a list")
    return [None if item is None else _to_hashable_keys(item) for item in value]


def _to_hashable_keys(keys: list[object]) -> tuple[Any, ...]:
    left = _MAX_KEYS

    def to_hashable(value: object, depth: int) -> object:
        nonlocal left
        left -= 1
        if left < 0:
            raise EventDecodeError(f"extra_keys has more than {_MAX_KEYS} values for a block")
        if isinstance(value, list) and depth:
            return tuple(to_hashable(item, depth - 1) for item in value)
        if isinstance(value, str | bytes) and len(value) > _MAX_KEY_LENGTH:
            return "digest", xxhash.xxh3_128_digest(
                value.encode("utf-8", "replace") if isinstance(value, str) else value
            )
        if value is None or isinstance(value, str | bytes | int | float):
            return value
        raise EventDecodeError("extra_keys has an invalid value")

    return tuple(to_hashable(key, _MAX_KEY_DEPTH) for key in keys)


def _decode_medium(fields: dict[Any, Any]) -> str:
    name = (_optional_field(fields, "medium", str) or GPU).upper()
    if (_optional_field(fields, "locality", str) or "").upper() == REMOTE:
        return REMOTE
    return _MEDIA.get(name, name)


def _optional_field(fields: dict[Any, Any], name: str, kind: type[_T], *, max_length: int = _MAX_NAME) -> _T | None:
    value = fields.get(name)
    if isinstance(value, str) and len(value) > max_length:
        raise EventDecodeError(f"{name} has more than {max_length} characters")
    if value is None or (isinstance(value, kind) and not isinstance(value, bool)):
        return value
    raise EventDecodeError(f"{name} is not a {'number' if kind is int else 'string'}")
