"""What happened to cached blocks, as vLLM publishes it: stored, removed, all cleared."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from kvproxy.blocks.digest import event_hash
from kvproxy.blocks.request import CacheRequest


@dataclass(frozen=True, slots=True)
class BlockStored:
    """A run of blocks of one chain became cached.

    Attributes:
        hashes: digests, first block first.
        parent: digest of the block before the run, None where the chain begins.
        tokens: ids of all blocks of the run.
        block_size: tokens in a block.
        lora: name of the adapter.
        extra_keys: for each block the untagged extra keys (adapter, salt, (item, offset)), None without any.
        group: number of the attention group, None where there is one group.
        kind, window: the group's kind of attention in vLLM's words, and its sliding window; None for one group with full
            attention.
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
    def of(
        cls,
        request: CacheRequest,
        hashes: Sequence[bytes],
        parent: bytes | None,
        first: int,
        block_size: int,
        group: int | None,
    ) -> "BlockStored":
        """The event for the blocks of a request from number `first` on that `hashes` names."""
        extra, end = None, first + len(hashes)
        if request.has_extras:
            extra = tuple(
                _untagged(request, index * block_size, (index + 1) * block_size) for index in range(first, end)
            )
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
        """The map that vLLM encodes with msgpack, hashes in integer form; what has its default is left out."""
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
    """One physical copy of each named block of a group was given up."""

    hashes: tuple[bytes, ...]
    group: int | None = None

    def as_wire(self) -> dict[str, Any]:
        names = [event_hash(digest) for digest in self.hashes]
        wire: dict[str, Any] = {"type": "BlockRemoved", "block_hashes": names, "medium": "GPU"}
        return wire if self.group is None else wire | {"group_idx": self.group}


@dataclass(frozen=True, slots=True)
class AllBlocksCleared:
    """The cache was reset."""

    def as_wire(self) -> dict[str, Any]:
        return {"type": "AllBlocksCleared"}


KVEvent = BlockStored | BlockRemoved | AllBlocksCleared


def _untagged(request: CacheRequest, start: int, end: int) -> tuple[Any, ...] | None:
    keys = request.extra_keys(start, end)
    if keys is None:
        return None
    untagged: list[Any] = []
    for tag, *values in keys:
        untagged.append(values[0] if tag != "mm" else tuple(values))
    return tuple(untagged)
