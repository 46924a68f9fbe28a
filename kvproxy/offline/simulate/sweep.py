"""Hit rates of a trace over pool sizes and orders of eviction, between what an endless pool and foresight would reach."""

import json
import multiprocessing
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from kvproxy.offline.simulate.chains import ChainRequest, simulate
from kvproxy.offline.simulate.errors import TraceError

ENOUGH = 0.9


@dataclass(frozen=True, slots=True)
class Sweep:
    """Result of a sweep.

    Attributes:
        sizes: pool sizes in blocks, ascending.
        rates: for each policy the hit rate at each size, hit blocks over all blocks.
        infinite: hit rate of a pool that never evicts.
        block_tokens: tokens in a block.
        requests, blocks: size of the trace.
    """

    sizes: tuple[int, ...]
    rates: dict[str, tuple[float, ...]]
    infinite: float
    block_tokens: int
    requests: int
    blocks: int

    def enough(self, policy: str) -> int | None:
        """The smallest of the sizes that reaches 90% of the endless pool's hit rate; None where none does."""
        wanted = ENOUGH * self.infinite
        return next((size for size, rate in zip(self.sizes, self.rates[policy], strict=True) if rate >= wanted), None)


def sweep(
    requests: Sequence[ChainRequest],
    block_tokens: int,
    sizes: Sequence[int],
    policies: Sequence[str],
    on_cell: Callable[[], None] = lambda: None,
) -> Sweep:
    """Simulate every size with every policy, on all cores.

    Args:
        requests: the trace.
        block_tokens: tokens in a block.
        sizes: pool sizes in blocks.
        policies: names in `eviction_policies.POLICY_NAMES`.
        on_cell: called after each simulation, to show progress.
    """
    ordered = tuple(sorted(set(sizes)))
    cells = [(size, policy) for policy in policies for size in ordered]
    infinite = simulate(requests, None, "lru")
    found: dict[tuple[int, str], float] = {}
    # Sending the trace costs more than a small simulation, so cells travel in a few large chunks.
    chunk = max(1, len(cells) // (4 * (os.cpu_count() or 1)))
    with multiprocessing.get_context("spawn").Pool() as pool:
        for cell, rate in pool.imap_unordered(_Cell(requests), cells, chunksize=chunk):
            found[cell] = rate
            on_cell()
    return Sweep(
        sizes=ordered,
        rates={policy: tuple(found[size, policy] for size in ordered) for policy in policies},
        infinite=infinite.hit_rate,
        block_tokens=block_tokens,
        requests=len(requests),
        blocks=infinite.blocks,
    )


@dataclass(frozen=True)
class _Cell:
    """One simulation, with the trace that it needs wherever it is run."""

    requests: Sequence[ChainRequest]

    def __call__(self, cell: tuple[int, str]) -> tuple[tuple[int, str], float]:
        return cell, simulate(self.requests, *cell).hit_rate


def default_sizes(requests: Sequence[ChainRequest], count: int = 10) -> list[int]:
    """Sizes from a hundredth of the distinct blocks up to all of them, evenly spaced by ratio."""
    distinct = len({block for request in requests for block in request.blocks})
    least = max(1, max((len(request.blocks) + 1 for request in requests), default=1), distinct // 100)
    if distinct <= least:
        return [least]
    return sorted({round(least * (distinct / least) ** (step / (count - 1))) for step in range(count)})


def bytes_per_token(folder: Path) -> int:
    """KV bytes of one token in 16-bit precision, from a model's config.json.

    Raises:
        TraceError: there is no such file, or it lacks a field.
    """
    try:
        config: dict[str, Any] = json.loads((folder / "config.json").read_text())
        heads = config["num_attention_heads"]
        width = config.get("head_dim") or config["hidden_size"] // heads
        return int(2 * 2 * config["num_hidden_layers"] * (config.get("num_key_value_heads") or heads) * width)
    except (OSError, ValueError, KeyError) as error:
        raise TraceError(f"cannot read the shape of a model from {folder}/config.json ({error!r})") from None
