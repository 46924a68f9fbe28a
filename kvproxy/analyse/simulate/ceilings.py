"""Hit rates of an unlimited pool by the definitions that papers and simulators use."""

from collections.abc import Sequence
from dataclasses import dataclass

from kvproxy.analyse.simulate.pool_simulation import TraceRequest, cached_prefix_length


@dataclass(frozen=True, slots=True)
class Ceilings:
    """The hit rates of one trace in an unlimited pool, which is empty at first.

    Attributes:
        whole: share of all prompt tokens, as in the other results of `kvproxy simulate`.
        second_half: share of the prompt tokens of the second half of the requests; the first half only fills the pool, as
            in kvcache.ai's simulator and llmtrafficlens.
        mean: mean of the requests' own shares, so that a short prompt counts as much as a long one.
    """

    whole: float
    second_half: float
    mean: float


def ceilings(arrivals: Sequence[TraceRequest], block_tokens: int) -> Ceilings:
    """Compute the ceilings of requests in order of arrival; `block_tokens` is the number of tokens in a block."""
    cached: set[int] = set()
    hits: list[int] = []
    for arrival in arrivals:
        blocks = cached_prefix_length(arrival.chain.blocks, cached)
        hits.append(min(blocks, arrival.chain.reusable) * block_tokens)
        cached.update(arrival.chain.blocks)
    tokens = [arrival.tokens for arrival in arrivals]
    middle = len(arrivals) // 2
    shares = [hit / count for hit, count in zip(hits, tokens, strict=True) if count]
    return Ceilings(
        sum(hits) / max(1, sum(tokens)),
        sum(hits[middle:]) / max(1, sum(tokens[middle:])),
        sum(shares) / max(1, len(shares)),
    )
