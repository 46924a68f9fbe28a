"""Layers that answer from the response cache: exact, stale, and semantic hits."""

import logging
import time
from collections.abc import Awaitable, Callable, Iterable, Sequence
from dataclasses import replace
from functools import partial
from typing import Literal, TypeAlias, TypeVar

from kvproxy.apis.api import response_for_client
from kvproxy.apis.api_request import ApiRequest, in_thread_if_large
from kvproxy.apis.embeddings import join_responses, sum_tokens, without_usage
from kvproxy.apis.json import as_object, dumps, loads
from kvproxy.apis.modalities import stored_modalities
from kvproxy.backends.protocol import Backend
from kvproxy.errors import DeadlineExceeded, KvproxyError, NotCached, UpstreamProtocolError, UpstreamTimeout
from kvproxy.exchange import Answer, CacheHit, Exchange, ResponseFacts
from kvproxy.flow.backend_response import EVENTS, JSON
from kvproxy.flow.echoed_fields import response_for
from kvproxy.flow.layers.equal_responses import EqualResponses
from kvproxy.flow.layers.layer import Layer, Prediction, Rest
from kvproxy.flow.layers.timeouts import with_timeout
from kvproxy.index.entry import Entry, Stale
from kvproxy.index.entry_redaction import RedactionFailed
from kvproxy.index.errors import CacheStoreError, EmbedderError
from kvproxy.index.response_cache import ResponseCache
from kvproxy.index.search.lookup_result import FRESH, SERVABLE_AFTER_ERROR, Candidate, Lookup
from kvproxy.index.store import Store
from kvproxy.settings import CacheSettings
from kvproxy.settings.cache import JudgeName

RENEWAL_PREFIX = "renewal-"
"""Beginning of the id of a request that renews a stale response."""
_FALLBACK_FRACTION = 0.9  # Of the client's timeout, after which a stale response is served.
_log = logging.getLogger("kvproxy")
T = TypeVar("T")
Use: TypeAlias = Literal["fresh"] | Stale
"""How a stored response is served: fresh, or the reason to serve it stale."""


def stale_reason(use: Use) -> Stale | None:
    return None if use == "fresh" else use


class StoredResponses:
    """The rules by which a request accepts a stored response, and its replay. `clock` returns seconds since the epoch."""

    def __init__(self, store: Store, clock: Callable[[], float]) -> None:
        self._store = store
        self._clock = clock

    def accepted_use(self, entry: Entry, exchange: Exchange, *, failed: bool = False) -> Use | None:
        """Return how the request's directives accept a stored response; None if they do not. `failed`: the backend failed."""
        control, now = exchange.api_request.control, self._clock()
        if control.no_cache:
            return None
        if entry.expires > now:
            return "fresh" if control.max_age is None or now - entry.created <= control.max_age else None
        freshness = entry.freshness(now)
        if freshness == "expired":
            return None
        if not failed:
            # A request with max-age accepts no expired response.
            accepted = freshness == "stale-while-revalidate" and control.max_age is None
            return "stale-while-revalidate" if accepted else None
        if control.stale_if_error is None:
            return "stale-if-error" if control.max_age is None else None
        return "stale-if-error" if now - entry.expires <= control.stale_if_error else None

    def use_for_equal(self, entry: Entry, exchange: Exchange) -> Use | None:
        """Return how the request accepts the stored response to an equal one, and note in the exchange a refused fresh one."""
        use = self.accepted_use(entry, exchange)
        if use is None and entry.expires > self._clock():
            exchange.is_entry_refused = True
        return use

    def after_failure(self, exchange: Exchange) -> Sequence[Entry]:
        """Return the stored responses that answer a request after the backend failed: one, or one for each missing input.

        Empty if an input has none that the request accepts.
        """
        inputs = exchange.inputs
        stored = (
            [exchange.stored_entry] if inputs is None else [inputs.stored.get(key.exact) for _, key in inputs.missing]
        )
        accepted = [entry for entry in stored if entry is not None and self._is_accepted_after_failure(entry, exchange)]
        return accepted if len(accepted) == len(stored) else ()

    def _is_accepted_after_failure(self, entry: Entry, exchange: Exchange) -> bool:
        return self.accepted_use(entry, exchange, failed=True) == "stale-if-error"

    async def replay(
        self, exchange: Exchange, entries: Sequence[Entry], match: Candidate | None = None, stale: Stale | None = None
    ) -> Answer:
        """Answer with a stored response, or with those to all inputs of an array that have none yet."""
        request, headers, inputs = exchange.api_request, [JSON], exchange.inputs
        if request.stream:
            headers = [EVENTS, ("cache-control", "no-cache")]
        if inputs is None:
            make_body = partial(_body_for, request, entries[0])
        else:
            entries = inputs.serve({entry.key: entry for entry in entries})
            make_body = partial(_joined_body, entries)
        size = sum(len(entry.request) + len(entry.response) for entry in entries)
        body = await in_thread_if_large(size, make_body)
        self._record_hit(exchange, entries, match, stale)
        return Answer(200, headers, body)

    def _record_hit(
        self, exchange: Exchange, entries: Sequence[Entry], match: Candidate | None, stale: Stale | None
    ) -> None:
        """Record in an exchange that a stored response answers it, or the responses to all inputs of an array."""
        self.count_hits(exchange, entries)
        now, first = self._clock(), entries[0]
        is_one = len(entries) == 1
        exchange.hit = CacheHit(
            id=first.id if is_one else "",
            key=first.key if is_one else exchange.cache_key.exact,
            age=max(0.0, now - min(entry.created for entry in entries)),
            ttl=min(entry.expires for entry in entries) - now,
            prompt_tokens=sum_tokens([entry.prompt_tokens for entry in entries]),
            completion_tokens=sum_tokens([entry.completion_tokens for entry in entries]),
            stale=stale,
            match=match,
            # Inputs of an array are texts.
            modalities=stored_modalities(first.response) if is_one else None,
        )
        exchange.layer = "exact" if match is None else "semantic"
        exchange.status = 200
        exchange.first_byte = time.perf_counter()

    def count_hits(self, exchange: Exchange, entries: Iterable[Entry]) -> None:
        for id in {entry.id for entry in entries} if not exchange.is_warming else ():
            self._store.record_hit(id)


