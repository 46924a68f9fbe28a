"""Computes the time to first token and the price of each pool size."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from kvproxy.analyse.charts import Chart, ChartLine
from kvproxy.analyse.simulate.ceilings import Ceilings, ceilings
from kvproxy.analyse.simulate.pool_cost import GIB, EngineSpeed, PoolCost, Tier, pool_cost
from kvproxy.analyse.simulate.pool_simulation import lru_hits
from kvproxy.analyse.simulate.pool_size_sweep import Sweep, sweep, sweep_charts
from kvproxy.analyse.simulate.trace_reader import Workload
from kvproxy.doors import EVICTION

_MODEL = (
    "Requests run one at a time, and the last token of a prompt is always computed. Responses are not cached.",
    "LRU is exact for pools that have space for the longest prompt, and simulated alone for smaller ones.",
)
_SAMPLING = (
    "Rates of other policies come from two samples of 1/21 of the blocks; ± is above all errors that were measured."
)
_SPEED = (
    "TTFT is prefill and transfer time without queueing. A tier has the most recently used blocks, and is read if that is"
    " faster than prefill; its share is in addition to that of lru."
)


@dataclass(frozen=True, slots=True)
class CapacityPlan:
    """The results of a simulation.

    Attributes:
        name: title of the report.
        costs, costs_without_tiers: cost of each pool size with LRU; empty if `speed` is None.
        speed: None if the KV bytes of a token are unknown.
        ceilings: hit rates of an unlimited pool.
        notes: sentences about information that the trace lacks.
    """

    name: str
    sweep: Sweep
    costs: Sequence[PoolCost]
    costs_without_tiers: Sequence[PoolCost]
    tiers: Sequence[Tier]
    speed: EngineSpeed | None
    ceilings: Ceilings
    notes: tuple[str, ...]

    def pool_name(self, size_index: int) -> str:
        size = self.sweep.sizes[size_index] * self.sweep.block_tokens
        memory = f" ({size * self.speed.token_bytes / 2**30:,.1f} GiB)" if self.speed else ""
        return f"{size:,} tokens{memory}"

    def recommendation(self) -> str:
        """Return sentences on the pool size, on the gain of tiers or of a larger pool, and on the eviction policy."""
        sweep = self.sweep
        lru = sweep.rates.get("lru") or next(iter(sweep.rates.values()))
        if not sweep.unlimited:
            return "No prompt repeats a block, so a larger pool does not help. A tier does not help, either. Any policy will do."
        enough = next((at for at, rate in enumerate(lru) if rate >= 0.9 * sweep.unlimited), None)
        at = len(lru) - 1 if enough is None else enough
        name = self.pool_name(at)
        advice = f"Use a pool of {name}, which" if enough is not None else f"Simulate larger pools: one of {name}"
        first = (
            f"{advice} reaches {lru[at] / sweep.unlimited:.1%} of the possible hits: {lru[at]:.1%} of the prompt tokens,"
            f" of at most {sweep.unlimited:.1%}."
        )
        return f"{first} {self._more_memory_sentence(at, lru)} {self._policy_sentence(at, lru)}"

    def _more_memory_sentence(self, size_index: int, lru: Sequence[float]) -> str:
        if self.tiers:
            with_tiers, without = self.costs[size_index], self.costs_without_tiers[size_index]
            added = sum(share for name, share in with_tiers.hits.items() if name != "pool")
            names = " and ".join(f"{tier.gib:g} GiB of {tier.name}" for tier in self.tiers)
            change = 1000 * (with_tiers.ttft - without.ttft)
            verb = "raises" if change > 0 else "lowers"
            return f"A tier of {names} adds {100 * added:.1f} points and {verb} the mean TTFT by {abs(change):,.0f} ms."
        if size_index == len(lru) - 1:
            return "A larger pool was not simulated."
        return f"A pool of {self.pool_name(size_index + 1)} adds {100 * (lru[size_index + 1] - lru[size_index]):.1f} points."

    def _policy_sentence(self, size_index: int, lru: Sequence[float]) -> str:
        omitted = [name for name in EVICTION.names() if name not in self.sweep.rates]
        hint = f" Not simulated: {', '.join(omitted)} (--policies)." if omitted else ""
        return self._best_policy_sentence(size_index, lru) + hint

    def _best_policy_sentence(self, size_index: int, lru: Sequence[float]) -> str:
        others = {name: rates[size_index] for name, rates in self.sweep.rates.items() if name not in ("lru", "belady")}
        if not others:
            return "No other policy was simulated."
        better = [name for name, rate in others.items() if rate - self.sweep.errors[name][size_index] > lru[size_index]]
        if not better:
            return "Keep LRU: no other simulated policy of an engine is better at this size."
        best = max(better, key=others.__getitem__)
        return f"The policy {best} adds {100 * (others[best] - lru[size_index]):.1f} points at this size."

    def ceiling_sentence(self) -> str:
        """Return the hit rates of an unlimited pool by each definition."""
        rates = self.ceilings
        return (
            f"hit rate of an unlimited pool: {rates.whole:.1%} of the prompt tokens; {rates.second_half:.1%} in the second half"
            f" of the requests, after the first half filled the pool; {rates.mean:.1%} as the mean of the requests"
        )

    def table(self) -> tuple[list[str], list[list[str]]]:
        """Return the headings and the rows of a table with a row for each pool size."""
        rows = [self.cells(at) for at in range(len(self.sweep.sizes))]
        return list(rows[0]), [[text for text, _ in row.values()] for row in rows]

    def cells(self, size_index: int) -> dict[str, tuple[str, float]]:
        """Return the text and the value of each column for a pool size: tokens, shares, seconds, and money."""
        tokens = self.sweep.sizes[size_index] * self.sweep.block_tokens
        row: dict[str, tuple[str, float]] = {"Pool": (self.pool_name(size_index), tokens)}
        for name, rates in self.sweep.rates.items():
            rate, error = rates[size_index], self.sweep.errors[name][size_index]
            row[name] = (f"{rate:.1%}" + (f" ±{100 * error:.1f}" if error else ""), rate)
        if self.costs:
            cost = self.costs[size_index]
            row["TTFT"] = (f"{1000 * cost.ttft:,.0f} ms", cost.ttft)
            row |= {tier.name: (f"{cost.hits[tier.name]:.1%}", cost.hits[tier.name]) for tier in self.tiers}
            if self.speed and self.speed.hour_price:
                row["price per million tokens"] = (f"{cost.price:.4f}", cost.price)
        return row

    def charts(self) -> list[Chart]:
        if not self.costs:
            return sweep_charts(self.sweep)
        sizes = [size * self.sweep.block_tokens for size in self.sweep.sizes]
        lines = [ChartLine("lru", sizes, [cost.ttft for cost in self.costs_without_tiers])]
        if self.tiers:
            lines.append(ChartLine("lru with tiers", sizes, [cost.ttft for cost in self.costs]))
        ttft = Chart("tokens in the pool", "mean TTFT in seconds", lines, log_x=True)
        return [*sweep_charts(self.sweep), ttft]

    def assumptions(self) -> list[str]:
        lines = [*_MODEL, *self.notes]
        if any(any(errors) for errors in self.sweep.errors.values()):
            lines.append(_SAMPLING)
        if self.speed:
            lines.append(_SPEED)
            lines.append(
                f"An engine computes {self.speed.prefill_rate:,.0f} prompt tokens per second; a token has"
                f" {self.speed.token_bytes:,.0f} bytes."
            )
        lines += [f"Tier {tier.name}: {tier.gib:g} GiB at {tier.bandwidth:g} GiB per second." for tier in self.tiers]
        return lines


def plan_capacity(
    name: str,
    workload: Workload,
    sizes: Sequence[int],
    policies: Sequence[str],
    tiers: Sequence[Tier],
    speed: EngineSpeed | None,
    progress: Callable[[float], None],
    *,
    exact: bool,
) -> CapacityPlan:
    """Simulate pool sizes and eviction policies (see `sweep`), and compute the mean TTFT and the price of each size."""
    chains, block_tokens = workload.chains, workload.block_tokens
    tokens = sum(arrival.tokens for arrival in workload.arrivals)
    result = sweep(chains, block_tokens, sizes, policies, progress, exact=exact, tokens=tokens)
    highest = ceilings(workload.arrivals, block_tokens)
    if speed is None:
        return CapacityPlan(name, result, (), (), (), None, highest, workload.notes)
    beyond = [max(1, int(tier.gib * GIB / speed.token_bytes / block_tokens)) for tier in tiers]
    hits = [block_tokens * blocks for blocks in lru_hits(chains, [*result.sizes, *beyond])]
    pools, lower = hits[: len(result.sizes)], hits[len(result.sizes) :]
    costs = [pool_cost([hit, *lower], tiers, speed, tokens=tokens, requests=len(chains)) for hit in pools]
    alone = [pool_cost([hit], (), speed, tokens=tokens, requests=len(chains)) for hit in pools]
    return CapacityPlan(name, result, costs, alone, tiers, speed, highest, workload.notes)
