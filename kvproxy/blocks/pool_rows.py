"""Describes the pool's blocks, chains, and statistics as rows, for operators."""

from collections.abc import Container, Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass

from kvproxy.blocks.block import KVCacheBlock
from kvproxy.blocks.cache_request import CacheRequest
from kvproxy.blocks.divergence import Divergence, find_divergence
from kvproxy.blocks.manager import KVCacheManager
from kvproxy.blocks.row_types import (
    BlockContent,
    BlockRow,
    BlockState,
    ChainRow,
    KVCacheGroupMatch,
    KVCacheGroupStats,
    PoolMap,
    PoolReport,
    PrefixMatch,
)
from kvproxy.blocks.single_type_manager import VLLM_KINDS, SingleTypeKVCacheManager

_LETTERS: dict[BlockState, str] = {"null": "0", "used": "u", "pinned": "p", "cached": "c", "free": "f"}
_NAME_DIGITS = 16
_MAX_NAMES = 64


def list_blocks(manager: KVCacheManager) -> list[BlockRow]:
    return _block_rows(manager, manager.pool.blocks)


def list_free_blocks(manager: KVCacheManager) -> list[BlockRow]:
    return _block_rows(manager, manager.pool.free_queue)


def _block_rows(manager: KVCacheManager, blocks: Iterable[KVCacheBlock]) -> list[BlockRow]:
    null = manager.pool.null_block
    requests: dict[int, list[str]] = {}
    groups: dict[int, int | None] = {}
    for group in manager.groups:
        for request_id, table in group.tables.items():
            for block in table:
                if block is not null:
                    requests.setdefault(block.id, []).append(request_id)
                    groups[block.id] = group.group_id
    return [
        BlockRow(
            id=block.id,
            state=block_state(block, null, requests),
            ref_count=block.ref_count,
            hash=_hex(block.hash),
            parent=_hex(block.parent),
            computed=block.hash is not None,
            num_tokens=0 if block.hash is None else manager.block_size,
            last_accessed=block.last_accessed,
            priority=block.priority,
            requests=tuple(requests.get(block.id, ())),
            group=groups.get(block.id) if block.group is None else block.group,
        )
        for block in blocks
    ]


def block_state(block: KVCacheBlock, null: KVCacheBlock, ids_in_block_tables: Container[int]) -> BlockState:
    if block is null:
        return "null"
    if block.ref_count:
        return "used" if block.id in ids_in_block_tables else "pinned"
    return "free" if block.hash is None else "cached"


def read_block(manager: KVCacheManager, id: int) -> BlockContent | None:
    if not 0 <= id < manager.pool.num_blocks:
        return None
    block = manager.pool.blocks[id]
    (row,) = _block_rows(manager, [block])
    return BlockContent(row, block.tokens(manager.block_size))


def list_chains(manager: KVCacheManager) -> list[ChainRow]:
    """Return the cached chains of the first group with full attention (`KVCacheManager.main`), most recently used first."""
    group = manager.main.group_id
    by_hash = {block.hash: block for block in manager.pool.blocks if block.hash is not None and block.group == group}
    parents = {block.parent for block in by_hash.values()}
    chains = [_chain_row(manager, by_hash, leaf) for digest, leaf in by_hash.items() if digest not in parents]
    return sorted(chains, key=lambda chain: -(chain.last_accessed or 0))


def _chain_row(manager: KVCacheManager, by_hash: dict[bytes, KVCacheBlock], leaf: KVCacheBlock) -> ChainRow:
    blocks: list[KVCacheBlock] = []
    block: KVCacheBlock | None = leaf
    while block is not None:
        blocks.append(block)
        block = None if block.parent is None else by_hash.get(block.parent)
    blocks.reverse()
    return ChainRow(
        leaf=_hex(leaf.hash),
        blocks=tuple(block.id for block in blocks),
        num_blocks=len(blocks),
        num_tokens=len(blocks) * manager.block_size,
        complete=blocks[0].parent is None,
        in_use=sum(1 for block in blocks if block.ref_count),
        last_accessed=leaf.last_accessed,
        first_tokens=blocks[0].tokens(manager.block_size),
    )


def report_pool(manager: KVCacheManager) -> PoolReport:
    residency = manager.pool.residency
    return PoolReport(
        **asdict(manager.stats()),
        residency=residency.stats() if residency is not None else None,
        groups=tuple(_group_stats(manager, group) for group in _reported_groups(manager)),
    )


def map_pool(manager: KVCacheManager) -> PoolMap:
    blocks, null = manager.pool.blocks, manager.pool.null_block
    ids_in_block_tables = manager.ids_in_block_tables()
    tenants: dict[str, int] = {}
    tenant = [-1] * len(blocks)
    for block in blocks:
        if block.source is not None:
            tenant[block.id] = tenants.setdefault(block.source[0].cache_salt or "", len(tenants))
    return PoolMap(
        None,
        "".join(_LETTERS[block_state(block, null, ids_in_block_tables)] for block in blocks),
        [block.ref_count for block in blocks],
        [block.last_accessed for block in blocks],
        list(tenants),
        tenant,
        [block.id for block in manager.pool.free_queue],
    )


def map_block_rows(rows: Sequence[BlockRow]) -> PoolMap:
    names = [(row.hash or "")[:_NAME_DIGITS] for row in rows]
    return PoolMap(names, "".join(_LETTERS[row.state] for row in rows), None, None, None, None, None)


