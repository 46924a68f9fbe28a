"""Mirrored pools as rows: the same classes that show the embedded engine's pool.

An engine publishes neither block ids, nor holders, nor its order of eviction, nor look-ups: these are None.
"""

from kvproxy.blocks.rows import BlockContent, BlockRow, ChainRow, Place, PoolFigures
from kvproxy.mirror.pool import MirroredBlock, MirroredPool
from kvproxy.mirror.state import MirrorState, PoolKey
from kvproxy.mirror.wire import Hash


def hex_of(digest: Hash) -> str:
    """A block's name in hexadecimal: 16 digits for an integer; negative ones, as SGLang's may be, as 64 bits."""
    return digest.hex() if isinstance(digest, bytes) else f"{digest & (1 << 64) - 1:016x}"


def list_blocks(state: MirrorState, engine: str) -> list[BlockRow]:
    """Every cached block of an engine, the first stored first."""
    return [
        _row(_place(key, engine), block, pool) for key, pool in state.pools.items() for block in pool.blocks.values()
    ]


def show_blocks(state: MirrorState, prefix: str, engine: str) -> list[BlockContent]:
    """Blocks whose name begins with `prefix`, with their tokens. The caller adds the text."""
    return [
        BlockContent(_row(_place(key, engine), block, pool), block.tokens or None)
        for key, pool in state.pools.items()
        for block in pool.blocks.values()
        if hex_of(block.hash).startswith(prefix)
    ]


def chains(state: MirrorState, engine: str) -> list[ChainRow]:
    """Cached chains, each from its first block to a leaf, the most recently stored first. The caller adds the text."""
    found = [
        (leaf.stored, _chain(_place(key, engine), pool, leaf))
        for key, pool in state.pools.items()
        for leaf in pool.blocks.values()
        if pool.is_leaf(leaf.hash)
    ]
    return [chain for _, chain in sorted(found, key=lambda item: -item[0])]


def _chain(place: Place, pool: MirroredPool, leaf: MirroredBlock) -> ChainRow:
    first, count = leaf, 1
    # Names come from outside and may form a circle: no chain has more blocks than the pool.
    while first.parent is not None and first.parent in pool.blocks and count <= len(pool.blocks):
        first = pool.blocks[first.parent]
        count += 1
    return ChainRow(
        leaf=hex_of(leaf.hash),
        blocks=None,
        num_blocks=count,
        num_tokens=count * pool.block_size,
        complete=first.parent is None,
        in_use=None,
        last_accessed=None,
        first_tokens=first.tokens or None,
        place=place,
    )


def stats(state: MirrorState) -> PoolFigures:
    """Figures of all pools together."""
    pools = state.pools.values()
    return PoolFigures(
        num_blocks=None,
        block_size=max((pool.block_size for pool in pools), default=None),
        free=None,
        cached=sum(pool.num_copies for pool in pools),
        used=None,
        usage=None,
        queries=None,
        hits=None,
        hit_rate=None,
        evictions=sum(pool.removed for pool in pools),
        pinned=None,
        distinct=sum(len(pool.blocks) for pool in pools),
    )


def _place(key: PoolKey, engine: str) -> Place:
    return Place(engine, key.rank, key.medium, key.group)


def _row(place: Place, block: MirroredBlock, pool: MirroredPool) -> BlockRow:
    return BlockRow(
        id=None,
        state="cached",
        ref_count=None,
        hash=hex_of(block.hash),
        parent=None if block.parent is None else hex_of(block.parent),
        computed=True,
        num_tokens=pool.block_size,
        last_accessed=None,
        priority=None,
        requests=None,
        copies=block.copies,
        place=place,
    )
