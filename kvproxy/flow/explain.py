"""Predicts which cache would answer a request, without sending it."""

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import replace

from kvproxy.apis import APIS
from kvproxy.apis.api_request import ApiRequest
from kvproxy.apis.json import Json, JsonObject, as_object, loads
from kvproxy.apis.request_directives import RequestDirectives
from kvproxy.backends.prefix_cache import PrefixCache
from kvproxy.exchange import CacheKey, Exchange, SemanticKey
from kvproxy.flow.cache_keys import cache_key
from kvproxy.flow.explanation import (
    ClosestRequest,
    ExactExplanation,
    FieldDifference,
    InputsExplanation,
    NeighbourExplanation,
    RequestExplanation,
    SemanticExplanation,
)
from kvproxy.flow.layers.cached import is_shadow
from kvproxy.flow.path import RequestPath
from kvproxy.index.entry import Entry, learning_namespace
from kvproxy.index.policies.guards.hidden_text import has_hidden_text
from kvproxy.index.search.conversations import describe_match, earlier_turns, last_turn
from kvproxy.index.search.lookup_result import Candidate
from kvproxy.index.store import EntryFilter, Store
from kvproxy.journal.miss_explanation import (
    MAX_REWORDED_SETTINGS,
    MIN_REWORDED_SIMILARITY,
    RegionLoader,
    SimilarityLoader,
    is_turn,
)
from kvproxy.journal.reader import JournalReader
from kvproxy.journal.request_regions import region_items, regions_of
from kvproxy.settings.cache import LEAST_SIMILARITY
from kvproxy.settings.rules import NO_RULE

_NEAREST = 5  # In the report. The policy `learned` reads more.
_MAX_SAME_PROMPT = 1000
_MAX_REWORDED = 20
_HEADER = "header "
_NOT_RECORDED = "not recorded"
_BYPASS_REASONS = {
    "uncacheable": "the cache is off, or the request has state",
    "asked-sample": "the request has a temperature above 0 and no seed, see cache.sampled_requests",
}


def region_loader(reader: JournalReader, store: Store | None) -> RegionLoader:
    """Return a function that loads the regions of a recorded prompt from the journal, or else from the response cache."""

    def load(prompt: int) -> Mapping[str, Json] | None:
        contents, id = reader.contents(prompt), reader.entry_id(prompt)
        if contents is not None or store is None or id is None:
            return contents
        entry = store.get(id)
        parts = None if entry is None else _key_parts(entry)
        return None if parts is None else dict(region_items(parts))

    return load


def similarity_loader(store: Store | None) -> SimilarityLoader:
    return (lambda id, others: {}) if store is None else store.similarities


def _key_parts(entry: Entry) -> JsonObject | None:
    key = _key_of(entry)
    return None if key is None else key.parts


def _key_of(entry: Entry, namespace: str = "") -> CacheKey | None:
    """Compute the key of an entry's request, without its headers and its client's namespace, which an entry lacks."""
    api = APIS.get(entry.endpoint)
    if api is None:
        return None
    body, control = as_object(loads(entry.request)), RequestDirectives(namespace=namespace)
    request = ApiRequest(api, body, entry.request, {}, entry.tenant, entry.request_id, control=control)
    return cache_key(request, entry.backend)


