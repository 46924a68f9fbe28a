"""Reports of a prefix cache, for routes, commands, and metrics; without imports of its implementations."""

from dataclasses import dataclass, field, fields
from typing import Literal, Self

from kvproxy.blocks.row_types import KVCacheGroupMatch, PoolReport


@dataclass(slots=True)
class StreamCounts:
    """Counts of batches and incidents of one event stream since the proxy's start."""

    batches: int = 0
    duplicates: int = 0
    gaps: int = 0  # In the batch numbers.
    restarts: int = 0
    replays: int = 0
    losses: int = 0  # Times that the mirror was cleared, because batches were lost.
    malformed: int = 0  # Messages that could not be decoded.


@dataclass(slots=True, kw_only=True)
class StreamStatus(StreamCounts):
    """Status of one event stream. `next` is the number of the next batch to apply; `complete`: no batch is missing."""

    endpoint: str
    connected: bool
    next: int
    complete: bool
    unknown_removals: int
    error: str | None
    replay_fails: bool = False
    unknown_names: dict[str, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class EngineMetrics:
    """Prometheus metrics of one engine; a metric is None if the engine does not report it.

    Attributes:
        usage: share of the KV cache in use, 0 to 1.
        running, waiting: number of requests.
        queries, hits: prompt tokens looked up and found in the prefix cache, since the engine's start.
        match_unit: tokens that a block hash of vLLM covers.
        hit_unit: a reused prefix of vLLM is a multiple of this number of tokens.
        age: seconds since the proxy read the metrics.
        engine: URL of the upstream.
    """

    kind: Literal["vllm", "sglang", "llama.cpp"]
    num_blocks: int | None = None
    block_size: int | None = None
    usage: float | None = None
    running: int | None = None
    waiting: int | None = None
    queries: int | None = None
    hits: int | None = None
    hash_algorithm: str | None = None
    prefix_caching: bool | None = None
    match_unit: int | None = None
    hit_unit: int | None = None
    age: float = 0.0
    engine: str = ""


@dataclass(frozen=True, slots=True)
class PrefixCacheStats(PoolReport):
    """Statistics of the embedded engine's prefix cache, or of all upstreams, with its pool and its sources.

    Attributes:
        complete: whether the proxy received all KV events of the upstreams; None without events.
        streams: status of each KV event stream.
        engines: URLs of the upstreams.
        slots: whether the pool includes slots of llama.cpp.
        tier_hits: prompt tokens that were not in the pool, and that tiers supplied; None without tiers.
        away: upstreams that do not respond, with the failure, by URL. The statistics may include their lost caches.
    """

    complete: bool | None = None
    streams: tuple[StreamStatus, ...] = ()
    engines: tuple[str, ...] = ()
    reported: tuple[EngineMetrics, ...] = ()
    slots: bool = False
    tier_hits: int | None = None
    away: dict[str, str] = field(default_factory=dict)

    @property
    def reuse_rate(self) -> float | None:
        """Share of the prompt tokens that came from the pool or from tiers, 0 to 1; None if unknown."""
        if not self.queries or self.hits is None:
            return self.hit_rate
        return (self.hits + (self.tier_hits or 0)) / self.queries

    @classmethod
    def of_pool(cls, pool: PoolReport) -> Self:
        return cls(**{field.name: getattr(pool, field.name) for field in fields(pool)})


@dataclass(frozen=True, slots=True)
class DivergenceText:
    """A `Divergence` as text; None for a text that the engine could not be asked for.

    Attributes:
        position: index of the first different token.
        cached, prompt: text of the cached chain and of the prompt, from this token on.
        context: the last common text before this token.
    """

    position: int
    cached: str | None
    prompt: str | None
    context: str | None


@dataclass(frozen=True, slots=True)
class PrefixReport:
    """The expected prefix reuse of a request. A value is None if it is unknown.

    Attributes:
        matched_tokens: length of the cached prefix in the block pool or slot.
        blocks: numbers of the prefix's blocks, or the blocks' hashes in an upstream.
        tiers: number of further cached tokens after this prefix in each tier, by the tier's name.
        reason: explanation, such as why values are unknown.
        engine, rank: URL and data-parallel rank of the engine with the longest prefix.
        engines: reusable tokens of each engine, by URL.
        complete: whether the proxy received all KV events of the engine.
        groups: the prefix in each KV cache group; empty if all layers have full attention.
        slots: whether the engine is llama.cpp.
    """

    prompt_tokens: int | None = None
    matched_tokens: int | None = None
    blocks: tuple[int | str, ...] = ()
    tiers: dict[str, int] = field(default_factory=dict)
    divergence: DivergenceText | None = None
    reason: str | None = None
    engine: str | None = None
    rank: int | None = None
    engines: dict[str, int] = field(default_factory=dict)
    complete: bool | None = None
    groups: tuple[KVCacheGroupMatch, ...] = ()
    slots: bool = False

    @property
    def reusable_tokens(self) -> int:
        return (self.matched_tokens or 0) + sum(self.tiers.values())


@dataclass(frozen=True, slots=True)
class EngineResetResult:
    engine: str
    reset: bool
    message: str | None = None


@dataclass(frozen=True, slots=True)
class ResetReport:
    """The result of a reset. `pinned` and `used` are the numbers of blocks that prevented it."""

    reset: bool
    pinned: int | None = None
    used: int | None = None
    engines: tuple[EngineResetResult, ...] = ()