def _body_for(request: ApiRequest, entry: Entry) -> bytes:
    response = response_for(request, entry)
    if not request.stream:
        return response_for_client(response)
    return b"".join(request.api.replay(as_object(loads(response)), request.body))


def _joined_body(entries: Sequence[Entry]) -> bytes:
    parsed = {entry.id: as_object(loads(entry.response)) for entry in entries}
    singles = [parsed[entry.id] for entry in entries]
    return dumps(join_responses(without_usage(singles[0]), singles))


class LoggingFailures:
    """Logs an exception of a lookup, so that the request is forwarded. A generator would take several times as long."""

    def __init__(self, exchange: Exchange) -> None:
        self._exchange = exchange

    def __enter__(self) -> None: ...

    def __exit__(self, kind: object, error: BaseException | None, traceback: object) -> bool:
        if not isinstance(error, Exception):
            return False
        self._exchange.lookup_failed = True
        if isinstance(error, EmbedderError | RedactionFailed):
            _log.error("lookup failed, the request is forwarded: %s", error)
        # The store logs its own failure once for all requests.
        elif not isinstance(error, CacheStoreError):
            # An imported response may be invalid, and a user's verifier may fail.
            _log.error("lookup failed, the request is forwarded", exc_info=error)
        return True


async def look_up_in_time(exchange: Exchange, cache: ResponseCache, look_up: Callable[[Exchange], Awaitable[T]]) -> T:
    """Return the result of a lookup. Raises DeadlineExceeded if a remote store exceeds the request's timeout."""
    seconds = exchange.api_request.control.timeout
    if seconds is None or not cache.store.remote:
        return await look_up(exchange)
    left = max(0.0, seconds - (time.perf_counter() - exchange.started))
    return await with_timeout(left, look_up(exchange), "the store did not answer")


class ExactHits(Layer):
    """Serves the stored response to an equal request if it is fresh, or in its stale-while-revalidate period (RFC 5861)."""

    def __init__(self, cache: ResponseCache, responses: StoredResponses, equal: EqualResponses) -> None:
        super().__init__()
        self._cache = cache
        self._responses = responses
        self._equal = equal

    async def answer(self, exchange: Exchange, rest: Rest) -> Answer:
        answer = await look_up_in_time(exchange, self._cache, self._serve) if exchange.cacheable else None
        return answer or await rest(exchange)

    async def _serve(self, exchange: Exchange) -> Answer | None:
        with LoggingFailures(exchange):
            use = await self._find(exchange)
            if use is not None and exchange.stored_entry is not None:
                answer = await self._responses.replay(exchange, [exchange.stored_entry], stale=stale_reason(use))
                self.count_stale(stale_reason(use))
                return answer
        return None

    async def predict(self, exchange: Exchange) -> Prediction | None:
        use = await self._find(exchange) if exchange.cacheable else None
        return None if use is None else Prediction("exact", exchange.stored_entry, stale=stale_reason(use))

    async def _find(self, exchange: Exchange) -> Use | None:
        entry = exchange.stored_entry = await self._equal.find(exchange.api_request, exchange.cache_key)
        exchange.exact_done = time.perf_counter()
        return None if entry is None else self._responses.use_for_equal(entry, exchange)


