"""What a prompt would reuse of a mirrored engine, and where it leaves what is cached.

`prepare` hashes the prompt, which is slow; it may run in any thread. All else reads pools that events change, so it runs where
they change: on the event loop.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from kvproxy.blocks.block_hash import BlockHasher
from kvproxy.blocks.divergence import find_divergence
from kvproxy.blocks.lookup import find_longest_cache_hit
from kvproxy.blocks.rows import Divergence
from kvproxy.mirror.groups import NULL, FullGroup, Group, PromptNames, make_groups
from kvproxy.mirror.pool import MirroredBlock, MirroredPool
from kvproxy.mirror.prompt import Prompt

Recipe = tuple[BlockHasher, int]
"""How an engine names blocks, and the size of those that it hashes."""


@dataclass(frozen=True, slots=True)
class MirrorMatch:
    """What a prompt would reuse.

    Attributes:
        prompt_tokens: length of the prompt.
        matched_tokens: how many of them are held.
        blocks: the blocks that hold them, of the first attention group.
        digests: the prompt's own block digests, by the recipe that we were told.
        named_alike: whether the engine's names are those digests; None where nothing matched.
        divergence: where the prompt leaves the chain that it follows furthest.
    """

    prompt_tokens: int
    matched_tokens: int
    blocks: list[MirroredBlock]
    digests: list[bytes]
    named_alike: bool | None
    divergence: Divergence | None


def prepare(prompt: Prompt, recipes: Iterable[Recipe]) -> None:
    """Hash a prompt by each of these recipes, so that asking mirrors is only a matter of looking up."""
    for hasher, size in recipes:
        prompt.named(hasher, size)


def match(pools: Sequence[MirroredPool], prompt: Prompt, hasher: BlockHasher) -> MirrorMatch:
    """Follow a prompt through the groups of one rank; one token at least is left to compute, as in vLLM."""
    if not pools:
        return MirrorMatch(len(prompt.tokens), 0, [], [], None, None)
    groups, names = make_groups(pools, prompt, hasher)
    found, length = _reusable(groups, names)
    blocks = [block for block in found if block is not NULL]
    alike = None
    if blocks:
        last = length // names.size - 1
        alike = names.by_recipe(groups[0].pool, last)
    return MirrorMatch(
        len(prompt.tokens), length, blocks, names.named.digests, alike, _divergence(groups[0], prompt.tokens)
    )


def matched_tokens(pools: Sequence[MirroredPool], prompt: Prompt, hasher: BlockHasher) -> int:
    """Tokens of a prompt that the groups of one rank hold, at most all but one."""
    if not pools:
        return 0
    return _reusable(*make_groups(pools, prompt, hasher))[1]


def _reusable(groups: Sequence[Group], names: PromptNames) -> tuple[Sequence[MirroredBlock], int]:
    """Blocks of the first group, and the tokens that all groups can reuse."""
    places = range(len(names.named.numbers))
    found, length = find_longest_cache_hit(groups, places, max(0, len(names.prompt.tokens) - 1))
    return found[0], length


def _divergence(group: Group, tokens: list[int]) -> Divergence | None:
    """Only a group that holds chains from their beginning can tell."""
    if not isinstance(group, FullGroup):
        return None
    followed = group.followed
    children = group.pool.children(followed[-1].hash if followed else None)
    return find_divergence(
        tokens, len(followed) * group.block_size, group.block_size, (child.tokens for child in children)
    )
