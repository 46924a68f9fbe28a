"""Layer groups: layers with the same attention type and window share block tables, as in vLLM.

A block contains the keys and values of one group, with one slot per layer, so all groups have the same size.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, TypeVar

import torch

from kvproxy.blocks.single_type_manager import GroupKind, GroupSpec

Position = TypeVar("Position", int, torch.Tensor)
GROUP_KINDS: dict[str, GroupKind] = {
    "full_attention": "full",
    "sliding_attention": "sliding_window",
    "chunked_attention": "chunked_local",
}


class QueryRange(NamedTuple):
    first_visible_key: int
    start: int
    end: int


@dataclass(frozen=True, slots=True)
class LayerGroup:
    """Layers that share block tables. Layer `layers[i]` uses slot `i` of each block.

    `window` is in tokens; 0 for full attention.
    """

    index: int = 0
    kind: GroupKind = "full"
    window: int = 0
    layers: tuple[int, ...] = ()

    def group_spec(self, block_size: int, retention_interval: int | None = None) -> GroupSpec:
        return GroupSpec(
            self.kind, block_size, self.window, retention_interval if self.kind == "sliding_window" else None
        )

    def first_visible_key(self, position: Position) -> Position:
        if self.kind == "sliding_window":
            first = position - (self.window - 1)
            return first.clamp(min=0) if isinstance(first, torch.Tensor) else max(0, first)
        return position // self.window * self.window if self.kind == "chunked_local" else position * 0

    def split_by_window(self, start: int, end: int, max_tokens: int) -> Iterator[QueryRange]:
        """Split the tokens from `start` to `end` into ranges of at most `max_tokens` (except for full attention)."""
        while start < end:
            stop = end if self.kind == "full" else min(end, start + max_tokens)
            if self.kind == "chunked_local":
                stop = min(stop, self.first_visible_key(start) + self.window)
            yield QueryRange(self.first_visible_key(start), start, stop)
            start = stop


FULL_ATTENTION = LayerGroup()


def group_layers(config: Any) -> tuple[LayerGroup, ...]:
    """Divide a model's layers into groups of one attention type each, with the same number of layers per block.

    In a group with fewer layers than the largest group, a part of each block stays empty.
    """
    kinds: dict[tuple[GroupKind, int], list[int]] = {}
    for layer, kind in enumerate(layer_attention_types(config)):
        kinds.setdefault(kind, []).append(layer)
    counts = [len(layers) for layers in kinds.values()]
    # If the counts are similar, empty slots waste less memory than additional groups.
    size = max(counts) if max(counts) < 1.5 * min(counts) else min(counts)
    groups: list[LayerGroup] = []
    for (name, window), layers in kinds.items():
        count = -(-len(layers) // size)
        groups += [LayerGroup(len(groups) + at, name, window, tuple(layers[at::count])) for at in range(count)]
    return tuple(groups)


def layer_attention_types(config: Any) -> Sequence[tuple[GroupKind, int]]:
    count, window = config.num_hidden_layers, getattr(config, "sliding_window", None)
    names = getattr(config, "layer_types", None)
    if names is None:
        is_limited = window is not None and getattr(config, "use_sliding_window", True)
        names = ["sliding_attention" if is_limited else "full_attention"] * count
    chunk = getattr(config, "attention_chunk_size", None)
    windows = {"full": 0, "sliding_window": window or 0, "chunked_local": chunk or 0}
    kinds = [GROUP_KINDS[name] for name in names]
    return [(kind, windows[kind]) if windows[kind] else ("full", 0) for kind in kinds]


def group_slot_by_layer(groups: Sequence[LayerGroup]) -> dict[int, tuple[int, int]]:
    return {layer: (group.index, slot) for group in groups for slot, layer in enumerate(group.layers)}