class UntilDisconnect(Layer):
    """Cancels the rest when the client disconnects or its deadline passes. An exact hit is faster than this check."""

    async def answer(self, exchange: Exchange, rest: Rest) -> Answer:
        return await (rest(exchange) if exchange.watch is None else exchange.watch(rest(exchange)))


_NOT_SERVED = "accepted but not served"


def is_shadow(request: ApiRequest, settings: CacheSettings) -> bool:
    """Whether semantic hits of the request are counted, but not served."""
    return settings.shadow if request.control.rule.shadow is None else request.control.rule.shadow


def judge_of(request: ApiRequest, settings: CacheSettings) -> JudgeName:
    """Return how responses to a request are compared, by its rule or else by `cache.judge`."""
    return request.control.rule.judge or settings.judge


class SemanticHits(Layer):
    """Serves the stored response to a similar question, if the policy accepts it."""

    def __init__(self, cache: ResponseCache, settings: CacheSettings, responses: StoredResponses) -> None:
        super().__init__()
        self._cache = cache
        self._settings = settings
        self._responses = responses

    async def answer(self, exchange: Exchange, rest: Rest) -> Answer:
        hit = await self.serve(exchange) if exchange.bypass_reason is None else None
        return hit or await rest(exchange)

    async def predict(self, exchange: Exchange) -> Prediction | None:
        return await self.predict_hit(exchange) if exchange.bypass_reason is None else None

    async def predict_hit(self, exchange: Exchange, *, failed: bool = False) -> Prediction | None:
        hit = await self._find(exchange, failed=failed, explore=False)
        return None if is_shadow(exchange.api_request, self._settings) else hit

    async def serve(self, exchange: Exchange, *, failed: bool = False) -> Answer | None:
        """Serve the response to a similar question; if the backend has `failed`, also in its stale-if-error period."""
        is_first, semantic = exchange.lookup is None, self._cache.semantic
        with LoggingFailures(exchange):
            hit, lookup = await self._find(exchange, failed=failed, explore=not failed), exchange.lookup
            if lookup is not None and is_first and not exchange.is_warming:
                exchange.is_shadow_hit = hit is not None and is_shadow(exchange.api_request, self._settings)
                is_refused = lookup.entry is not None and hit is None
                # Whether it becomes a pair is known at the end, see `finish`.
                if not exchange.is_shadow_hit:
                    self.count("lookups", _NOT_SERVED if is_refused else lookup.outcome)
            if lookup is None or hit is None or hit.entry is None or is_shadow(exchange.api_request, self._settings):
                return None
            if semantic is not None and semantic.learning is not None and not exchange.is_warming:
                semantic.learning.record_served(lookup)
            answer = await self._responses.replay(exchange, [hit.entry], hit.match, hit.stale)
            self.count_stale(hit.stale)
            return answer
        return None

    def finish(self, exchange: Exchange) -> None:
        """Count the ended request of a hit in shadow mode; the journal records the same requests with the reason `shadow`."""
        if exchange.is_shadow_hit:
            self.count("lookups", "shadow" if exchange.is_shadow_pair else _NOT_SERVED)

    async def _find(self, exchange: Exchange, *, failed: bool, explore: bool) -> Prediction | None:
        request, semantic = exchange.api_request, self._cache.semantic
        if semantic is None or exchange.lookup_failed or request.control.rule.semantic is False:
            return None
        key = exchange.cache_key.semantic
        if key.text is None or not await self._cache.is_unchanged_by_redaction(key.text):
            return None
        if exchange.was_queued and not request.control.only_if_cached:
            exchange.lookup = Lookup(None, (), namespace=key.namespace, question=key.text, skip_reason="overload")
            return None
        is_limited = explore and not failed and not request.control.only_if_cached
        lookup = await semantic.lookup(
            key.namespace,
            key.text,
            limits=request.control.limits,
            seconds=self._settings.lookup_timeout if is_limited else None,
            explore=explore,
            compare=judge_of(request, self._settings) != "none",
            allowed_freshness=SERVABLE_AFTER_ERROR if failed else FRESH,
            policy=request.control.rule.policy,
        )
        # A second lookup, after the backend failed, also took the backend's time.
        exchange.semantic_done, exchange.lookup = exchange.semantic_done or time.perf_counter(), lookup
        entry = lookup.entry
        if entry is None:
            return None
        use = self._responses.accepted_use(entry, exchange, failed=failed)
        return None if use is None else Prediction("semantic", entry, lookup.chosen, stale_reason(use))


