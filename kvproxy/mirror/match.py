"""What a prompt would reuse of a mirrored pool, and where it leaves what is cached."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from kvproxy.blocks.digest import BlockHasher, event_hash
from kvproxy.blocks.divergence import find_divergence
from kvproxy.blocks.events import BlockStored
from kvproxy.blocks.request import CacheRequest
from kvproxy.blocks.rows import Divergence
from kvproxy.mirror.pool import MirroredBlock, MirroredPool
from kvproxy.mirror.wire import Extra


class Prompt:
    """A prompt and its block digests, computed once for each block size and recipe, however many pools are asked.

    Args:
        tokens: token ids.
        salt: the request's cache salt.
        lora: name and path of its adapter.
    """

    def __init__(self, tokens: Sequence[int], *, salt: str | None = None, lora: tuple[str, str] | None = None) -> None:
        self.tokens = list(tokens)
        self._salt = salt
        self._lora = lora
        self._named: dict[tuple[bytes, str, int], tuple[list[bytes], Sequence[Extra]]] = {}

    def named(self, hasher: BlockHasher, size: int) -> tuple[list[bytes], Sequence[Extra]]:
        """Digests of the full blocks, and what else names each, as it is published."""
        recipe = (hasher.none_hash, hasher.algorithm, size)
        if recipe not in self._named:
            request = CacheRequest("", self.tokens, salt=self._salt, lora=self._lora)
            digests = request.update_hashes(hasher, size)
            extras = BlockStored.of(request, digests, None, 0, size, None).extra_keys
            self._named[recipe] = (digests, (None,) * len(digests) if extras is None else extras)
        return self._named[recipe]


@dataclass(frozen=True, slots=True)
class MirrorMatch:
    """What a prompt would reuse.

    Attributes:
        prompt_tokens: length of the prompt.
        matched_tokens: how many of them are held.
        blocks: the blocks that hold them.
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


def match(pool: MirroredPool, prompt: Prompt, hasher: BlockHasher) -> MirrorMatch:
    """Follow a prompt through a pool; one token at least is left to compute, as in vLLM."""
    tokens, size = prompt.tokens, pool.block_size
    if not size:
        return MirrorMatch(len(tokens), 0, [], [], None, None)
    digests, extras = prompt.named(hasher, size)
    followed = list(_follow(pool, tokens, digests, extras))
    reused = followed[: (len(tokens) - 1) // size]
    alike = _find(pool, digests[0]) is not None if followed else None
    divergence = _divergence(pool, tokens, followed, size)
    return MirrorMatch(len(tokens), len(reused) * size, reused, digests, alike, divergence)


def matched_tokens(pool: MirroredPool, prompt: Prompt, hasher: BlockHasher) -> int:
    """Tokens of a prompt that a pool holds, at most all but one."""
    size = pool.block_size
    if not size:
        return 0
    held = sum(1 for _ in _follow(pool, prompt.tokens, *prompt.named(hasher, size)))
    return min(held, (len(prompt.tokens) - 1) // size) * size


def _follow(
    pool: MirroredPool, tokens: list[int], digests: Sequence[bytes], extras: Sequence[Extra]
) -> Iterator[MirroredBlock]:
    """Blocks of the longest prefix held: by digest, and where the engine names blocks otherwise, by their content."""
    size = pool.block_size
    block: MirroredBlock | None = None
    for index, digest in enumerate(digests):
        parent = block.hash if block else None
        block = _find(pool, digest)
        if block is None:
            block = pool.follow(parent, tuple(tokens[index * size : (index + 1) * size]), extras[index])
        if block is None:
            return
        yield block


def _find(pool: MirroredPool, digest: bytes) -> MirroredBlock | None:
    """The block that a digest names, in either form."""
    return pool.blocks.get(event_hash(digest)) or pool.blocks.get(digest)


def _divergence(pool: MirroredPool, tokens: list[int], followed: list[MirroredBlock], size: int) -> Divergence | None:
    children = pool.children(followed[-1].hash if followed else None)
    return find_divergence(tokens, len(followed) * size, size, (child.tokens for child in children))
