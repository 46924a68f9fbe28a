"""A mirrored pool as plain JSON-able values, with the keys that `kvproxy.blocks.view` gives for the embedded one.

What an engine does not publish (block ids, holders, the order of eviction, look-ups) is None.
"""

from typing import Any

from kvproxy.mirror.pool import MirroredBlock, MirroredPool
from kvproxy.mirror.state import MirrorState, Place
from kvproxy.mirror.wire import Hash


def hex_of(digest: Hash | None) -> str | None:
    """A block's name in hexadecimal: 16 digits for an integer; negative ones, as SGLang's may be, as 64 bits."""
    if digest is None:
        return None
    return digest.hex() if isinstance(digest, bytes) else f"{digest & (1 << 64) - 1:016x}"


def list_blocks(state: MirrorState) -> list[dict[str, Any]]:
    """Every cached block, the first stored first."""
    return [_row(place, block, pool) for place, pool in state.pools.items() for block in pool.blocks.values()]


def show_blocks(state: MirrorState, prefix: str) -> list[dict[str, Any]]:
    """Blocks whose name begins with `prefix`, with their tokens."""
    return [
        _row(place, block, pool) | {"tokens": list(block.tokens) or None}
        for place, pool in state.pools.items()
        for block in pool.blocks.values()
        if (hex_of(block.hash) or "").startswith(prefix)
    ]


def chains(state: MirrorState) -> list[dict[str, Any]]:
    """Cached chains, each from its first block to a leaf, the most recently stored first."""
    found: list[tuple[int, dict[str, Any]]] = []
    for place, pool in state.pools.items():
        leaves = [block for block in pool.blocks.values() if pool.is_leaf(block.hash)]
        found += [(leaf.stored, _chain(place, pool, leaf)) for leaf in leaves]
    return [chain for _, chain in sorted(found, key=lambda item: -item[0])]


def _chain(place: Place, pool: MirroredPool, leaf: MirroredBlock) -> dict[str, Any]:
    first, count = leaf, 1
    while first.parent is not None and first.parent in pool.blocks:
        first = pool.blocks[first.parent]
        count += 1
    return {
        "leaf": hex_of(leaf.hash),
        "blocks": None,
        "num_blocks": count,
        "num_tokens": count * pool.block_size,
        "complete": first.parent is None,
        "in_use": None,
        "last_accessed": None,
        "first_tokens": list(first.tokens) or None,
        "rank": place.rank,
        "medium": place.medium,
    }


def stats(state: MirrorState) -> dict[str, Any]:
    """Figures of all pools together."""
    pools = state.pools.values()
    return {
        "num_blocks": None,
        "block_size": max((pool.block_size for pool in pools), default=None),
        "free": None,
        "cached": sum(pool.num_copies for pool in pools),
        "distinct": sum(len(pool.blocks) for pool in pools),
        "used": None,
        "usage": None,
        "queries": None,
        "hits": None,
        "hit_rate": None,
        "pinned": None,
        "residency": None,
        "evictions": sum(pool.removed for pool in pools),
    }


def _row(place: Place, block: MirroredBlock, pool: MirroredPool) -> dict[str, Any]:
    return {
        "id": None,
        "state": "cached",
        "ref_count": None,
        "hash": hex_of(block.hash),
        "parent": hex_of(block.parent),
        "computed": True,
        "num_tokens": pool.block_size,
        "last_accessed": None,
        "priority": None,
        "requests": None,
        "copies": block.copies,
        "rank": place.rank,
        "medium": place.medium,
        "group": place.group,
    }
