"""Whether an engine names its blocks by the recipe that we were told: seen from its events, before any prompt is asked for."""

from kvproxy.blocks.digest import BlockHasher, event_hash
from kvproxy.mirror.groups import hash_size
from kvproxy.mirror.pool import MirroredBlock, MirroredPool
from kvproxy.mirror.state import MirrorState


def named_alike(state: MirrorState, hasher: BlockHasher) -> bool | None:
    """Compare the name of a block that begins a prompt; None while there is none whose tokens were published."""
    for pools in state.ranks().values():
        first = next((block for pool in pools if (block := _beginning(pool)) is not None), None)
        if first is not None:
            digest = hasher.chain(list(first.tokens), hash_size(pools))[-1]
            return first.hash in (digest, event_hash(digest))
    return None


def _beginning(pool: MirroredPool) -> MirroredBlock | None:
    """A full block that begins a prompt, and whose tokens alone name it."""
    begins = (block for block in pool.children(None) if block.extra is None)
    return next((block for block in begins if len(block.tokens) == pool.block_size), None)
