"""Decodes KV events of vLLM and SGLang from msgpack: maps, or the positional arrays of older versions.

The bytes are untrusted: every field is checked, so the decoded events have the declared types.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import msgpack
from pydantic import BaseModel, ConfigDict, Field, ValidationError

Hash = int | bytes
"""A published block hash: the digest, or its low 64 bits."""
Extra = tuple[Any, ...] | None
GPU = "GPU"

# Fields after the tag, in the order of the positional encoding.
_STORED = (
    "block_hashes parent_block_hash token_ids block_size lora_id medium lora_name extra_keys group_idx kv_cache_spec_kind"
    " kv_cache_spec_sliding_window"
).split()
_REMOVED = ("block_hashes", "medium", "group_idx")
_MAX_BLOCK_SIZE = 1 << 20
_MAX_DEPTH = 8
"""Maximum depth of nested lists in an extra key."""
_MSGPACK_ERRORS = (ValueError, TypeError, OverflowError, RecursionError, msgpack.UnpackException)


class EventDecodeError(ValueError):
    """An invalid batch. The message names the field, never its content, because it contains prompts."""


@dataclass(frozen=True, slots=True)
class StoredEvent:
    """Consecutive blocks of one chain were cached.

    Attributes:
        parent: hash of the previous block; None at the start of a chain.
        tokens: token ids of all blocks; empty if they were not published.
        extras: each block's extra keys (adapter, salt, media); None if there are none.
        medium: `GPU`, unless an offloading tier published the event.
        group: index of the KV cache group; None if there is one group.
        kind: the group's attention type, if published.
        window: sliding window in tokens.
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
class RemovedEvent:
    """One physical copy of each named block was evicted."""

    hashes: list[Hash]
    medium: str = GPU
    group: int | None = None


@dataclass(frozen=True, slots=True)
class ClearedEvent:
    """The prefix cache was reset."""


Event = StoredEvent | RemovedEvent | ClearedEvent


@dataclass(frozen=True, slots=True)
class EventBatch:
    """Events of one scheduler step. `rank` is None if there is one engine."""

    timestamp: float
    events: list[Event]
    rank: int | None

    @property
    def has_reset(self) -> bool:
        return any(isinstance(event, ClearedEvent) for event in self.events)


class _Fields(BaseModel):
    model_config = ConfigDict(strict=True)


class _Batch(_Fields):
    ts: float = Field(allow_inf_nan=False)
    events: list[Any]
    data_parallel_rank: int | None = None


class _Removed(_Fields):
    block_hashes: list[Hash]
    medium: str | None = None
    group_idx: int | None = None


class _Stored(_Removed):
    parent_block_hash: Hash | None = None
    token_ids: list[Any] | None = None
    block_size: int = Field(gt=0, le=_MAX_BLOCK_SIZE)
    lora_name: str | None = None
    extra_keys: list[list[Any] | None] | None = None
    lookahead_token_ids: list[list[Any] | None] | None = None
    kv_cache_spec_kind: str | None = None
    kv_cache_spec_sliding_window: int | None = None


def decode_batch(payload: bytes) -> EventBatch:
    """Decode a batch in either encoding; unknown event types are ignored. Raises EventDecodeError."""
    try:
        raw = msgpack.unpackb(payload, strict_map_key=False)
        fields = dict(zip(_Batch.model_fields, raw, strict=False)) if isinstance(raw, list) else raw
        batch = _Batch.model_validate(fields)
        decoded = [event for event in map(_decode_event, batch.events) if event is not None]
    except ValidationError as error:
        first = error.errors(include_input=False, include_url=False)[0]
        raise EventDecodeError(f"{'.'.join(map(str, first['loc']))}: {first['msg']}") from None
    except _MSGPACK_ERRORS as error:
        raise EventDecodeError(f"not msgpack: {type(error).__name__}") from None
    return EventBatch(batch.ts, decoded, batch.data_parallel_rank)


def _decode_event(raw: object) -> Event | None:
    if isinstance(raw, dict):
        tag, fields = raw.get("type"), raw
    elif isinstance(raw, list) and raw:
        tag = raw[0]
        fields = dict(zip(_STORED if tag == "BlockStored" else _REMOVED, raw[1:], strict=False))
    else:
        raise EventDecodeError("an event is neither a map nor an array")
    if not isinstance(tag, str):
        raise EventDecodeError("an event has no type")
    if tag == "BlockStored":
        return _stored_event(_Stored.model_validate(fields))
    if tag == "BlockRemoved":
        removed = _Removed.model_validate(fields)
        return RemovedEvent(removed.block_hashes, removed.medium or GPU, removed.group_idx)
    return ClearedEvent() if tag == "AllBlocksCleared" else None


def _stored_event(fields: _Stored) -> StoredEvent:
    tokens = fields.token_ids or ()
    return StoredEvent(
        fields.block_hashes,
        fields.parent_block_hash,
        # SGLang publishes pairs of ids under EAGLE: such blocks match by hash only.
        tokens if set(map(type, tokens)) == {int} and min(tokens) >= 0 else (),
        fields.block_size,
        _extras(fields),
        fields.medium or GPU,
        fields.group_idx,
        fields.kv_cache_spec_kind,
        fields.kv_cache_spec_sliding_window,
    )


def _extras(fields: _Stored) -> list[Extra] | None:
    count = len(fields.block_hashes)
    extras = _per_block(fields.extra_keys, count, "extra_keys")
    lookahead = _per_block(fields.lookahead_token_ids, count, "lookahead_token_ids")
    if extras is None and fields.lora_name:
        extras = [(fields.lora_name,)] * count
    if lookahead is None:
        return extras
    # These hashes also cover later tokens, so the block's own tokens do not identify it.
    return [
        (*(extra or ()), "lookahead", tokens) for extra, tokens in zip(extras or [None] * count, lookahead, strict=True)
    ]


def _per_block(value: list[list[Any] | None] | None, count: int, name: str) -> list[Extra] | None:
    if not value:
        return None
    if len(value) != count:
        raise EventDecodeError(f"{name} does not have an item for each block")
    return [None if item is None else tuple(_hashable(key, _MAX_DEPTH) for key in item) for item in value]


def _hashable(value: object, depth: int) -> object:
    if isinstance(value, list) and depth:
        return tuple(_hashable(item, depth - 1) for item in value)
    if value is None or isinstance(value, str | bytes | int | float):
        return value
    raise EventDecodeError("extra_keys has an invalid value")
