"""The status of an upstream, for routes, commands, and metrics; without imports of its parts."""

from dataclasses import dataclass, field

from kvproxy.backends.reports import EngineMetrics, StreamStatus

MIN_PREDICTIONS = 20
"""Number of predictions before they are judged."""
_MAX_TOO_HIGH = 0.05  # Blocks may be evicted while a request waits in the engine.


@dataclass(slots=True)
class ReuseStats:
    """Prefix reuse of one engine and model, as the engine reports it and as its mirror predicts it."""

    reports: int = 0  # Number of requests for which the engine reported its reuse.
    prompt_tokens: int = 0
    cached_tokens: int = 0
    predictions: int = 0
    exact: int = 0  # Number of predictions that equal the report.
    too_high: int = 0
    too_low: int = 0
    tokens_too_high: int = 0  # Sum of the differences in tokens.
    tokens_too_low: int = 0

    def add(self, prompt_tokens: int, cached_tokens: int, predicted: int | None) -> None:
        self.reports += 1
        self.prompt_tokens += prompt_tokens
        self.cached_tokens += cached_tokens
        if predicted is None:
            return
        self.predictions += 1
        self.exact += predicted == cached_tokens
        self.too_high += predicted > cached_tokens
        self.too_low += predicted < cached_tokens
        self.tokens_too_high += max(0, predicted - cached_tokens)
        self.tokens_too_low += max(0, cached_tokens - predicted)

    @property
    def is_unreliable(self) -> bool:
        return self.predictions >= MIN_PREDICTIONS and self.too_high > _MAX_TOO_HIGH * self.predictions


@dataclass(frozen=True, slots=True)
class SlotsStatus:
    slots: int
    cached_tokens: int
    saved: int  # Number of restorable files.
    saved_bytes: int  # Size of all files, including unused ones.
    saves: int
    restores: int
    confirmed: int  # Number of restores whose tokens the server reused.


@dataclass(frozen=True, slots=True)
class EngineStatus:
    url: str
    state: str  # "up", "ejected", "cooldown" (it named a time in `Retry-After`), or "draining".
    weight: float
    requests: int  # Number of requests in flight.
    load: int  # Load of these requests, see `EngineLoad`.
    sent: int  # Requests of clients that it received since the proxy's start, also of uncached routes.
    failures: int  # Number of consecutive failures.
    ejections: int
    error: str | None
    cached_blocks: int | None  # None without a connected mirror.
    complete: bool | None  # The mirror missed no event; None without a mirror.
    streams: tuple[StreamStatus, ...]
    reuse: dict[str, ReuseStats]
    metrics: EngineMetrics | None
    notes: tuple[str, ...]  # Problems with their fixes.
    advice: tuple[str, ...]
    slots: SlotsStatus | None
    offloaded: dict[str, int] = field(default_factory=dict)  # Mirrored blocks in each medium besides the GPU.
    loaded: dict[str, int] = field(default_factory=dict)  # Reused tokens that it loaded from these media, if predicted.
    load_costs: dict[str, float] = field(default_factory=dict)  # Measured; see `LoadTimes.cost`.
    models: tuple[str, ...] = ()  # As configured; empty if it serves all others.
    aliases: dict[str, str] = field(default_factory=dict)
    ejected: bool = False  # Also while it is draining.
    retried: int = 0  # Number of requests that failed here, and were sent to another upstream.
    errors: int = 0  # Number of requests that failed here, including responses that broke off.