async def explain(path: RequestPath, prefix_cache: PrefixCache, request: ApiRequest) -> RequestExplanation:
    """Return the layer that would answer a request, and the decision of each layer.

    Values that were not computed are None. Raises KvproxyError and CacheStoreError.
    """
    exchange = Exchange(request.api.name, request.request_id, request.tenant, request=request)
    prediction = next(iter(predictions := await path.predict(exchange)), None)
    request, key, stored = exchange.api_request, exchange.cache_key, exchange.stored_entry
    similar = next((later for later in predictions if later.layer == "semantic"), None)
    same_prompts = [] if stored is not None else await _find_same_prompts(path, request, key)
    semantic = await _explain_semantic(path, exchange, None if similar is None else similar.match)
    prefix = await prefix_cache.explain(request)
    if prediction is not None:
        layer: str = prediction.layer
    else:
        layer = "prefix" if prefix is not None and prefix.reusable_tokens else "none"
    is_exact = prediction is not None and prediction.layer == "exact"
    closest = await asyncio.to_thread(_closest_request, request, key, same_prompts)
    if closest is None and stored is None and semantic.reason is None and not semantic.neighbours:
        closest = await _reworded_request(path, request, key)
    freshness = None if stored is None else stored.freshness(path.clock())
    return RequestExplanation(
        layer=layer,
        api=request.api.name,
        tenant=request.tenant,
        other_tenants=await _is_stored_for_other_tenant(path, request, same_prompts),
        closest=closest,
        key=key.exact,
        namespace=key.semantic.namespace,
        exact=ExactExplanation(hit=is_exact, id=None if stored is None else stored.id, freshness=freshness),
        semantic=semantic,
        prefix=prefix,
        rule=request.control.rule.name or None,
        route=request.route,
        inputs=None
        if exchange.inputs is None
        else InputsExplanation(
            count=exchange.inputs.count,
            cached=exchange.inputs.count if is_exact else exchange.inputs.cached,
            stale=None if prediction is None else prediction.stale,
        ),
    )


async def _find_same_prompts(path: RequestPath, request: ApiRequest, key: CacheKey) -> list[Entry]:
    where = EntryFilter(prompt=await path.cache.redact_text(key.semantic.text or key.semantic.prompt))
    entries = await asyncio.to_thread(path.cache.store.list_entries, where, limit=_MAX_SAME_PROMPT)
    return [entry for entry in entries if entry.endpoint == request.api.name]


def _closest_request(request: ApiRequest, key: CacheKey, same_prompts: Sequence[Entry]) -> ClosestRequest | None:
    closest: ClosestRequest | None = None
    for entry in same_prompts:
        differs = _differences(request, key, entry) if entry.tenant == request.tenant else ()
        if differs and (closest is None or len(differs) < len(closest.differs)):
            closest = ClosestRequest(id=entry.id, differs=differs)
    return closest


async def _reworded_request(path: RequestPath, request: ApiRequest, key: CacheKey) -> ClosestRequest | None:
    """Return the stored request with the most similar question and one or two other settings."""
    text = key.semantic.text
    if path.cache.semantic is None or text is None:
        return None
    for entry, similarity in await path.cache.semantic.nearest(text, _MAX_REWORDED):
        if similarity < MIN_REWORDED_SIMILARITY:
            break
        if (entry.tenant, entry.endpoint) != (request.tenant, request.api.name):
            continue
        differs = _differences(request, key, entry, with_question=False)
        if 0 < len(differs) <= MAX_REWORDED_SETTINGS and not any(is_turn(change.part) for change in differs):
            return ClosestRequest(id=entry.id, differs=differs, similarity=round(similarity, 4))
    return None


def _differences(
    request: ApiRequest, key: CacheKey, entry: Entry, *, with_question: bool = True
) -> tuple[FieldDifference, ...]:
    """Return the differing parts of an entry's key, with or without the question.

    An entry has no headers and no namespace of its request, so they are a difference only if nothing else differs.
    """
    namespace = request.control.namespace
    keys = [stored for name in dict.fromkeys((namespace, "")) if (stored := _key_of(entry, name)) is not None]
    if not keys:
        return ()
    parts = next((stored.parts for stored in keys if stored.exact == entry.key), keys[0].parts)
    own, earlier = regions_of(key.parts), regions_of(parts)
    changes = own.changes_since(earlier) if with_question else own.setting_changes_since(earlier)
    headers = {name for pair in changes for name in pair if name.startswith(_HEADER)}
    if not changes:
        return (FieldDifference(part="namespace", stored=_NOT_RECORDED, request=namespace or None),)
    sent, stored_values = dict(region_items(key.parts)), dict(region_items(parts))
    return tuple(
        FieldDifference(
            part=new or old, stored=_NOT_RECORDED if new in headers else stored_values.get(old), request=sent.get(new)
        )
        for old, new in changes
        if new not in headers or len(headers) == len(changes)
    )


