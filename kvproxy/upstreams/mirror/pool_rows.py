"""Lists of the blocks and chains of mirrored pools, for admin routes and commands.

Call `snapshot_pools` and `report_pools` on the event loop, because KV events change the pools. The rest may run in threads.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace

from kvproxy.blocks.row_types import BlockContent, BlockLocation, BlockRow, ChainRow, PoolReport
from kvproxy.upstreams.mirror.apply_events import MirroredBlock, MirrorState
from kvproxy.upstreams.mirror.event_decoder import GPU, Hash
from kvproxy.upstreams.mirror.tier_match import attention_window


def hash_hex(digest: Hash) -> str:
    """Return a hash in hexadecimal. Integers, which are negative in some of SGLang's events, have 16 digits."""
    return digest.hex() if isinstance(digest, bytes) else f"{digest & (1 << 64) - 1:016x}"


@dataclass(frozen=True, slots=True)
class MirroredPoolSnapshot:
    block_size: int
    blocks: dict[Hash, MirroredBlock]


@dataclass(frozen=True, slots=True)
class LocationSnapshot:
    """Pools of one rank, medium, and owner, by KV cache group. Groups with full attention come first."""

    location: BlockLocation
    pools: dict[int | None, MirroredPoolSnapshot]

    def blocks(self) -> Iterator[BlockContent]:
        """Yield each block once, even if several groups cache it."""
        copies_by_block: dict[tuple[Hash, int], list[tuple[int | None, MirroredBlock]]] = {}
        for group, pool in self.pools.items():
            for block in pool.blocks.values():
                copies_by_block.setdefault((block.hash, pool.block_size), []).append((group, block))
        locations: dict[tuple[int, ...], BlockLocation] = {}
        for (_, size), copies in copies_by_block.items():
            groups = tuple(group for group, _ in copies if group is not None)
            if groups not in locations:
                locations[groups] = replace(self.location, groups=groups)
            yield _merge_copies(size, [block for _, block in copies], locations[groups])


def _merge_copies(block_size: int, copies: list[MirroredBlock], location: BlockLocation) -> BlockContent:
    # Groups with a window do not always publish the tokens of their blocks.
    block = next((block for block in copies if block.tokens), copies[0])
    row = BlockRow(
        hash=hash_hex(block.hash),
        parent=None if block.parent is None else hash_hex(block.parent),
        num_tokens=block_size,
        copies=sum(block.copies for block in copies),
        place=location,
    )
    return BlockContent(row, block.tokens or None)


def snapshot_pools(state: MirrorState, engine: str) -> list[LocationSnapshot]:
    snapshots: dict[tuple[int | None, str, str | None], LocationSnapshot] = {}
    for key, pool in sorted(
        state.pools.items(), key=lambda item: (attention_window(item[1]) is not None, item[0].group or 0)
    ):
        location = BlockLocation(engine, key.rank, key.medium)
        snapshot = snapshots.setdefault((key.rank, key.medium, key.owner), LocationSnapshot(location, {}))
        snapshot.pools[key.group] = MirroredPoolSnapshot(pool.block_size, dict(pool.blocks))
    return list(snapshots.values())


def find_blocks(snapshots: Iterable[LocationSnapshot], hash_prefix: str) -> list[BlockContent]:
    contents = (content for snapshot in snapshots for content in snapshot.blocks())
    return [content for content in contents if (content.block.hash or "").startswith(hash_prefix)]


def list_chains(snapshots: Iterable[LocationSnapshot]) -> list[ChainRow]:
    """List the chains of the first KV cache group in each location, the most recently cached chain first."""
    rows: list[tuple[int, ChainRow]] = []
    for snapshot in snapshots:
        pool = next(iter(snapshot.pools.values()))
        groups = tuple(group for group in snapshot.pools if group is not None)
        location = replace(snapshot.location, groups=groups[:1])
        parents = {block.parent for block in pool.blocks.values()}
        leaves = (block for block in pool.blocks.values() if block.hash not in parents)
        rows += [(leaf.stored, _chain_row(location, pool, leaf)) for leaf in leaves]
    return [chain for _, chain in sorted(rows, key=lambda item: -item[0])]


def _chain_row(location: BlockLocation, pool: MirroredPoolSnapshot, leaf: MirroredBlock) -> ChainRow:
    first, count = leaf, 1
    # Published hashes may form a cycle: stop at the number of blocks in the pool.
    while first.parent is not None and first.parent in pool.blocks and count <= len(pool.blocks):
        first = pool.blocks[first.parent]
        count += 1
    return ChainRow(
        leaf=hash_hex(leaf.hash),
        num_blocks=count,
        num_tokens=count * pool.block_size,
        complete=first.parent is None,
        first_tokens=first.tokens or None,
        place=location,
    )


def report_pools(state: MirrorState) -> PoolReport:
    """Report the GPU's blocks, and the number of distinct blocks in each other medium."""
    pools = {key: pool for key, pool in state.pools.items() if key.medium == GPU}
    # The groups of a hybrid model use the same hashes.
    hashes: dict[tuple[str, int | None, int], set[Hash]] = {}
    for key, pool in state.pools.items():
        hashes.setdefault((key.medium, key.rank, pool.block_size), set()).update(pool.blocks)
    offloaded: dict[str, int] = {}
    for (medium, _, _), blocks in hashes.items():
        if medium != GPU:
            offloaded[medium] = offloaded.get(medium, 0) + len(blocks)
    return PoolReport(
        block_size=max((pool.block_size for pool in pools.values()), default=None),
        cached=sum(pool.num_copies for pool in pools.values()),
        evictions=sum(pool.num_removed for pool in pools.values()),
        distinct=sum(len(blocks) for (medium, _, _), blocks in hashes.items() if medium == GPU),
        offloaded=offloaded,
    )