def match_prefix(manager: KVCacheManager, request: CacheRequest) -> PrefixMatch:
    computed = manager.get_computed_blocks(request)
    null = manager.pool.null_block
    ids = tuple(block.id for hit in computed.groups for block in hit if block is not null)
    groups = tuple(_group_match(manager, group, request) for group in _reported_groups(manager))
    return PrefixMatch(request.num_tokens, computed.num_tokens, ids, _divergence(manager, request), groups)


def _reported_groups(manager: KVCacheManager) -> Sequence[SingleTypeKVCacheManager]:
    groups = manager.groups
    return () if len(groups) == 1 and groups[0].spec.kind == "full" else groups


def _group_hashes(manager: KVCacheManager, group: SingleTypeKVCacheManager, request: CacheRequest) -> Sequence[bytes]:
    return group.select_hashes(request.update_hashes(manager.hasher, manager.hash_block_size))


def _group_match(manager: KVCacheManager, group: SingleTypeKVCacheManager, request: CacheRequest) -> KVCacheGroupMatch:
    max_blocks = (request.num_tokens - 1) // group.block_size
    hit_blocks = group.find_longest_cache_hit(_group_hashes(manager, group, request), max_blocks)
    kind = VLLM_KINDS[group.spec.kind]
    return KVCacheGroupMatch(group.group_id or 0, kind, group.spec.window, len(hit_blocks) * group.block_size)


def _group_stats(manager: KVCacheManager, group: SingleTypeKVCacheManager) -> KVCacheGroupStats:
    null = manager.pool.null_block
    used = {block.id for table in group.tables.values() for block in table if block is not null}
    cached = sum(
        1
        for block in manager.pool.blocks
        if block.hash is not None and not block.ref_count and block.group == group.group_id
    )
    return KVCacheGroupStats(group.group_id or 0, VLLM_KINDS[group.spec.kind], group.spec.window, len(used), cached)


def _divergence(manager: KVCacheManager, request: CacheRequest) -> Divergence | None:
    group = manager.main
    hashes = _group_hashes(manager, group, request)
    num_cached = 0
    while num_cached < len(hashes) and group.get_cached_block(hashes[num_cached]) is not None:
        num_cached += 1
    parent = hashes[num_cached - 1] if num_cached else None
    size = group.block_size

    def children() -> Iterator[Sequence[int]]:
        for block in manager.pool.blocks:
            if block.hash is not None and block.group == group.group_id and block.parent == parent:
                yield block.tokens(size) or ()

    return find_divergence(request.tokens, num_cached * size, size, children())


def _hex(digest: bytes | None) -> str | None:
    return None if digest is None else digest.hex()


@dataclass(frozen=True, slots=True)
class TreeNode:
    name: str  # The block's number in the pool, or its hash in a mirror.
    hash: str
    parent: str | None
    in_use: bool = False


@dataclass(frozen=True, slots=True)
class TreeBranch:
    """Consecutive cached blocks of the prefix tree, up to a fork or to the end of a chain."""

    end: str  # Hash of the last block.
    blocks: int
    names: tuple[str, ...]  # `TreeNode.name` of the first 64 blocks.
    below: int  # Number of blocks that follow this branch, in all chains.
    leaves: int  # Number of chains that contain this branch.
    in_use: int  # Number of blocks in use, in this branch and after it.
    text: str | None = ""  # None if the engine could not be asked for it.


def tree_nodes_from_pool(manager: KVCacheManager) -> list[TreeNode]:
    group = manager.main.group_id
    return [
        TreeNode(str(block.id), block.hash.hex(), block.parent.hex() if block.parent else None, block.ref_count > 0)
        for block in manager.pool.blocks
        if block.hash is not None and block.group == group
    ]


def tree_nodes_from_rows(rows: Iterable[BlockRow]) -> list[TreeNode]:
    by_hash = {row.hash: row for row in rows if row.hash is not None}
    return [TreeNode(hash, hash, row.parent) for hash, row in by_hash.items()]


def list_branches(
    nodes: Iterable[TreeNode], parent: str | None, start: int, limit: int
) -> tuple[list[TreeBranch], int]:
    """Return a page of the branches after a block, largest first, and the number of all branches after it.

    `parent` is the block's hash; None lists the branches with which prompts begin.
    """
    children: dict[str | None, list[TreeNode]] = {}
    by_hash = {node.hash: node for node in nodes}
    for node in by_hash.values():
        # A chain may have lost its first blocks.
        children.setdefault(node.parent if node.parent in by_hash else None, []).append(node)
    branches = [_build_branch(children, node) for node in children.get(parent, [])]
    branches.sort(key=lambda branch: branch.blocks + branch.below, reverse=True)
    return branches[start : start + limit], len(branches)


def _build_branch(children: dict[str | None, list[TreeNode]], node: TreeNode) -> TreeBranch:
    run = [node]
    while len(following := children.get(run[-1].hash, [])) == 1:
        run.append(following[0])
    below = leaves = 0
    in_use = sum(member.in_use for member in run)
    stack = list(children.get(run[-1].hash, []))
    while stack:
        descendant = stack.pop()
        following = children.get(descendant.hash, [])
        below, leaves, in_use = below + 1, leaves + (not following), in_use + descendant.in_use
        stack.extend(following)
    return TreeBranch(
        run[-1].hash, len(run), tuple(member.name for member in run[:_MAX_NAMES]), below, leaves or 1, in_use
    )