class OnlyIfCached(Layer):
    """Refuses a request with `only-if-cached` that no stored response answers (RFC 9111)."""

    async def answer(self, exchange: Exchange, rest: Rest) -> Answer:
        if exchange.api_request.control.only_if_cached:
            raise NotCached("no stored response answers this request, and only-if-cached forbids a call of the backend")
        return await rest(exchange)

    async def predict(self, exchange: Exchange) -> Prediction | None:
        return Prediction("refused") if exchange.api_request.control.only_if_cached else None


class StaleIfError(Layer):
    """Serves an expired response, or the response to a similar question, if the backend fails or is too slow (RFC 5861)."""

    def __init__(
        self,
        backend: Backend,
        responses: StoredResponses,
        similar: SemanticHits,
        finish: Callable[[Exchange], None],
    ) -> None:
        super().__init__()
        self._backend = backend
        self._responses = responses
        self._similar = similar
        self._finish = finish

    async def answer(self, exchange: Exchange, rest: Rest) -> Answer:
        if self._backend.failure() is not None and (hit := await self._serve(exchange)) is not None:
            return hit
        try:
            answer = await with_timeout(self._seconds(exchange), rest(exchange), "no fresh answer came")
        except KvproxyError as error:
            if error.status < 500 or (hit := await self._serve(exchange)) is None:
                raise
            if isinstance(error, DeadlineExceeded | UpstreamTimeout) and exchange.was_sent:
                self._report_renewal(exchange, error.status, error.reason)
            return hit
        if (answer.status >= 500 or answer.is_broken) and (hit := await self._serve(exchange)) is not None:
            answer.close()
            if answer.status < 400:
                self._report_renewal(exchange, answer.status, UpstreamProtocolError.reason)
            exchange.facts, exchange.ended = ResponseFacts(), 0.0
            exchange.failure, exchange.client_disconnected = None, False
            return hit
        return answer

    def _report_renewal(self, exchange: Exchange, status: int, failure: str | None) -> None:
        """Report the failed call of the backend, which costs money, beside the hit."""
        if not exchange.was_collapsed:
            request = exchange.api_request
            request = replace(request, request_id=RENEWAL_PREFIX + request.request_id, conversation=())
            renewal = Exchange(exchange.api, request.request_id, exchange.tenant, exchange.arrived, request=request)
            renewal.team, renewal.facts, renewal.started = exchange.team, exchange.facts, exchange.started
            renewal.layer, renewal.status, renewal.failure = "revalidated", status, failure
            self._finish(renewal)

    async def predict(self, exchange: Exchange) -> Prediction | None:
        if self._backend.failure() is None or exchange.bypass_reason is not None:
            return None
        if self._responses.after_failure(exchange):
            return Prediction("exact", exchange.stored_entry, stale="stale-if-error")
        return await self._similar.predict_hit(exchange, failed=True)

    async def _serve(self, exchange: Exchange) -> Answer | None:
        if exchange.bypass_reason is not None:
            return None
        entries = self._responses.after_failure(exchange)
        if not entries:
            return await self._similar.serve(exchange, failed=True)
        with LoggingFailures(exchange):
            answer = await self._responses.replay(exchange, entries, stale="stale-if-error")
            self.count_stale("stale-if-error")
            return answer
        return None

    def _seconds(self, exchange: Exchange) -> float | None:
        """Return the seconds to wait for the backend before a stale response is served; None for no limit."""
        timeout = exchange.api_request.control.timeout
        if timeout is None or exchange.bypass_reason is not None or not self._responses.after_failure(exchange):
            return None
        return max(0.0, _FALLBACK_FRACTION * timeout - (time.perf_counter() - exchange.started))
