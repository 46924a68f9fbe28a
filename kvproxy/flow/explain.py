"""Predicts the path of a request through the caches, without sending it."""

import asyncio
import zlib
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Literal

from kvproxy.apis import by_name
from kvproxy.apis.api_request import ApiRequest
from kvproxy.apis.json import Json, as_object, loads
from kvproxy.backends.prefix_cache import PrefixCache, PrefixReport
from kvproxy.exchange import CacheKey
from kvproxy.flow.answer import Answerer
from kvproxy.flow.cache_keys import cache_key
from kvproxy.index.entry import Freshness
from kvproxy.index.policies.guards.hidden_text import has_hidden_text
from kvproxy.index.policies.policy import LearningStatus, Verdict, meaning_of
from kvproxy.index.search.conversations import earlier_turns
from kvproxy.index.search.lookup_result import FRESH, Candidate, Lookup
from kvproxy.index.store import EntryFilter, Store
from kvproxy.journal.miss_explanation import Texts
from kvproxy.journal.reader import Reader
from kvproxy.journal.request_regions import parts_of
from kvproxy.settings.cache import LEAST_SIMILARITY
from kvproxy.settings.rules import NO_RULE


def texts(reader: Reader, store: Store | None) -> Texts:
    """Return a function that finds the contents of a prompt's regions."""

    def text_of(prompt: int) -> Mapping[str, Json] | None:
        kept = reader.whole(prompt)
        if kept is not None:
            return as_object(loads(zlib.decompress(kept)))
        stored = reader.stored(prompt)
        return None if store is None or stored is None else _of_entry(store, stored[0])

    return text_of


def _of_entry(store: Store, id: str) -> Mapping[str, Json] | None:
    entry = store.get(id)
    api = None if entry is None else by_name(entry.endpoint)
    if entry is None or api is None:
        return None
    request = ApiRequest(api, as_object(loads(entry.request)), entry.request, {}, entry.tenant, entry.request_id)
    return dict(parts_of(cache_key(request, entry.backend).parts))


_NEAREST = 5  # In the report. The policy `learned` reads more.
_MAX_SAME_PROMPT = 1000
"""Entries to search for another tenant's."""


@dataclass(frozen=True, slots=True)
class ExactReport:
    hit: bool
    id: str | None
    freshness: Freshness = "expired"


@dataclass(frozen=True, slots=True)
class NeighbourReport:
    """A stored similar question and the policy's decision."""

    id: str
    prompt: str
    similarity: float
    verdict: Verdict
    guard: str | None
    why: str
    score: float | None
    error: float | None
    served: bool


@dataclass(frozen=True, slots=True)
class SemanticReport:
    """The result of the semantic lookup.

    Attributes:
        learned: state of the namespace under the policy `learned`.
    """

    policy: str | None = None
    min_similarity: float | None = None
    min_probability: float | None = None
    max_error: float | None = None
    learned: LearningStatus | None = None
    shadow: bool = False
    neighbours: tuple[NeighbourReport, ...] = ()
    reason: str | None = None


@dataclass(frozen=True, slots=True)
class Explanation:
    """The layer that would answer a request, and the reports of all layers.

    Attributes:
        layer: `prefix` if the engine reuses a part of the prompt.
        prefix: None if the reuse is unknown.
    """

    layer: Literal["exact", "semantic", "prefix", "none"]
    api: str
    tenant: str
    other_tenants: bool
    key: str
    namespace: str
    exact: ExactReport
    semantic: SemanticReport
    prefix: PrefixReport | None
    rule: str | None = None


async def explain(answerer: Answerer, prefix_cache: PrefixCache, request: ApiRequest) -> Explanation:
    """Explain how a request would be answered. Raises KvproxyError and CacheStoreError."""
    key = await answerer.key(request)
    # An expired response may be served during its revalidation.
    kept = None if request.control.no_cache else await answerer.cache.find(key.exact)
    found = ExactReport(False, None)
    if kept is not None:
        freshness = answerer.freshness(kept)
        found = ExactReport(freshness in FRESH, kept.id, freshness)
    semantic = _skipped_report(request) or await _semantic(answerer, request, key)
    prefix = await prefix_cache.explain(request)
    layer: Literal["exact", "semantic", "prefix", "none"] = "none"
    if found.hit:
        layer = "exact"
    elif any(neighbour.served for neighbour in semantic.neighbours):
        layer = "semantic"
    elif prefix is not None and prefix.reusable:
        layer = "prefix"
    return Explanation(
        layer,
        request.api.name,
        request.tenant,
        kept is None and await _is_stored_for_other_tenant(answerer, request, key),
        key.exact,
        key.namespace,
        found,
        semantic,
        prefix,
        request.control.rule.name or None,
    )


