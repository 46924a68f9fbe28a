"""KV cache events, as vLLM publishes them."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from kvproxy.blocks.block_hash import ExtraKeys, event_hash
from kvproxy.blocks.cache_request import CacheRequest


@dataclass(frozen=True, slots=True)
class BlockStored:
    """Consecutive blocks of one chain were cached.

    Attributes:
        parent: hash of the block before the first one; None at the start of a prompt.
        extra_keys: extra hash keys of each block: adapter, salt, and (multimodal item, offset).
        group: index of the KV cache group; None if the model has one group.
        kind: vLLM's name of the attention type; None for a model with full attention only.
        window: size of the sliding window in tokens; None for other attention types.
    """

    hashes: tuple[bytes, ...]
    parent: bytes | None
    tokens: tuple[int, ...]
    block_size: int
    lora: str | None = None
    extra_keys: tuple[tuple[Any, ...] | None, ...] | None = None
    group: int | None = None
    kind: str | None = None
    window: int | None = None

    @classmethod
    def from_request(
        cls,
        request: CacheRequest,
        hashes: Sequence[bytes],
        parent: bytes | None,
        first: int,
        block_size: int,
        group: int | None,
    ) -> "BlockStored":
        extra, end = None, first + len(hashes)
        if request.has_extra_keys:
            starts = range(first * block_size, end * block_size, block_size)
            extra = tuple(_published_keys(request.extra_keys(start, start + block_size)) for start in starts)
        return cls(
            hashes=tuple(hashes),
            parent=parent,
            tokens=tuple(request.tokens[first * block_size : end * block_size]),
            block_size=block_size,
            lora=request.lora[0] if request.lora else None,
            extra_keys=extra,
            group=group,
        )

    def as_wire(self) -> dict[str, Any]:
        wire: dict[str, Any] = {
            "type": "BlockStored",
            "block_hashes": [event_hash(digest) for digest in self.hashes],
            "parent_block_hash": None if self.parent is None else event_hash(self.parent),
            "token_ids": list(self.tokens),
            "block_size": self.block_size,
            "lora_id": None,
            "medium": "GPU",
            "lora_name": self.lora,
        }
        if self.extra_keys is not None:
            wire["extra_keys"] = list(self.extra_keys)
        optional = {
            "group_idx": self.group,
            "kv_cache_spec_kind": self.kind,
            "kv_cache_spec_sliding_window": self.window,
        }
        return wire | {name: value for name, value in optional.items() if value is not None}


@dataclass(frozen=True, slots=True)
class BlockRemoved:
    """One physical copy of each block was evicted; further copies may still be cached."""

    hashes: tuple[bytes, ...]
    group: int | None = None

    def as_wire(self) -> dict[str, Any]:
        hashes = [event_hash(digest) for digest in self.hashes]
        wire: dict[str, Any] = {"type": "BlockRemoved", "block_hashes": hashes, "medium": "GPU"}
        return wire if self.group is None else wire | {"group_idx": self.group}


@dataclass(frozen=True, slots=True)
class AllBlocksCleared:
    def as_wire(self) -> dict[str, Any]:
        return {"type": "AllBlocksCleared"}


KVEvent = BlockStored | BlockRemoved | AllBlocksCleared


def _published_keys(keys: ExtraKeys) -> tuple[Any, ...] | None:
    return keys and tuple(values[0] if tag != "mm" else tuple(values) for tag, *values in keys)
