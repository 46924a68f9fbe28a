"""The block cache as rows, for the admin routes and the command line."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from operator import attrgetter

from kvproxy.blocks.block import Block
from kvproxy.blocks.divergence import find_divergence
from kvproxy.blocks.groups import PUBLISHED, BlockGroup
from kvproxy.blocks.manager import KVCacheManager
from kvproxy.blocks.request import CacheRequest
from kvproxy.blocks.rows import (
    BlockContent,
    BlockRow,
    BlockState,
    ChainRow,
    Divergence,
    GroupFigures,
    GroupMatch,
    PoolFigures,
    PrefixMatch,
)

_FIELDS = attrgetter("id", "ref_count", "hash", "parent", "group", "last_accessed", "priority")
Fields = tuple[int, int, bytes | None, bytes | None, int | None, int, int]


@dataclass(frozen=True, slots=True)
class Snapshot:
    """Blocks at one moment, with who holds them: what `rows` needs, and little to take. The engine waits while it is taken.

    Attributes:
        blocks: what `_FIELDS` names of each.
        requests: ids of the requests that hold a block, by block id.
        groups: number of the attention group whose tables hold a block, by block id; None where there is one.
        null: id of the null block.
        block_size: tokens of a block.
    """

    blocks: list[Fields]
    requests: dict[int, list[str]]
    groups: dict[int, int | None]
    null: int
    block_size: int


def all_blocks(manager: KVCacheManager) -> Snapshot:
    """Every block in id order."""
    return _snapshot(manager, manager.pool.blocks)


def idle_blocks(manager: KVCacheManager) -> Snapshot:
    """Those that nothing holds, the next to be given up first."""
    return _snapshot(manager, manager.pool.free_queue)


def _snapshot(manager: KVCacheManager, blocks: Iterable[Block]) -> Snapshot:
    null = manager.pool.null_block
    requests: dict[int, list[str]] = {}
    groups: dict[int, int | None] = {}
    for group in manager.groups:
        for request_id, table in group.tables.items():
            for block in table:
                if block is not null:
                    requests.setdefault(block.id, []).append(request_id)
                    groups[block.id] = group.number
    return Snapshot(list(map(_FIELDS, blocks)), requests, groups, null.id, manager.block_size)


def rows(snapshot: Snapshot) -> list[BlockRow]:
    """A row for each block. There may be tens of thousands, so this is for a thread that nobody waits for."""
    found = []
    requests, groups = snapshot.requests, snapshot.groups
    for id, refs, digest, parent, group, used, priority in snapshot.blocks:
        holders = requests.get(id)
        state: BlockState
        if id == snapshot.null:
            state, holders = "null", None
        elif refs:
            # What is held by no request is held by a pin.
            state = "pinned" if holders is None else "used"
        else:
            state = "free" if digest is None else "cached"
        found.append(
            BlockRow(
                id,
                state,
                refs,
                None if digest is None else digest.hex(),
                None if parent is None else parent.hex(),
                # Only what is full, computed and can no longer change has a name.
                digest is not None,
                0 if digest is None else snapshot.block_size,
                used,
                priority,
                () if holders is None else tuple(holders),
                groups.get(id) if group is None else group,
            )
        )
    return found


def show_block(manager: KVCacheManager, id: int) -> BlockContent | None:
    """One block with its tokens, or None where there is no such block. The caller adds the text."""
    if not 0 <= id < manager.pool.num_blocks:
        return None
    block = manager.pool.blocks[id]
    (row,) = rows(_snapshot(manager, [block]))
    return BlockContent(row, _tokens(manager, block))


def chains(manager: KVCacheManager) -> list[ChainRow]:
    """Cached chains, each from its first block to a leaf, most recently used first. The caller adds the text.

    Chains that share a beginning each list it. A hybrid model's are those of its first group with full attention.
    """
    number = manager.main.number
    named = {block.hash: block for block in manager.pool.blocks if block.hash is not None and block.group == number}
    parents = {block.parent for block in named.values()}
    found = [_chain(manager, named, leaf) for digest, leaf in named.items() if digest not in parents]
    return sorted(found, key=lambda chain: -(chain.last_accessed or 0))


def _chain(manager: KVCacheManager, named: dict[bytes, Block], leaf: Block) -> ChainRow:
    blocks: list[Block] = []
    block: Block | None = leaf
    while block is not None:
        blocks.append(block)
        block = None if block.parent is None else named.get(block.parent)
    blocks.reverse()
    return ChainRow(
        leaf=_hex(leaf.hash),
        blocks=tuple(block.id for block in blocks),
        num_blocks=len(blocks),
        num_tokens=len(blocks) * manager.block_size,
        complete=blocks[0].parent is None,
        in_use=sum(1 for block in blocks if block.ref_count),
        last_accessed=leaf.last_accessed,
        first_tokens=_tokens(manager, blocks[0]),
    )


def stats(manager: KVCacheManager) -> PoolFigures:
    """Figures of the pool, and of how long cached blocks stay where that is noted."""
    pool, figures = manager.pool, manager.stats()
    null = pool.null_block
    held = {block.id for group in manager.groups for table in group.tables.values() for block in table}
    return PoolFigures(
        num_blocks=figures.num_blocks,
        block_size=figures.block_size,
        free=figures.free,
        cached=figures.cached,
        used=figures.used,
        usage=figures.usage,
        queries=figures.queries,
        hits=figures.hits,
        hit_rate=figures.hit_rate,
        evictions=figures.evictions,
        pinned=sum(1 for block in pool.blocks if block.ref_count and block is not null and block.id not in held),
        residency=pool.residency.stats() if pool.residency is not None else None,
        groups=tuple(_share(manager, group) for group in _limited(manager)),
    )


def chain_to(manager: KVCacheManager, digest: str) -> CacheRequest | None:
    """A request that would reuse the chain which ends in the block whose hash begins with `digest`, if there is one."""
    for block in manager.pool.blocks:
        if block.hash is not None and block.source is not None and block.hash.hex().startswith(digest):
            request, start = block.source
            # One token more than the chain, since a lookup leaves one token to compute.
            tokens = [*request.tokens[: start + manager.block_size], 0]
            return CacheRequest("chain", tokens, salt=request.salt, lora=request.lora, mm=request.mm)
    return None


def match(manager: KVCacheManager, request: CacheRequest) -> PrefixMatch:
    """What a prompt would reuse now, and where it leaves the closest cached chain; changes nothing."""
    computed = manager.get_computed_blocks(request)
    null = manager.pool.null_block
    ids = tuple(block.id for hit in computed.groups for block in hit if block is not null)
    alone = tuple(_alone(manager, group, request) for group in _limited(manager))
    return PrefixMatch(request.num_tokens, computed.num_tokens, ids, _divergence(manager, request), alone)


def _limited(manager: KVCacheManager) -> Sequence[BlockGroup]:
    """The groups that are worth telling: none where all layers share one with full attention."""
    groups = manager.groups
    return () if len(groups) == 1 and groups[0].spec.kind == "full" else groups


def _alone(manager: KVCacheManager, group: BlockGroup, request: CacheRequest) -> GroupMatch:
    hashes = group.names(request.update_hashes(manager.hasher, manager.hash_block_size))
    found = group.longest_hit(hashes, (request.num_tokens - 1) // group.block_size)
    return GroupMatch(group.number or 0, PUBLISHED[group.spec.kind], group.spec.reach, len(found) * group.block_size)


def _share(manager: KVCacheManager, group: BlockGroup) -> GroupFigures:
    null = manager.pool.null_block
    held = {block.id for table in group.tables.values() for block in table if block is not null}
    cached = sum(
        1
        for block in manager.pool.blocks
        if block.hash is not None and not block.ref_count and block.group == group.number
    )
    return GroupFigures(group.number or 0, PUBLISHED[group.spec.kind], group.spec.reach, len(held), cached)


def _divergence(manager: KVCacheManager, request: CacheRequest) -> Divergence | None:
    group = manager.main
    hashes = group.names(request.update_hashes(manager.hasher, manager.hash_block_size))
    followed = 0
    while followed < len(hashes) and group.find(hashes[followed]) is not None:
        followed += 1
    parent = hashes[followed - 1] if followed else None
    size = group.block_size

    def children() -> Iterator[list[int]]:
        for block in manager.pool.blocks:
            if block.hash is not None and block.group == group.number and block.parent == parent:
                yield block.tokens(size) or []

    return find_divergence(request.tokens, followed * size, size, children())


def _tokens(manager: KVCacheManager, block: Block) -> tuple[int, ...] | None:
    tokens = block.tokens(manager.block_size)
    return None if tokens is None else tuple(tokens)


def _hex(digest: bytes | None) -> str | None:
    return None if digest is None else digest.hex()
