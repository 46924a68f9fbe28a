"""Batches of KV events as vLLM and SGLang encode them with msgpack: maps, and the positional arrays of older versions."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import msgpack

Hash = int | bytes
"""A block's name as published: 64 bits of its digest as an integer, or the raw digest."""
Extra = tuple[Any, ...] | None
GPU = "GPU"

# Fields after the tag, in the order of the positional encoding.
_STORED = (
    "block_hashes parent_block_hash token_ids block_size lora_id medium lora_name extra_keys group_idx kv_cache_spec_kind"
).split()
_REMOVED = ("block_hashes", "medium", "group_idx")


class WireError(ValueError):
    """A payload that is no batch of KV events."""


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
    """

    hashes: list[Hash]
    parent: Hash | None
    tokens: Sequence[int]
    block_size: int
    extras: list[Extra] | None = None
    medium: str = GPU
    group: int | None = None
    kind: str | None = None


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


def decode_batch(payload: bytes) -> Batch:
    """A batch in either encoding; kinds of events that are not known are passed over.

    Raises:
        WireError: the payload cannot be read.
    """
    try:
        batch = msgpack.unpackb(payload, strict_map_key=False)
        if isinstance(batch, dict):
            batch = [batch["ts"], batch["events"], batch.get("data_parallel_rank")]
        timestamp, events, *rest = batch
        decoded = [event for event in map(_event, events) if event is not None]
        return Batch(float(timestamp), decoded, rest[0] if rest else None)
    except (ValueError, KeyError, TypeError, IndexError, msgpack.UnpackException) as error:
        raise WireError(f"no batch of KV events: {type(error).__name__} {error}") from None


def _event(raw: Any) -> Event | None:
    if isinstance(raw, dict):
        tag, fields = raw["type"], raw
    elif isinstance(raw, str):
        raise TypeError("an event is a map or an array")
    else:
        tag = raw[0]
        names = _STORED if tag == "BlockStored" else _REMOVED
        fields = dict(zip(names, raw[1:], strict=False))
    if tag == "BlockStored":
        return _stored(fields)
    if tag == "BlockRemoved":
        return Removed(fields["block_hashes"], fields.get("medium") or GPU, fields.get("group_idx"))
    return Cleared() if tag == "AllBlocksCleared" else None


def _stored(fields: dict[str, Any]) -> Stored:
    hashes, tokens = fields["block_hashes"], fields["token_ids"]
    extras: list[Extra] | None = None
    if fields.get("extra_keys"):
        extras = [_frozen(keys) for keys in fields["extra_keys"]]
    elif fields.get("lora_name"):
        extras = [(fields["lora_name"],)] * len(hashes)
    if tokens and not isinstance(tokens[0], int):
        tokens = ()
    return Stored(
        hashes,
        fields["parent_block_hash"],
        tokens,
        int(fields["block_size"]),
        extras,
        fields.get("medium") or GPU,
        fields.get("group_idx"),
        fields.get("kv_cache_spec_kind"),
    )


def _frozen(value: Any) -> Any:
    """Lists as tuples, all the way down, so that they can be compared and hashed."""
    return tuple(_frozen(item) for item in value) if isinstance(value, list | tuple) else value
