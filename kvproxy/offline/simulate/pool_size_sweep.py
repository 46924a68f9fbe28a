"""Hit rates of a trace by pool size and eviction policy."""

import json
import multiprocessing
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from kvproxy.charts import Chart, ChartLine
from kvproxy.offline.simulate.eviction_policies import BELADY
from kvproxy.offline.simulate.pool_simulation import ChainRequest, simulate
from kvproxy.offline.simulate.trace_reader import TraceError

_SUFFICIENT_SHARE = 0.9


@dataclass(frozen=True, slots=True)
class Sweep:
    """The hit rates of a trace by pool size and eviction policy.

    Attributes:
        sizes: pool sizes in blocks, ascending.
        rates: hit rates of each policy, one for each size.
        unlimited: hit rate of an unlimited pool.
        block_tokens: tokens in a block.
        requests, blocks: size of the trace.
    """

    sizes: tuple[int, ...]
    rates: dict[str, tuple[float, ...]]
    unlimited: float
    block_tokens: int
    requests: int
    blocks: int

    def sufficient_size(self, policy: str) -> int | None:
        """Return the smallest pool with 90% of the unlimited hit rate; None if no size reaches it."""
        target = _SUFFICIENT_SHARE * self.unlimited
        return next((size for size, rate in zip(self.sizes, self.rates[policy], strict=True) if rate >= target), None)


def sweep(
    requests: Sequence[ChainRequest],
    block_tokens: int,
    sizes: Sequence[int],
    policies: Sequence[str],
    on_progress: Callable[[], None] = lambda: None,
) -> Sweep:
    """Simulate every size with every policy on all cores.

    Args:
        block_tokens: tokens in a block.
        sizes: in blocks.
        policies: some of `eviction_policies.POLICY_NAMES`.
        on_progress: called after each simulation.
    """
    ordered = tuple(sorted(set(sizes)))
    cells = [(size, policy) for policy in policies for size in ordered]
    unlimited = simulate(requests, None, "lru")
    found: dict[tuple[int, str], float] = {}
    # Each chunk includes the trace, so use few large chunks.
    chunk = max(1, len(cells) // (4 * (os.cpu_count() or 1)))
    with multiprocessing.get_context("spawn").Pool() as pool:
        for cell, rate in pool.imap_unordered(_Simulation(requests), cells, chunksize=chunk):
            found[cell] = rate
            on_progress()
    return Sweep(
        sizes=ordered,
        rates={policy: tuple(found[size, policy] for size in ordered) for policy in policies},
        unlimited=unlimited.hit_rate,
        block_tokens=block_tokens,
        requests=len(requests),
        blocks=unlimited.blocks,
    )


@dataclass(frozen=True)
class _Simulation:
    """Computes the hit rate of a pool size and policy. It can be pickled for other processes."""

    requests: Sequence[ChainRequest]

    def __call__(self, cell: tuple[int, str]) -> tuple[tuple[int, str], float]:
        return cell, simulate(self.requests, *cell).hit_rate


def default_sizes(requests: Sequence[ChainRequest], count: int = 10) -> list[int]:
    """Return pool sizes in geometric steps from 1% to 100% of the distinct blocks."""
    distinct = len({block for request in requests for block in request.blocks})
    least = max(1, max((len(request.blocks) + 1 for request in requests), default=1), distinct // 100)
    if distinct <= least:
        return [least]
    return sorted({round(least * (distinct / least) ** (step / (count - 1))) for step in range(count)})


def bytes_per_token(folder: Path) -> int:
    """Read the bytes of a token's keys and values in 16 bits from config.json. Raises TraceError."""
    try:
        config: dict[str, Any] = json.loads((folder / "config.json").read_text())
        heads = config["num_attention_heads"]
        width = config.get("head_dim") or config["hidden_size"] // heads
        return int(2 * 2 * config["num_hidden_layers"] * (config.get("num_key_value_heads") or heads) * width)
    except (OSError, ValueError, KeyError) as error:
        raise TraceError(
            f"cannot read {folder}/config.json ({error!r}): use the folder of a transformers model"
        ) from None


def sweep_charts(sweep: Sweep) -> list[Chart]:
    sizes = [size * sweep.block_tokens for size in sweep.sizes]
    lines = [ChartLine(policy, sizes, rates, is_dashed=policy == BELADY) for policy, rates in sweep.rates.items()]
    levels = [("unlimited pool", sweep.unlimited)]
    return [Chart("tokens in the pool", "hit rate", lines, levels=levels, log_x=True, is_share=True)]
