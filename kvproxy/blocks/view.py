"""The block cache as plain JSON-able values, for the admin routes and the command line."""

from dataclasses import asdict, dataclass
from typing import Any

from kvproxy.blocks.block import Block
from kvproxy.blocks.manager import KVCacheManager
from kvproxy.blocks.request import CacheRequest


@dataclass(frozen=True, slots=True)
class Divergence:
    """Where a prompt leaves the cached chain that it follows furthest.

    Attributes:
        position: index of the first token that differs.
        cached: the chain's tokens from there to its block's end.
        prompt: the prompt's tokens over the same positions.
        before: the last tokens that they share.
    """

    position: int
    cached: list[int]
    prompt: list[int]
    before: list[int]


@dataclass(frozen=True, slots=True)
class PrefixMatch:
    """What a prompt would reuse."""

    prompt_tokens: int
    matched_tokens: int
    blocks: list[int]
    divergence: Divergence | None


def list_blocks(manager: KVCacheManager) -> list[dict[str, Any]]:
    """Every block in id order."""
    holders = _holders(manager)
    return [_row(manager, block, holders) for block in manager.pool.blocks]


def eviction_queue(manager: KVCacheManager) -> list[dict[str, Any]]:
    """Idle blocks, the next to be given up first."""
    return [_row(manager, block, {}) for block in manager.pool.free_queue]


def show_block(manager: KVCacheManager, id: int) -> dict[str, Any] | None:
    """One block with its tokens, or None where there is no such block."""
    if not 0 <= id < manager.pool.num_blocks:
        return None
    block = manager.pool.blocks[id]
    return _row(manager, block, _holders(manager)) | {"tokens": block.tokens(manager.block_size)}


def chains(manager: KVCacheManager) -> list[dict[str, Any]]:
    """Cached chains, each from its first block to a leaf, most recently used first.

    Chains that share a beginning each list it. A hybrid model's are those of its first group.
    """
    number = manager.groups[0].number
    named = {block.hash: block for block in manager.pool.blocks if block.hash is not None and block.group == number}
    parents = {block.parent for block in named.values()}
    found = []
    for leaf in (block for digest, block in named.items() if digest not in parents):
        chain: list[Block] = []
        block: Block | None = leaf
        while block is not None:
            chain.append(block)
            block = named.get(block.parent) if block.parent is not None else None
        chain.reverse()
        first = chain[0].tokens(manager.block_size)
        found.append(
            {
                "leaf": leaf.hash.hex() if leaf.hash else None,
                "blocks": [block.id for block in chain],
                "num_blocks": len(chain),
                "num_tokens": len(chain) * manager.block_size,
                "complete": chain[0].parent is None,
                "in_use": sum(1 for block in chain if block.ref_count),
                "last_accessed": leaf.last_accessed,
                "first_tokens": first,
            }
        )
    return sorted(found, key=lambda chain: -int(str(chain["last_accessed"])))


def stats(manager: KVCacheManager) -> dict[str, Any]:
    """Figures of the pool, and of how long cached blocks stay where that is noted."""
    holders = _holders(manager)
    null = manager.pool.null_block
    pinned = sum(
        1 for block in manager.pool.blocks if block.ref_count and block is not null and block.id not in holders
    )
    residency = manager.pool.residency
    return asdict(manager.stats()) | {
        "pinned": pinned,
        "residency": residency.stats().as_dict() if residency is not None else None,
    }


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
    blocks = list(computed.blocks)
    size = manager.block_size
    divergence = _divergence(manager, request, size)
    return PrefixMatch(request.num_tokens, computed.num_tokens, [block.id for block in blocks], divergence)


def _divergence(manager: KVCacheManager, request: CacheRequest, size: int) -> Divergence | None:
    """The child of the last matched block that shares most tokens with the prompt."""
    group = manager.groups[0]
    hashes = group.names(request.update_hashes(manager.hasher, manager.hash_block_size))
    followed = 0
    while followed < len(hashes) and group.find(hashes[followed]) is not None:
        followed += 1
    parent = hashes[followed - 1] if followed else None
    start = followed * size
    wanted = request.tokens[start : start + size]
    closest: list[int] | None = None
    shared = -1
    for block in manager.pool.blocks:
        if block.hash is None or block.group != group.number or block.parent != parent:
            continue
        tokens = block.tokens(size)
        if tokens is None:
            continue
        same = next((at for at, (a, b) in enumerate(zip(tokens, wanted, strict=False)) if a != b), len(wanted))
        if same > shared and same < size:
            closest, shared = tokens, same
    if closest is None or shared >= len(wanted):
        return None
    position = start + shared
    return Divergence(position, closest[shared:], wanted[shared:], request.tokens[max(0, position - 12) : position])


def _holders(manager: KVCacheManager) -> dict[int, list[str]]:
    holders: dict[int, list[str]] = {}
    for group in manager.groups:
        for request_id, table in group.tables.items():
            for block in table:
                holders.setdefault(block.id, []).append(request_id)
    return holders


def _row(manager: KVCacheManager, block: Block, holders: dict[int, list[str]]) -> dict[str, Any]:
    if block is manager.pool.null_block:
        state = "null"
    elif block.ref_count:
        # What is held by no request is held by a pin.
        state = "used" if block.id in holders else "pinned"
    else:
        state = "cached" if block.hash is not None else "free"
    return {
        "id": block.id,
        "state": state,
        "ref_count": block.ref_count,
        "hash": block.hash.hex() if block.hash else None,
        "parent": block.parent.hex() if block.parent else None,
        "computed": block.computed,
        "num_tokens": manager.block_size if block.computed else 0,
        "last_accessed": block.last_accessed,
        "priority": block.priority,
        "requests": holders.get(block.id, []) if block is not manager.pool.null_block else [],
    }
