"""Forecasts the hit rate of an engine's prefix cache for other pool sizes, from the prompts since the start."""

from dataclasses import dataclass

from kvproxy.blocks.reuse_distance import LiveHitCurve

_FACTORS = {"half": 0.5, "current": 1.0, "double": 2.0, "quadruple": 4.0}
_UNLIMITED_TOKENS = 1e12
_CHART_STEPS = 16
_TIER_BYTES_PER_SECOND = 20 * 2**30  # Host memory to GPU over PCIe 4.0.


@dataclass(frozen=True, slots=True)
class ForecastPoint:
    """The forecast for one pool size, or for the current pool with a tier.

    Attributes:
        name: `half`, `current`, `double`, `quadruple`, or `unlimited`, each with the configured tiers; `without_tiers`, the
            current pool alone; or `tier`, the current pool with another tier.
        pool_tokens: size in tokens; None for an unlimited pool.
        hit_rate: share of the prompt tokens that would be reused, 0 to 1.
        ttft_ms: mean time to the first token, minus that of the current pool; None if unknown.
    """

    name: str
    pool_tokens: int | None
    hit_rate: float
    ttft_ms: float | None


@dataclass(frozen=True, slots=True)
class PoolForecast:
    """The forecast for an engine.

    Attributes:
        engine: URL of the upstream; empty for the embedded engine.
        requests, prompt_tokens: number of prompts since the start, and of their tokens.
        reported_tokens: number of these tokens whose reuse the engine reported.
        measured_hit_rate: share of `reported_tokens` that the engine reused; None without a report.
        pool_tokens: size of the pool; None if the engine does not report it. `points` then lack `half` to `quadruple`.
        tier_tokens: tokens that fit into the largest configured tier, which `points` include; None without tiers.
        chart: pairs of a pool size in tokens and its hit rate.
    """

    engine: str
    requests: int
    prompt_tokens: int
    reported_tokens: int
    measured_hit_rate: float | None
    pool_tokens: int | None
    points: list[ForecastPoint]
    chart: list[tuple[int, float]]
    tier_tokens: int | None = None


def forecast_hit_rates(
    engine: str,
    curve: LiveHitCurve,
    num_blocks: int | None,
    block_tokens: int | None,
    token_seconds: float | None,
    token_bytes: float | None = None,
    tier_bytes: float | None = None,
    tier_tokens: float | None = None,
) -> PoolForecast:
    """Forecast the hit rates of an engine. None stands for an unknown value.

    Args:
        num_blocks, block_tokens: blocks in the pool (one of them is reserved), and tokens in a block.
        token_seconds: prefill time of a token.
        token_bytes, tier_bytes: KV bytes of a token, and size of a tier in host memory; None omits the tier.
        tier_tokens: tokens that fit into the largest configured tier. All tiers receive the same tokens, also those that are in
            the pool.
    """
    pool_tokens = (num_blocks - 1) * block_tokens if num_blocks and block_tokens else None
    mean_tokens = curve.tokens / max(1, curve.requests)
    other_tokens = tier_bytes / token_bytes if token_bytes and tier_bytes else None
    transfer_seconds = (token_bytes or 0.0) / _TIER_BYTES_PER_SECOND

    def prompt_seconds(pool_rate: float, rate: float) -> float:
        """Return the seconds of a mean prompt's prefill and loads; loads are never slower than the prefill."""
        assert token_seconds is not None
        loads = (rate - pool_rate) * min(transfer_seconds, token_seconds)
        return mean_tokens * ((1.0 - rate) * token_seconds + loads)

    def hit_rates(size: float | None, tier: float | None) -> tuple[float, float]:
        """Return the hit rate of a pool, and that of the pool with a tier."""
        pool_rate = curve.hit_rate(_UNLIMITED_TOKENS if size is None else size)
        return pool_rate, pool_rate if tier is None else max(pool_rate, curve.hit_rate(tier))

    current = None if pool_tokens is None else hit_rates(pool_tokens, tier_tokens)

    def point(name: str, size: float | None, tier: float | None) -> ForecastPoint:
        rates, change = hit_rates(size, tier), None
        if current is not None and token_seconds is not None:
            change = 1000 * (prompt_seconds(*rates) - prompt_seconds(*current))
        return ForecastPoint(name, _rounded(other_tokens if name == "tier" else size), rates[1], change)

    points = []
    if pool_tokens is not None:
        points += [point(name, factor * pool_tokens, tier_tokens) for name, factor in _FACTORS.items()]
    points.append(point("unlimited", None, tier_tokens))
    if pool_tokens is not None and tier_tokens is not None:
        points.append(point("without_tiers", pool_tokens, None))
    if other_tokens is not None:
        points.append(point("tier", pool_tokens or 0, max(other_tokens, tier_tokens or 0)))
    sizes = [max(1, curve.max_prompt_tokens) * 2**step for step in range(_CHART_STEPS)]
    chart = [(size, curve.hit_rate(size)) for size in sizes]
    measured = curve.reported_tokens, curve.measured_hit_rate
    return PoolForecast(
        engine, curve.requests, curve.tokens, *measured, pool_tokens, points, chart, _rounded(tier_tokens)
    )


def _rounded(tokens: float | None) -> int | None:
    return None if tokens is None else round(tokens)
