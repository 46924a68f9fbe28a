"""The results of the operations on stored responses."""

from dataclasses import dataclass
from typing import Any, Literal, TypeAlias

from kvproxy.index.policies.policy import LearningSummary
from kvproxy.index.store.store_types import StoreStatistics


@dataclass(frozen=True, slots=True, kw_only=True)
class ResponseSummary:
    """A stored response without its texts, see `index.entry.Entry`. `namespace_name` is that of the library, or None."""

    id: str
    namespace: str
    tenant: str
    model: str
    endpoint: str
    prompt: str
    semantic: bool
    created: float
    expires: float
    hits: int
    last_hit: float | None
    prompt_tokens: int | None
    completion_tokens: int | None
    tags: list[str]
    backend: str
    request_id: str
    stale_while_revalidate: float
    stale_if_error: float
    namespace_name: str | None

    @property
    def tokens(self) -> int | None:
        """Tokens of the prompt and the response; None if they are unknown."""
        if self.prompt_tokens is None or self.completion_tokens is None:
            return None
        return self.prompt_tokens + self.completion_tokens


@dataclass(frozen=True, slots=True, kw_only=True)
class ListedResponse(ResponseSummary):
    pinned: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class QueuedResponse(ResponseSummary):
    """A response in the eviction order, see `index.store.EvictionCandidate`."""

    reason: Literal["expired", "low priority", "pinned"]
    priority: float | None
    bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ShownResponse(ResponseSummary):
    key: str
    request: dict[str, Any]
    response: dict[str, Any] | str
    pinned: bool


@dataclass(frozen=True, slots=True)
class ResponseUsage:
    """The stored responses of a tenant, model, API, or tag; see `index.store.StorageUsage`."""

    name: str
    entries: int
    bytes: int
    hits: int


ChangedResponses: TypeAlias = dict[Literal["removed", "expired"], int]
"""The number of changed responses, by the change."""


@dataclass(frozen=True, slots=True)
class Verdict:
    """A person's verdict on a response, for all similar questions. The policy also learns from the given `question`."""

    right: bool
    question: str | None = None


@dataclass(frozen=True, slots=True)
class JudgedResponse:
    id: str
    right: bool


@dataclass(frozen=True, slots=True)
class PinnedResponse:
    id: str
    pinned: bool


@dataclass(frozen=True, slots=True)
class ImportedResponses:
    imported: int
    skipped: int


@dataclass(frozen=True, slots=True, kw_only=True)
class SemanticStatistics:
    """Decisions on similar questions. A value is None without semantic hits, or without a running proxy.

    Attributes:
        lookups: number of lookups since the proxy's start, by outcome.
        compared: number of accepted responses that were compared with fresh ones, by result.
        learned: the comparisons in the store, also of earlier processes.
        learning: None without the policy `learned`.
    """

    policy: str | None = None
    shadow: bool | None = None
    lookups: dict[str, int] | None = None
    compared: dict[str, int] | None = None
    learned: dict[str, int] | None = None
    learning: LearningSummary | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class CacheStatistics(StoreStatistics):
    semantic: SemanticStatistics
