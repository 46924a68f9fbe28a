"""Which layers of a model share block tables: groups of equal size, each of layers whose attention reaches equally far.

The block pool has as many layer slots as a group has layers. A block holds the keys and values of one group's layers, so each
group has a block table of its own, and gives back what its attention reaches no more (vLLM's way).
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

import torch

from kvproxy.blocks.single_type_manager import CachedWindows, GroupKind, GroupSpec

Place = TypeVar("Place", int, torch.Tensor)
KINDS: dict[str, GroupKind] = {
    "full_attention": "full",
    "sliding_attention": "sliding_window",
    "chunked_attention": "chunked_local",
}
"""The kinds of attention that blocks can hold, by transformers' names."""


@dataclass(frozen=True, slots=True)
class LayerGroup:
    """Layers that share block tables.

    Attributes:
        number: the group's place among the model's groups.
        kind: how far its attention reaches.
        reach: tokens of the window or of the chunk; 0 for full attention.
        layers: the layers, in the order of their slots in the pool.
    """

    number: int = 0
    kind: GroupKind = "full"
    reach: int = 0
    layers: tuple[int, ...] = ()

    def spec(self, block_size: int, cached_windows: CachedWindows = "all") -> GroupSpec:
        """What the block cache must know of the group."""
        return GroupSpec(self.kind, block_size, self.reach, cached_windows if self.kind == "sliding_window" else "all")

    def first_seen(self, at: Place) -> Place:
        """The first token that the token at a place attends to; for one place or a tensor of them."""
        if self.kind == "sliding_window":
            first = at - (self.reach - 1)
            return first.clamp(min=0) if isinstance(first, torch.Tensor) else max(0, first)
        return at // self.reach * self.reach if self.kind == "chunked_local" else at * 0

    def runs(self, start: int, end: int, most: int) -> Iterator[tuple[int, int, int]]:
        """Cut tokens `start` to `end` into runs of at most `most` where their attention is limited.

        Yields:
            The first token that a run attends to, the run's first token, and its end. A run never crosses a chunk.
        """
        while start < end:
            stop = end if self.kind == "full" else min(end, start + most)
            if self.kind == "chunked_local":
                stop = min(stop, self.first_seen(start) + self.reach)
            yield self.first_seen(start), start, stop
            start = stop


FULL = LayerGroup()
"""The group of a model whose layers all use full attention, for those who do not ask for its layers."""


def group_layers(config: Any) -> tuple[LayerGroup, ...]:
    """A model's layers in groups of equal size, in the order of each kind's first layer.

    A group has as many layers as the rarest kind, or as the commonest where that is less than half as many again: then some
    slots stay empty, which costs less than more groups would.
    """
    kinds: dict[tuple[GroupKind, int], list[int]] = {}
    for layer, each in enumerate(layer_kinds(config)):
        kinds.setdefault(each, []).append(layer)
    fewest, most = (choose(len(layers) for layers in kinds.values()) for choose in (min, max))
    size = most if most < 1.5 * fewest else fewest
    groups: list[LayerGroup] = []
    for (kind, reach), layers in kinds.items():
        count = -(-len(layers) // size)
        groups += [
            LayerGroup(len(groups) + at, kind, reach, tuple(layers[at::count])) for at in range(count)
        ]  # fmt: skip
    return tuple(groups)


def layer_kinds(config: Any) -> Sequence[tuple[GroupKind, int]]:
    """How far each layer's attention reaches, by transformers' configuration of a text model.

    Raises:
        KeyError: a layer is of a kind that blocks cannot hold.
    """
    count, window = config.num_hidden_layers, getattr(config, "sliding_window", None)
    names = getattr(config, "layer_types", None)
    if names is None:
        is_limited = window is not None and getattr(config, "use_sliding_window", True)
        names = ["sliding_attention" if is_limited else "full_attention"] * count
    chunk = getattr(config, "attention_chunk_size", None)
    reaches = {"full": 0, "sliding_window": window or 0, "chunked_local": chunk or 0}
    kinds = [KINDS[name] for name in names]
    # A limited layer without a limit sees everything.
    return [(kind, reaches[kind]) if reaches[kind] else ("full", 0) for kind in kinds]


def places(groups: Sequence[LayerGroup]) -> dict[int, tuple[int, int]]:
    """Each layer's group and its slot in the pool."""
    return {layer: (group.number, slot) for group in groups for slot, layer in enumerate(group.layers)}