async def _is_stored_for_other_tenant(path: RequestPath, request: ApiRequest, same_prompts: Sequence[Entry]) -> bool:
    for entry in same_prompts:
        if entry.tenant != request.tenant:
            theirs = await path.compute_key(replace(request, tenant=entry.tenant))
            if theirs.exact == entry.key:
                return True
    return False


async def _explain_semantic(path: RequestPath, exchange: Exchange, served: Candidate | None) -> SemanticExplanation:
    cache, settings = path.cache.semantic, path.settings
    control, key = exchange.api_request.control, exchange.cache_key
    who = "the request" if control.rule is NO_RULE else f"the rule {control.rule.name}"
    if exchange.bypass_reason is not None:
        reason = _BYPASS_REASONS.get(exchange.bypass_reason, f"{who} takes no stored answer")
        return SemanticExplanation(reason=reason)
    if control.rule.semantic is False:
        return SemanticExplanation(reason=f"{who} takes answers of equal requests only")
    if cache is None:
        return SemanticExplanation(reason="semantic matching is off")
    rule_policy, limits = control.rule.policy, control.limits
    policy = rule_policy or cache.policy.name
    least = settings.least_similarity if rule_policy in (None, settings.policy) else LEAST_SIMILARITY[rule_policy]
    is_checked = policy == "checked"
    report = SemanticExplanation(
        policy=policy,
        min_similarity=max(least, limits.min_similarity or 0.0),
        min_probability=max(settings.min_probability, limits.min_probability or 0.0) if is_checked else None,
        max_error=settings.max_error if policy == "learned" else None,
        max_hit_error=limits.max_error if policy == "learned" else None,
        learned=None
        if cache.learning is None
        else await asyncio.to_thread(cache.learning.status, key.semantic.namespace),
        shadow=is_shadow(exchange.api_request, settings),
        question=_question_beside_passages(key.semantic),
    )
    text = key.semantic.text
    if text is None:
        reason = (
            "this request is answered from an equal one only"
            " (tools, images, structured or long input, no last message of the user)"
        )
    elif not await path.cache.is_unchanged_by_redaction(text):
        reason = "a part of it is redacted, so only an equal request is answered alike"
    elif has_hidden_text(text):
        reason = "it holds characters that a reader does not see, or words of two alphabets"
    elif not cache.supports_language(text):
        reason = "it is in a language that the models in use do not know, see cache.languages"
    elif not cache.can_read(text):
        reason = "the embedder does not read all of this text (letters, length)"
    else:
        served_id = None if served is None else served.id
        candidates = () if exchange.lookup is None else exchange.lookup.candidates
        shown = (
            _explain_neighbour(candidate, cache.describe(candidate), text, served=candidate.id == served_id)
            for place, candidate in enumerate(candidates)
            if place < _NEAREST or candidate.verdict != "not compared"
        )
        return replace(report, neighbours=tuple(shown))
    return replace(report, reason=reason)


def _question_beside_passages(key: SemanticKey) -> str | None:
    return None if key.text is None or learning_namespace(key.namespace) == key.namespace else last_turn(key.text)


def _explain_neighbour(candidate: Candidate, why: str, question: str, *, served: bool) -> NeighbourExplanation:
    if candidate.verdict == "accepted" and earlier_turns(candidate.prompt) != earlier_turns(question):
        why += f", and {describe_match(question, candidate.prompt)}"
    return NeighbourExplanation(
        id=candidate.id,
        prompt=candidate.prompt,
        similarity=round(candidate.similarity, 4),
        verdict=candidate.verdict,
        guard=candidate.guard,
        why=why,
        score=None if candidate.score is None else round(candidate.score, 4),
        error=None if candidate.error is None else round(candidate.error, 4),
        served=served,
    )
