"""What a prefix cache would reuse of the prompts of a log, by the size of its pool."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from kvproxy.apis.codecs.codec import PromptInput
from kvproxy.apis.request import ApiRequest
from kvproxy.blocks.block_hash import BlockHasher
from kvproxy.blocks.request import CacheRequest
from kvproxy.errors import KvproxyError
from kvproxy.offline.simulate.chains import ChainCache, ChainRequest
from kvproxy.offline.simulate.eviction_policies import ONLINE_POLICIES
from kvproxy.upstreams.prompt_tokenizer import LocalTokenizer, prompt_form

_SIZES = 8
_LRU = "lru"


@dataclass(frozen=True, slots=True)
class Spelled:
    """A request in tokens.

    Attributes:
        prompt: its prompt.
        answer: what came back, as far as the log tells: it is computed too, and the next turn may begin with it.
        salt: requests with different ones share nothing.
    """

    prompt: tuple[int, ...]
    answer: tuple[int, ...] = ()
    salt: str = ""


@dataclass(frozen=True, slots=True)
class PrefixPoint:
    """What a pool of so many blocks would reuse, in prompt tokens."""

    blocks: int
    reused: int


@dataclass(frozen=True, slots=True)
class PrefixEstimate:
    """What a prefix cache would reuse.

    Attributes:
        block_size: tokens in a block.
        prompts, prompt_tokens: that reach the engine.
        endless: tokens that a pool without end would reuse.
        points: by size of the pool, ascending.
    """

    block_size: int
    prompts: int
    prompt_tokens: int
    endless: int
    points: tuple[PrefixPoint, ...]

    def share(self, reused: int) -> float:
        """Part of all prompt tokens."""
        return reused / self.prompt_tokens if self.prompt_tokens else 0.0


async def spell(tokenizer: LocalTokenizer, request: ApiRequest, said: str | None = None) -> Spelled | None:
    """A request in tokens; None where its prompt is none, or cannot be read here.

    Args:
        said: what was answered.
    """
    try:
        return await spell_form(tokenizer, request, prompt_form(request), said)
    except KvproxyError:
        return None


async def spell_form(
    tokenizer: LocalTokenizer, request: ApiRequest, form: PromptInput, said: str | None = None
) -> Spelled:
    """A request whose prompt was read already, in tokens; raises a KvproxyError where the tokenizer cannot."""
    prompt = await tokenizer.tokens(form)
    answer = await tokenizer.words(said) if said else ()
    own = request.body.get("cache_salt")
    salt = f"{request.tenant} {request.model} {own if isinstance(own, str) else ''}"
    return Spelled(tuple(prompt), tuple(answer), salt)


def chains_of(spelled: Sequence[Spelled], block_size: int) -> list[ChainRequest]:
    """Requests as chains of blocks, in their order."""
    hasher = BlockHasher(seed="")
    ids: dict[bytes, int] = {}
    chains = []
    for each in spelled:
        request = CacheRequest("", [*each.prompt, *each.answer], salt=each.salt)
        blocks = tuple(ids.setdefault(name, len(ids)) for name in request.update_hashes(hasher, block_size))
        reusable = max(0, len(each.prompt) - 1) // block_size
        chains.append(ChainRequest(blocks, min(reusable, len(blocks)), bool(request.num_tokens % block_size)))
    return chains


def reused_by_each(chains: Sequence[ChainRequest], pool: int | None) -> list[int]:
    """Blocks that each request finds in a pool of so many blocks; None is a pool without end."""
    # One block of a pool stands for none, as in vLLM.
    capacity = sum(len(chain.blocks) + 1 for chain in chains) if pool is None else max(1, pool - 1)
    cache = ChainCache(capacity, ONLINE_POLICIES[_LRU](capacity))
    return [cache.serve(chain) or 0 for chain in chains]


def estimate_prefixes(
    spelled: Sequence[Spelled],
    block_size: int,
    sizes: Sequence[int] | None,
    progress: Callable[[float], None] = lambda share: None,
) -> PrefixEstimate:
    """What pools of some sizes would reuse.

    Args:
        sizes: blocks; by default from the longest request to all there are.
        progress: told the share of the work that is done.
    """
    chains = chains_of(spelled, block_size)
    chosen = sorted(set(sizes)) if sizes else _usual_sizes(chains)
    points = []
    for number, size in enumerate(chosen, 1):
        points.append(PrefixPoint(size, block_size * sum(reused_by_each(chains, size))))
        progress(number / (len(chosen) + 1))
    endless = block_size * sum(reused_by_each(chains, None))
    tokens = sum(len(each.prompt) for each in spelled)
    return PrefixEstimate(block_size, len(spelled), tokens, endless, tuple(points))


def _usual_sizes(chains: Sequence[ChainRequest]) -> list[int]:
    """From what the longest request takes to all different blocks, evenly spaced by ratio."""
    most = len({block for chain in chains for block in chain.blocks}) + 2
    least = max((len(chain.blocks) + 2 for chain in chains), default=2)
    if most <= least:
        return [least]
    return sorted({round(least * (most / least) ** (step / (_SIZES - 1))) for step in range(_SIZES)})
