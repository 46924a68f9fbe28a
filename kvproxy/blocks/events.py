"""KV cache events, as vLLM publishes them."""

from dataclasses import dataclass
from typing import Any

from kvproxy.blocks.block_hash import event_hash
from kvproxy.blocks.cache_request import CacheRequest


@dataclass(frozen=True, slots=True)
class BlockStored:
    """Consecutive blocks of one chain were cached."""

    hashes: tuple[bytes, ...]
    parent: bytes | None  # Hash of the block before the first one, if any.
    tokens: tuple[int, ...]
    block_size: int
    lora: str | None = None
    extra_keys: tuple[tuple[Any, ...] | None, ...] | None = None  # For each block; see `published_extra_keys`.
    group: int = 0  # Index of the KV cache group.
    kind: str = "full_attention"  # vLLM's name of the attention type.
    window: int | None = None  # Sliding window in tokens, if any.
    lora_id: int | None = None
    session_id: str | None = None

    def as_wire(self) -> dict[str, Any]:
        wire: dict[str, Any] = {
            "type": "BlockStored",
            "block_hashes": [event_hash(digest) for digest in self.hashes],
            "parent_block_hash": None if self.parent is None else event_hash(self.parent),
            "token_ids": list(self.tokens),
            "block_size": self.block_size,
            "lora_id": self.lora_id,
            "medium": "GPU",
            "lora_name": self.lora,
            "group_idx": self.group,
            "kv_cache_spec_kind": self.kind,
        }
        optional = {
            "extra_keys": None if self.extra_keys is None else list(self.extra_keys),
            "kv_cache_spec_sliding_window": self.window,
            "session_id": self.session_id,
        }
        return wire | {name: value for name, value in optional.items() if value is not None}


@dataclass(frozen=True, slots=True)
class BlockRemoved:
    """One physical copy of each block was evicted; further copies may still be cached."""

    hashes: tuple[bytes, ...]
    group: int = 0

    def as_wire(self) -> dict[str, Any]:
        hashes = [event_hash(digest) for digest in self.hashes]
        return {"type": "BlockRemoved", "block_hashes": hashes, "medium": "GPU", "group_idx": self.group}


@dataclass(frozen=True, slots=True)
class AllBlocksCleared:
    """The whole cache was cleared."""

    def as_wire(self) -> dict[str, Any]:
        return {"type": "AllBlocksCleared"}


KVEvent = BlockStored | BlockRemoved | AllBlocksCleared


def published_extra_keys(
    request: CacheRequest, start: int, stop: int, block_size: int
) -> tuple[tuple[Any, ...] | None, ...] | None:
    """Return the extra keys of each block of `tokens[start:stop]` in the form of KV events; None for a request without any."""
    if not request.has_extra_keys:
        return None
    keys = (request.extra_keys(first, first + block_size) for first in range(start, stop, block_size))
    return tuple(
        block_keys and tuple(values[0] if tag != "mm" else tuple(values) for tag, *values in block_keys)
        for block_keys in keys
    )
