"""The cached chains as a tree, in which chains with the same beginning share a branch."""

from collections.abc import Iterable
from dataclasses import dataclass

from kvproxy.blocks.manager import KVCacheManager
from kvproxy.blocks.row_types import BlockRow

_MAX_NAMES = 64


@dataclass(frozen=True, slots=True)
class TreeNode:
    """A cached block. `name` is its number in the pool, or its hash in a mirror."""

    name: str
    hash: str
    parent: str | None
    in_use: bool = False


@dataclass(frozen=True, slots=True)
class Branch:
    """Consecutive cached blocks up to a fork, or to the end of a chain.

    Attributes:
        end: hash of the last block.
        names: `TreeNode.name` of the first 64 blocks.
        below: number of blocks that follow this branch, in all chains.
        leaves: number of chains that contain this branch.
        in_use: number of blocks in use, in this branch and after it.
    """

    end: str
    blocks: int
    names: tuple[str, ...]
    below: int
    leaves: int
    in_use: int
    text: str = ""


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


def list_branches(nodes: Iterable[TreeNode], parent: str | None, start: int, limit: int) -> tuple[list[Branch], int]:
    """Return a page of the branches after a block, largest first, and the number of all branches after it.

    `parent` is the block's hash; None lists the branches with which prompts begin.
    """
    children: dict[str | None, list[TreeNode]] = {}
    by_hash = {node.hash: node for node in nodes}
    for node in by_hash.values():
        # A chain may have lost its first blocks.
        children.setdefault(node.parent if node.parent in by_hash else None, []).append(node)
    found = [_build_branch(children, node) for node in children.get(parent, [])]
    found.sort(key=lambda branch: branch.blocks + branch.below, reverse=True)
    return found[start : start + limit], len(found)


def _build_branch(children: dict[str | None, list[TreeNode]], node: TreeNode) -> Branch:
    run = [node]
    while len(following := children.get(run[-1].hash, [])) == 1:
        run.append(following[0])
    below = leaves = 0
    in_use = sum(each.in_use for each in run)
    stack = list(children.get(run[-1].hash, []))
    while stack:
        each = stack.pop()
        following = children.get(each.hash, [])
        below, leaves, in_use = below + 1, leaves + (not following), in_use + each.in_use
        stack.extend(following)
    return Branch(run[-1].hash, len(run), tuple(each.name for each in run[:_MAX_NAMES]), below, leaves or 1, in_use)
