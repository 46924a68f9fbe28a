"""Computes the hit rate of a trace by pool size and eviction policy."""

import math
from bisect import bisect_left
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from itertools import chain
from statistics import mean

from kvproxy.analyse.charts import Chart, ChartLine
from kvproxy.analyse.simulate.pool_simulation import (
    BELADY,
    ChainRequest,
    check_count,
    check_policy,
    check_trace,
    lru_hits,
    replay,
)

_SUFFICIENT_SHARE = 0.9
_MIN_STEP = 1.1
_SAMPLING = 21
MIN_SAMPLED = 500_000
SAMPLED_ERROR = 0.03
"""Above all errors of sampled rates that tests/benchmarks/sampled_rates.py measures. They depend on the length of prompts in
relation to the pool, which a sample changes, so the differences between samples do not show them."""


@dataclass(frozen=True, slots=True)
class Sweep:
    """The hit rates of a trace by pool size and eviction policy.

    Attributes:
        sizes: pool sizes in blocks, ascending.
        rates: by policy, the share of the prompt tokens that are hits with each size.
        errors: by policy, a bound on the error of each rate: `SAMPLED_ERROR`, or 0 for exact rates.
        unlimited: hit rate of an unlimited pool.
        block_tokens: tokens in a block.
        requests, blocks, tokens: number of requests, of blocks (also incomplete ones), and of prompt tokens in the trace.
    """

    sizes: tuple[int, ...]
    rates: dict[str, tuple[float, ...]]
    errors: dict[str, tuple[float, ...]]
    unlimited: float
    block_tokens: int
    requests: int
    blocks: int
    tokens: int

    def sufficient_size(self, policy: str) -> int | None:
        """Return the smallest pool size with 90% of the unlimited hit rate; None if no size reaches 90%."""
        target = _SUFFICIENT_SHARE * self.unlimited
        return next((size for size, rate in zip(self.sizes, self.rates[policy], strict=True) if rate >= target), None)


def sweep(
    requests: Iterable[ChainRequest],
    block_tokens: int,
    sizes: Sequence[int],
    policies: Sequence[str],
    progress: Callable[[float], None] = lambda share: None,
    *,
    exact: bool = False,
    tokens: int | None = None,
) -> Sweep:
    """Compute the hit rate for each pool size in blocks and each policy of `simulate`.

    Args:
        exact: do not sample. By default, rates of policies other than LRU are estimates for traces of 500,000 blocks or more.
        tokens: number of prompt tokens in the trace, of which rates are shares. By default, an incomplete last block counts as a
            whole one, so rates are lower than those of `kvproxy simulate`.

    Raises TypeError or ValueError for invalid arguments, see `check_trace`.
    """
    requests = list(requests)
    _check_arguments(requests, block_tokens, sizes, policies, tokens)
    ordered = tuple(sorted(set(sizes)))
    blocks = sum(request.size for request in requests)
    if tokens is None:
        tokens = max(1, blocks) * block_tokens
    *lru, unlimited = lru_hits(requests, [*ordered, None])
    samples = _sampled_traces(requests) if not exact and blocks >= MIN_SAMPLED else []
    sampled_lru = [lru_hits(sample, [max(1, size // _SAMPLING) for size in ordered]) for sample in samples]
    rates: dict[str, tuple[float, ...]] = {}
    errors: dict[str, tuple[float, ...]] = {}
    for number, policy in enumerate(policies):
        estimates: list[float] = []
        for index, size in enumerate(ordered):
            if policy == "lru":
                estimates.append(lru[index])
            elif not samples:
                estimates.append(replay(requests, size, policy).hits)
            else:
                # The difference from LRU varies less between samples than the hits.
                gains = [
                    _SAMPLING * (replay(sample, max(1, size // _SAMPLING), policy).hits - hits[index])
                    for sample, hits in zip(samples, sampled_lru, strict=True)
                ]
                estimates.append(lru[index] + mean(gains))
            progress((number + (index + 1) / len(ordered)) / len(policies))
        rates[policy] = tuple(max(0, min(hits, unlimited)) * block_tokens / tokens for hits in estimates)
        errors[policy] = (SAMPLED_ERROR if samples and policy != "lru" else 0.0,) * len(ordered)
    best = unlimited * block_tokens / tokens
    return Sweep(ordered, rates, errors, best, block_tokens, len(requests), blocks, tokens)


def _check_arguments(
    requests: Sequence[ChainRequest],
    block_tokens: int,
    sizes: Sequence[int],
    policies: Sequence[str],
    tokens: int | None,
) -> None:
    check_trace(requests)
    check_count("block_tokens", block_tokens, "token")
    for size in sizes:
        check_count("a size", size, "block")
    for policy in policies:
        check_policy(policy)
    in_full_blocks = block_tokens * sum(len(request.blocks) for request in requests)
    if tokens is not None and tokens < max(1, in_full_blocks):
        raise ValueError(
            f"tokens must be at least the {in_full_blocks:,} tokens of the full blocks, but it is {tokens}"
        )


def _sampled_traces(requests: Sequence[ChainRequest]) -> list[list[ChainRequest]]:
    # SHARDS (Waldspurger et al., 2015): a sample has every 21st distinct block, for a pool of 1/21 of the size.
    uses = Counter(chain.from_iterable(request.blocks for request in requests))
    # More frequent blocks are hits in any pool.
    most = max(2, len(requests) // 20)
    classes: dict[int, int] = {block: index % _SAMPLING for index, block in enumerate(uses) if uses[block] <= most}
    samples: list[list[ChainRequest]] = [[], []]
    for request in requests:
        block_classes = [classes.get(block, -1) for block in request.blocks]
        for number, sample in enumerate(samples):
            places = [
                place for place, block_class in enumerate(block_classes) if block_class == number * _SAMPLING // 2
            ]
            if places:
                blocks = [request.blocks[place] for place in places]
                sample.append(ChainRequest(blocks, bisect_left(places, request.reusable), False, request.use))
    return samples


def default_sizes(requests: Sequence[ChainRequest], num_sizes: int = 10) -> list[int]:
    """Return pool sizes in blocks, from the longest prompt or 1% of the distinct blocks up to all distinct blocks."""
    distinct = len({block for request in requests for block in request.blocks})
    least = max(1, max((len(request.blocks) + 1 for request in requests), default=1), distinct // 100)
    if distinct <= least:
        return [least]
    num_sizes = max(2, min(num_sizes, 1 + int(math.log(distinct / least, _MIN_STEP))))
    return sorted({round(least * (distinct / least) ** (step / (num_sizes - 1))) for step in range(num_sizes)})


def sweep_charts(sweep: Sweep) -> list[Chart]:
    sizes = [size * sweep.block_tokens for size in sweep.sizes]
    lines = []
    for policy, rates in sweep.rates.items():
        bars = [(rate - error, rate + error) for rate, error in zip(rates, sweep.errors[policy], strict=True)]
        lows, highs = zip(*bars, strict=True) if any(sweep.errors[policy]) else ((), ())
        lines.append(ChartLine(policy, sizes, rates, lows, highs, is_dashed=policy == BELADY))
    levels = [("unlimited pool", sweep.unlimited)]
    return [Chart("tokens in the pool", "hit rate", lines, levels=levels, log_x=True, is_share=True)]
