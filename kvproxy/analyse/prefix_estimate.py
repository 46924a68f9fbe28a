"""Estimates how many prompt tokens of a log an engine's prefix cache would reuse."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

from kvproxy.analyse.log_tokenizer import PromptEncoder
from kvproxy.analyse.simulate.pool_simulation import ChainRequest, cached_prefix_length, lru_hits
from kvproxy.analyse.simulate.pool_size_sweep import default_sizes
from kvproxy.apis.api_request import ApiRequest
from kvproxy.apis.codecs.codec import PromptInput
from kvproxy.blocks.block_hash import BlockHasher
from kvproxy.blocks.cache_request import CacheRequest
from kvproxy.blocks.divergence import reusable_tokens

_DEFAULT_SIZES = 8


@dataclass(frozen=True, slots=True)
class TokenizedRequest:
    """The token ids of a request, and of the logged response. Requests with different salts share no blocks.

    `minimum` is the number of tokens of the shortest prefix that the provider caches.
    """

    prompt: tuple[int, ...]
    response: tuple[int, ...] = ()
    salt: str = ""
    minimum: int = 0


@dataclass(frozen=True, slots=True)
class PrefixPoint:
    """The number of prompt tokens that a pool of `blocks` blocks reuses; `discounted` ones are above the provider's minimum."""

    blocks: int
    reused: int
    discounted: int


@dataclass(frozen=True, slots=True)
class PrefixEstimate:
    """Estimated reuse of a log's prompts by an engine's prefix cache.

    Attributes:
        prompts, prompt_tokens: number of prompts that reach the engine, and of their tokens.
        unlimited, unlimited_discounted: number of tokens that an unlimited pool reuses, see `PrefixPoint`.
        points: reuse for each size of the pool, ascending.
    """

    block_size: int
    prompts: int
    prompt_tokens: int
    unlimited: int
    unlimited_discounted: int
    points: tuple[PrefixPoint, ...]

    def share(self, reused: int) -> float:
        return reused / self.prompt_tokens if self.prompt_tokens else 0.0


async def tokenize_request(
    tokenizer: PromptEncoder, request: ApiRequest, prompt: PromptInput, response: str | None = None
) -> TokenizedRequest:
    prompt_tokens = await tokenizer.encode(prompt)
    response_tokens = await tokenizer.encode_output(response) if response else ()
    salt = f"{request.tenant} {request.model} {request.body.get('cache_salt') or ''}"
    return TokenizedRequest(tuple(prompt_tokens), tuple(response_tokens), salt)


def block_chains(requests: Sequence[TokenizedRequest], block_size: int) -> list[ChainRequest]:
    """Return the blocks of each prompt and its response. Only blocks of the prompt count as reusable."""
    hasher = BlockHasher(seed="")
    ids: dict[bytes, int] = {}
    chains = []
    for tokens in requests:
        request = CacheRequest("", [*tokens.prompt, *tokens.response], cache_salt=tokens.salt)
        blocks = tuple(ids.setdefault(name, len(ids)) for name in request.update_hashes(hasher, block_size))
        reusable = reusable_tokens(len(tokens.prompt), len(tokens.prompt), block_size) // block_size
        chains.append(ChainRequest(blocks, min(reusable, len(blocks)), bool(request.num_tokens % block_size)))
    return chains


def reused_blocks(chains: Sequence[ChainRequest]) -> list[int]:
    """Return the number of blocks of each request that an unlimited pool reuses."""
    cached: set[int] = set()
    reused = []
    for chain in chains:
        reused.append(min(chain.reusable, cached_prefix_length(chain.blocks, cached)))
        cached.update(chain.blocks)
    return reused


def estimate_prefix_reuse(
    requests: Sequence[TokenizedRequest], block_size: int, sizes: Sequence[int] | None
) -> PrefixEstimate:
    """Compute the prefix reuse for pool sizes in blocks; by default, eight sizes up to the number of distinct blocks."""
    chains = block_chains(requests, block_size)
    # One block is the null block, and one is for an incomplete block.
    chosen = sorted(set(sizes)) if sizes else [size + 2 for size in default_sizes(chains, _DEFAULT_SIZES)]
    pools = [*(max(1, size - 1) for size in chosen), None]
    priced = [
        replace(chain, least=math.ceil(request.minimum / block_size))
        for chain, request in zip(chains, requests, strict=True)
    ]
    hits = [block_size * hit for hit in lru_hits(chains, pools)]
    discounted = [block_size * hit for hit in lru_hits(priced, pools)] if any(each.least for each in priced) else hits
    points = [PrefixPoint(*each) for each in zip(chosen, hits, discounted, strict=False)]
    tokens = sum(len(request.prompt) for request in requests)
    return PrefixEstimate(block_size, len(requests), tokens, hits[-1], discounted[-1], tuple(points))