def _skipped_report(request: ApiRequest) -> SemanticReport | None:
    control = request.control
    who = "the request" if control.rule is NO_RULE else f"the rule {control.rule.name}"
    if control.no_cache:
        return SemanticReport(reason=f"{who} takes no stored answer")
    return (
        SemanticReport(reason=f"{who} takes answers of equal requests only") if control.rule.semantic is False else None
    )


async def _is_stored_for_other_tenant(answerer: Answerer, request: ApiRequest, key: CacheKey) -> bool:
    where = EntryFilter(prompt=await answerer.cache.redact_text(key.text or key.prompt))
    alike = await asyncio.to_thread(answerer.store.list_entries, where, limit=_MAX_SAME_PROMPT)
    for entry in alike:
        if entry.tenant != request.tenant and entry.endpoint == request.api.name:
            theirs = await answerer.key(replace(request, tenant=entry.tenant))
            if theirs.exact == entry.key:
                return True
    return False


async def _semantic(answerer: Answerer, request: ApiRequest, key: CacheKey) -> SemanticReport:
    cache, settings = answerer.semantic, answerer.settings
    if cache is None:
        return SemanticReport(reason="semantic matching is off")
    rule_policy, limits = request.control.rule.policy, request.control.limits
    policy = rule_policy or cache.policy.name
    least = settings.least_similarity if rule_policy in (None, settings.policy) else LEAST_SIMILARITY[rule_policy]
    report = SemanticReport(
        policy=policy,
        min_similarity=max(least, limits.min_similarity or 0.0),
        min_probability=max(settings.min_probability, limits.min_probability or 0.0) if policy == "checked" else None,
        max_error=settings.max_error if policy == "learned" else None,
        learned=None if cache.learning is None else await cache.learning.status(key.namespace),
        shadow=settings.shadow,
    )
    if key.text is None:
        why = "this request is answered from an equal one only (tools, images, structured or long input)"
        return replace(report, reason=why)
    if not await answerer.cache.is_comparable(key.text):
        return replace(report, reason="a part of it is redacted, so only an equal request is answered alike")
    if has_hidden_text(key.text):
        return replace(report, reason="it holds characters that a reader does not see, or words of two alphabets")
    if not cache.has_vector(key.text):
        return replace(report, reason="it is in a language that the models in use do not know, see cache.languages")
    if not cache.can_read(key.text):
        return replace(report, reason="the embedder does not read all of this text (letters, length)")
    lookup = await cache.lookup(key.namespace, key.text, explore=False, limits=limits, policy=rule_policy)
    neighbours = tuple(
        NeighbourReport(
            candidate.id,
            candidate.prompt,
            round(candidate.similarity, 4),
            candidate.verdict,
            candidate.guard,
            _why(candidate, key.text),
            _round(candidate.score),
            _round(candidate.error),
            served=candidate is lookup.chosen and not settings.shadow,
        )
        for candidate in _shown_candidates(lookup)
    )
    return replace(report, neighbours=neighbours)


def _why(candidate: Candidate, question: str) -> str:
    why = meaning_of(candidate.verdict, candidate.guard)
    is_reworded = earlier_turns(candidate.prompt) != earlier_turns(question)
    return f"{why}, and the earlier questions mean the same" if candidate.verdict == "accepted" and is_reworded else why


def _shown_candidates(lookup: Lookup) -> list[Candidate]:
    return [
        candidate
        for place, candidate in enumerate(lookup.candidates)
        if place < _NEAREST or candidate.verdict != "not compared"
    ]


def _round(number: float | None) -> float | None:
    return None if number is None else round(number, 4)
