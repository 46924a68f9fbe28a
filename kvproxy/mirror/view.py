"""Mirrored pools as rows: the same classes that show the embedded engine's pool.

Events change the pools on the event loop. `shelves` copies there what the other functions read, in any thread.

An engine publishes neither block ids, nor holders, nor its order of eviction, nor look-ups: these are None.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace

from kvproxy.blocks.rows import BlockContent, BlockLocation, BlockRow, ChainRow, PoolReport
from kvproxy.mirror.groups import window_of
from kvproxy.mirror.pool import MirroredBlock
from kvproxy.mirror.state import MirrorState
from kvproxy.mirror.wire import Hash


def hex_of(digest: Hash) -> str:
    """A block's name in hexadecimal: 16 digits for an integer; negative ones, as SGLang's may be, as 64 bits."""
    return digest.hex() if isinstance(digest, bytes) else f"{digest & (1 << 64) - 1:016x}"


@dataclass(frozen=True, slots=True)
class Copy:
    """A pool's blocks at one moment: what events change in the pool later is not seen here."""

    block_size: int
    blocks: dict[Hash, MirroredBlock]


@dataclass(frozen=True, slots=True)
class Shelf:
    """All pools of one rank and medium, one for each attention group, the one whose chains are shown first."""

    place: BlockLocation
    pools: dict[int | None, Copy]

    def leading(self) -> Copy:
        return next(iter(self.pools.values()))

    def blocks(self) -> Iterator[BlockContent]:
        """Each block once, whatever groups hold it: they name equal tokens alike."""
        found: dict[tuple[Hash, int], list[tuple[int | None, MirroredBlock]]] = {}
        for group, pool in self.pools.items():
            for block in pool.blocks.values():
                found.setdefault((block.hash, pool.block_size), []).append((group, block))
        places: dict[tuple[int, ...], BlockLocation] = {}
        for (_, size), held in found.items():
            groups = tuple(group for group, _ in held if group is not None)
            place = places.get(groups)
            if place is None:
                place = places[groups] = replace(self.place, groups=groups)
            yield _content(size, held, place)


def _content(size: int, held: list[tuple[int | None, MirroredBlock]], place: BlockLocation) -> BlockContent:
    # A group with a window does not always publish which tokens its blocks hold.
    block = next((block for _, block in held if block.tokens), held[0][1])
    row = BlockRow(
        id=None,
        state="cached",
        ref_count=None,
        hash=hex_of(block.hash),
        parent=None if block.parent is None else hex_of(block.parent),
        computed=True,
        num_tokens=size,
        last_accessed=None,
        priority=None,
        requests=None,
        copies=sum(block.copies for _, block in held),
        place=place,
    )
    return BlockContent(row, block.tokens or None)


def shelves(state: MirrorState, engine: str) -> list[Shelf]:
    """What an engine holds now, on the event loop, where its events come in. What is made of it is made in a thread."""
    found: dict[tuple[int | None, str], Shelf] = {}
    # Groups with full attention hold whole chains.
    for key, pool in sorted(state.pools.items(), key=lambda item: (window_of(item[1]) is not None, item[0].group or 0)):
        shelf = found.setdefault((key.rank, key.medium), Shelf(BlockLocation(engine, key.rank, key.medium), {}))
        shelf.pools[key.group] = Copy(pool.block_size, dict(pool.blocks))
    return list(found.values())


def list_blocks(held: Iterable[Shelf]) -> list[BlockRow]:
    """Every cached block, the first stored first."""
    return [content.block for shelf in held for content in shelf.blocks()]


def show_blocks(held: Iterable[Shelf], prefix: str) -> list[BlockContent]:
    """Blocks whose name begins with `prefix`, with their tokens. The caller adds the text."""
    found = (content for shelf in held for content in shelf.blocks())
    return [content for content in found if content.block.hash is not None and content.block.hash.startswith(prefix)]


def chains(held: Iterable[Shelf]) -> list[ChainRow]:
    """Cached chains of an engine, each from its first block to a leaf, the most recently stored first. The caller adds the text.

    A hybrid model's are those of its first group with full attention.
    """
    found: list[tuple[int, ChainRow]] = []
    for shelf in held:
        pool = shelf.leading()
        groups = tuple(group for group in shelf.pools if group is not None)
        place = replace(shelf.place, groups=groups[:1])
        parents = {block.parent for block in pool.blocks.values()}
        leaves = (block for block in pool.blocks.values() if block.hash not in parents)
        found += [(leaf.stored, _chain(place, pool, leaf)) for leaf in leaves]
    return [chain for _, chain in sorted(found, key=lambda item: -item[0])]


def _chain(place: BlockLocation, pool: Copy, leaf: MirroredBlock) -> ChainRow:
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


def chain_to(held: Iterable[Shelf], prefix: str) -> list[int] | None:
    """The tokens from a prompt's beginning to the block whose name begins with `prefix`; None where not all are known.

    A chain that a salt or an adapter names too is left out: its tokens alone do not make it.
    """
    for shelf in held:
        pool = shelf.leading()
        last = next((block for block in pool.blocks.values() if hex_of(block.hash).startswith(prefix)), None)
        found: list[tuple[int, ...]] = []
        while last is not None and last.tokens and last.extra is None and len(found) < len(pool.blocks):
            found.append(last.tokens)
            if last.parent is None:
                return [token for tokens in reversed(found) for token in tokens]
            last = pool.blocks.get(last.parent)
    return None


def stats(state: MirrorState) -> PoolReport:
    """Figures of all pools together."""
    pools = state.pools.values()
    return PoolReport(
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
        distinct=sum(len(names) for names in _names(state).values()),
    )


def _names(state: MirrorState) -> dict[tuple[int | None, str, int], set[Hash]]:
    """Names of blocks by rank, medium and size: the groups of a hybrid model hold the same ones."""
    found: dict[tuple[int | None, str, int], set[Hash]] = {}
    for key, pool in state.pools.items():
        found.setdefault((key.rank, key.medium, pool.block_size), set()).update(pool.blocks)
    return found
