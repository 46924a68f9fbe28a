"""Stores a response in the cache, for the duration that the request, the rules, the upstream, and the settings allow."""

import asyncio
import logging
import math
import time
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from os import urandom

from kvproxy.apis.api import TokenCounts
from kvproxy.apis.api_request import ApiRequest
from kvproxy.apis.cache_diagnoses import reported_diagnosis
from kvproxy.apis.embeddings import split_response, split_tokens
from kvproxy.apis.json import JsonObject, dumps
from kvproxy.apis.message_parts import answer_digests
from kvproxy.apis.modalities import reported_modalities
from kvproxy.apis.not_stored import Cause, NotStored, UnstorableResponse
from kvproxy.apis.reported_usage import UsageLog, reported_prefill_seconds, usage_limits
from kvproxy.apis.request_directives import (
    MAX_TAG_LENGTH,
    MAX_TAGS,
    TAGS_HEADER,
    RequestDirectives,
    ordered_tags,
    parse_cache_control,
    parse_delta_seconds,
)
from kvproxy.apis.service_tiers import served_tier
from kvproxy.backends.protocol import Headers
from kvproxy.exchange import CacheKey, Exchange, ResponseFacts
from kvproxy.flow.backend_response import BackendResponse
from kvproxy.flow.compare_responses import ResponseComparer
from kvproxy.flow.prepare.history_repair import HistoryRepair
from kvproxy.flow.provider_ids import provider_id_tags
from kvproxy.index.entry import Entry
from kvproxy.index.errors import CacheStoreError
from kvproxy.index.pending_writes import PendingWrite
from kvproxy.index.response_cache import ResponseCache
from kvproxy.index.store import AnswerComputation
from kvproxy.journal.journal import Journal
from kvproxy.settings import CacheSettings

PARSE_STEP_BYTES = 4 * 1024  # Parsed before other tasks may run: about 25 events, or half a millisecond.
_END_SECONDS = 0.25  # Maximum time from a stream's final event until its end.
_WRITES_AT_ONCE = 32  # Of the inputs of an array.
_MAX_TTL = 30 * 86_400.0
_SURROGATE_KEY = "surrogate-key"
_DIRECTIVE_HEADERS = ("cache-control", TAGS_HEADER, _SURROGATE_KEY)
_NEVER_STALE = ("must-revalidate", "proxy-revalidate")
_log = logging.getLogger("kvproxy")


@dataclass(frozen=True, slots=True)
class ResponseDirectives:
    """Cache directives of an upstream's response (RFC 9111, RFC 5861), in seconds; None if missing."""

    max_age: float | None = None
    stale_while_revalidate: float | None = None
    stale_if_error: float | None = None
    tags: tuple[str, ...] = ()


_NO_DIRECTIVES = ResponseDirectives()


def read_response_directives(headers: Headers) -> ResponseDirectives:
    headers = [header for header in headers if header[0] in _DIRECTIVE_HEADERS]
    if not headers:
        return _NO_DIRECTIVES
    directives = parse_cache_control(value for name, value in headers if name == "cache-control")
    tags: set[str] = set()
    for name, value in headers:
        if name == TAGS_HEADER:
            tags |= {tag.strip() for tag in value.split(",")}
        elif name == _SURROGATE_KEY:
            tags |= set(value.split())
    # For a shared cache, s-maxage takes precedence.
    whole = parse_delta_seconds(directives.get("s-maxage"))
    max_age = parse_delta_seconds(directives.get("max-age")) if whole is None else whole
    fit = tuple(sorted(tag for tag in tags if 0 < len(tag) <= MAX_TAG_LENGTH))[:MAX_TAGS]
    if any(name in directives for name in _NEVER_STALE):
        return ResponseDirectives(max_age, 0.0, 0.0, fit)
    return ResponseDirectives(
        max_age,
        parse_delta_seconds(directives.get("stale-while-revalidate")),
        parse_delta_seconds(directives.get("stale-if-error")),
        fit,
    )


def first_not_none(values: Iterable[float | None], default: float) -> float:
    return next((number for number in values if number is not None), default)


class ResponseWriter:
    def __init__(
        self,
        cache: ResponseCache,
        settings: CacheSettings,
        clock: Callable[[], float],
        comparer: ResponseComparer | None,
        journal: Journal,
        history: HistoryRepair,
    ) -> None:
        self._cache = cache
        self.history = history
        self.settings = settings
        self._clock = clock
        self._comparer = comparer
        self._journal = journal
        self.usage_log = UsageLog()

    def lifetime(self, request: ApiRequest, directives: ResponseDirectives = _NO_DIRECTIVES) -> float:
        """Return the TTL in seconds: of the request, else of its rule, else of the upstream's `max-age`, else of the settings.

        The limit of the request's TTL is the setting `max_ttl`, else the rule's TTL, else `max-age`.
        """
        requested, rule_ttl = request.control.ttl, request.control.rule.ttl
        longest, max_age = self.settings.max_ttl, directives.max_age
        if requested is not None:
            return min(requested, first_not_none((longest, rule_ttl, max_age), _MAX_TTL))
        if rule_ttl is not None:
            return rule_ttl
        return min(first_not_none((max_age,), self.settings.ttl), first_not_none((longest,), math.inf))

    @property
    def max_bytes(self) -> int:
        """Size of the largest response that is stored. The response to an array may be larger, see `Exchange`."""
        return self.settings.max_response_bytes

    def requested_ttl(self, request: ApiRequest, response_headers: Headers) -> float | None:
        """Return the TTL in seconds of a response to a request that sets a TTL; None if it sets none."""
        is_set = request.control.ttl is not None
        return self.lifetime(request, read_response_directives(response_headers)) if is_set else None

    async def find_fresh(self, exchange: Exchange, key: str) -> Entry | None:
        """Return the fresh response with a key, if it is not older than the request's `max-age`. Raises a CacheStoreError."""
        entry, now = await self._cache.find(key, latest=True), self._clock()
        max_age = exchange.api_request.control.max_age
        if entry is None or entry.expires <= now or (max_age is not None and now - entry.created > max_age):
            return None
        return entry

    async def begin_computation(self, key: CacheKey) -> AnswerComputation:
        return await self._cache.begin_computation(key.exact, key.semantic.namespace)

    async def is_invalidated(self, computation: AnswerComputation | None) -> bool:
        return await self._cache.is_invalidated(computation)

    async def wait_until_stored(self, key: str) -> None:
        pending = self._cache.pending_writes.get(key)
        if pending is not None:
            await pending.wait_until_stored()

    async def start_write(
        self, exchange: Exchange, facts: ResponseFacts, body: JsonObject, directives: ResponseDirectives
    ) -> PendingWrite:
        """Redact a response and start to store it. Waits while too many writes are pending. Raises UnstorableResponse.

        The response to an equal request that was stored meanwhile stays, because its client knows its id. The exception
        is a response that the client demanded with `no-cache`, which replaces it.
        """
        entry, equal = self._build_entry(exchange, facts, body, directives), exchange.equal_requests
        computation = exchange.computation
        if computation is not None:
            computation = replace(computation, key=entry.key, namespace=entry.namespace, tags=entry.tags)
        if await self.is_invalidated(computation):
            raise UnstorableResponse(Cause.INVALIDATED)
        if exchange.api_request.control.no_cache:
            # Of two equal entries in one transaction, the store would never contain the first.
            await self._cache.pending_writes.wait_until_stored(entry.key, self.settings.lookup_timeout)
        elif equal is not None and equal.has_stored_since(exchange.started):
            raise UnstorableResponse(Cause.DUPLICATE)
        lookup, is_full = exchange.lookup, self._cache.pending_writes.is_full
        is_deferred = lookup is not None and lookup.skip_reason is not None
        pending = self._cache.start_write(entry, deferred=is_deferred, computation=computation)
        facts.write = pending.task
        if equal is not None:
            equal.write = time.perf_counter(), pending.task
        pending.task.add_done_callback(partial(self._on_written, exchange, facts, entry, pending))
        await pending.wait_for_entry(self.settings.lookup_timeout)
        facts.entry_id = pending.id
        if is_full:
            await self._cache.pending_writes.wait_for_space()
        return pending

    async def start_writes_of_inputs(
        self, exchange: Exchange, facts: ResponseFacts, body: JsonObject, directives: ResponseDirectives
    ) -> PendingWrite:
        """Start to store the response to each input of an array, as that of its single request. Raises UnstorableResponse."""
        requests = exchange.inputs_to_store
        bodies = split_response(body, len(requests))
        if bodies is None:
            raise UnstorableResponse(Cause.INVALID, "not one embedding for each input")
        tokens = split_tokens(facts.usage[0], [request.body["input"] for request, _ in requests])
        singles = [
            (
                Exchange(
                    *(exchange.api, exchange.request_id, exchange.tenant),
                    request=request,
                    key=key,
                    computation=exchange.computation,
                ),
                # Embeddings have no output.
                ResponseFacts(usage=(count, None if count is None else 0)),
                single,
            )
            for (request, key), single, count in zip(requests, bodies, tokens, strict=True)
        ]
        writes: list[PendingWrite] = []
        for start in range(0, len(singles), _WRITES_AT_ONCE):
            parts = singles[start : start + _WRITES_AT_ONCE]
            writes += await asyncio.gather(*(self.start_write(*part, directives) for part in parts))
        waiting = _wait_for_all(writes, facts, [own for _, own, _ in singles])
        whole = PendingWrite(exchange.cache_key.exact, None, writes[-1].redacted, asyncio.create_task(waiting))
        facts.write = whole.task
        return whole

    def _on_written(
        self,
        exchange: Exchange,
        facts: ResponseFacts,
        entry: Entry,
        pending: PendingWrite,
        task: "asyncio.Task[bool]",
    ) -> None:
        error = None if task.cancelled() else task.exception()
        # The store logs its failure once for all responses.
        if error is not None and not isinstance(error, CacheStoreError):
            _log.error("the answer was not stored: %s", error or type(error).__name__)
        if task.cancelled() or error is not None or not task.result():
            facts.entry_id = None
            is_redacted = not task.cancelled() and error is None and pending.question is None
            facts.not_stored = NotStored(Cause.REDACTED if is_redacted else Cause.STORE)
            return
        self._journal.record_stored(entry)
        lookup = exchange.lookup
        if self._comparer is not None and lookup is not None and lookup.skip_reason is None:
            self._comparer.compare(exchange.api_request, entry, lookup)

    def _build_entry(
        self, exchange: Exchange, facts: ResponseFacts, body: JsonObject, directives: ResponseDirectives
    ) -> Entry:
        request, key, now = exchange.api_request, exchange.cache_key, self._clock()
        if (obstacle := request.api.why_not_stored(body, request.body)) is not None:
            raise UnstorableResponse(obstacle.cause, obstacle.detail)
        rule, settings, lifetime = request.control.rule, self.settings, self.lifetime(request, directives)
        stale_while_revalidate = first_not_none(
            (rule.stale_while_revalidate, directives.stale_while_revalidate), settings.stale_while_revalidate
        )
        stale_if_error = first_not_none((rule.stale_if_error, directives.stale_if_error), settings.stale_if_error)
        if lifetime + stale_while_revalidate + stale_if_error <= 0:
            raise UnstorableResponse(Cause.LIFETIME)
        prompt_tokens, completion_tokens = facts.usage
        tags = (*request.control.tags, *provider_id_tags(request, body))
        entry = Entry(
            id=facts.planned_id or urandom(16).hex(),
            key=key.exact,
            namespace=key.semantic.namespace,
            tenant=request.tenant,
            model=request.model,
            endpoint=request.api.name,
            prompt=key.semantic.text or key.semantic.prompt,
            semantic=key.semantic.text is not None and self._cache.semantic is not None and rule.semantic is not False,
            request=request.raw,
            response=_serialize(body),
            created=now,
            expires=now + lifetime,
            prompt_tokens=prompt_tokens,
            completion_tokens=completion_tokens,
            tags=ordered_tags((*tags, *directives.tags)) if directives.tags else tags,
            backend=str(key.parts["backend"]),
            request_id=request.request_id,
            stale_while_revalidate=stale_while_revalidate,
            stale_if_error=stale_if_error,
        )
        if not self._cache.store.fits(entry):
            raise UnstorableResponse(Cause.TOO_LARGE)
        return entry


async def _wait_for_all(
    writes: Sequence[PendingWrite], facts: ResponseFacts, facts_of_inputs: Sequence[ResponseFacts]
) -> bool:
    """Wait for the writes of an array, and note in its facts why one of them failed. Return whether all are stored."""
    are_stored = [await write.wait_until_stored() for write in writes]
    # A write that has ended notes its failure in a callback.
    await asyncio.sleep(0)
    facts.not_stored = next((own.not_stored for own in facts_of_inputs if own.not_stored is not None), None)
    return all(are_stored)


def _serialize(body: JsonObject) -> bytes:
    try:
        return dumps(body)
    except ValueError as error:
        raise UnstorableResponse(Cause.INVALID, str(error)) from None


def why_request_forbids_storing(control: RequestDirectives) -> NotStored:
    if control.rule.cache is False:
        return NotStored(Cause.RULE, control.rule.name)
    return NotStored(Cause.REQUEST_NO_STORE if control.no_store else Cause.LIFETIME)


class ResponseRecorder:
    """Reads the response of one backend request, and starts to store it at its end."""

    def __init__(self, writer: ResponseWriter, exchange: Exchange) -> None:
        self._writer = writer
        self._exchange = exchange
        self._started = time.perf_counter()

    def record(self, response: BackendResponse) -> None:
        """Read the response's chunks while they pass."""
        chunks, close = self._recorded_chunks(response, response.chunks), response.close

        async def close_all() -> None:
            # The closure refers to the response: the cycle would keep it in memory.
            response.close = close
            await chunks.aclose()
            await close()

        response.chunks, response.close = chunks, close_all

    async def _recorded_chunks(
        self, response: BackendResponse, sent: AsyncIterator[bytes]
    ) -> AsyncGenerator[bytes, None]:
        """Yield the chunks. The write starts before the chunk that completes the response is yielded."""
        is_recorded, chunks, facts = False, aiter(sent), response.facts
        following: asyncio.Future[bytes | None] | None = None
        try:
            while (chunk := await (following or anext(chunks, None))) is not None:
                following = None
                if response.streams and facts.first_chunk_seconds is None:
                    facts.first_chunk_seconds = time.perf_counter() - self._started
                if not is_recorded and await self._push(response, chunk):
                    # A response that continues after its end is not stored.
                    following = asyncio.ensure_future(anext(chunks, None))
                    await asyncio.wait({following}, timeout=_END_SECONDS)
                    if not following.done() or following.exception() is not None or following.result() is None:
                        is_recorded = True
                        response.write = await self._finish(response)
                yield chunk
            if not is_recorded:
                is_recorded = True
                response.write = await self._finish(response)
        finally:
            facts.seconds = time.perf_counter() - self._started
            if not is_recorded:
                self._read_report(response)
            if not is_recorded and self._exchange.cacheable:
                facts.not_stored = facts.not_stored or NotStored(Cause.INCOMPLETE)
            if following is not None:
                following.cancel()

    async def _push(self, response: BackendResponse, chunk: bytes) -> bool:
        if response.status != 200:
            return False
        if not response.streams or len(chunk) <= PARSE_STEP_BYTES:
            return response.reader.push(chunk)
        complete = False
        for start in range(0, len(chunk), PARSE_STEP_BYTES):
            complete = response.reader.push(chunk[start : start + PARSE_STEP_BYTES])
            await asyncio.sleep(0)
        return complete

    async def _finish(self, response: BackendResponse) -> PendingWrite | None:
        facts = response.facts
        try:
            return await self._read_and_store(response)
        except UnstorableResponse as error:
            facts.not_stored = facts.not_stored or error.not_stored
        except Exception as error:
            # A failure to store a response must not keep it from the client.
            _log.error("the answer was not stored: %s", error or type(error).__name__)
            facts.not_stored = NotStored(Cause.STORE)
        return None

    async def _read_and_store(self, response: BackendResponse) -> PendingWrite | None:
        request, facts = self._exchange.api_request, response.facts
        try:
            if response.status != 200:
                raise UnstorableResponse(Cause.STATUS, str(response.status))
            body = await response.reader.result()
            facts.usage = self._reported_usage(response, body)
            facts.service_tier = served_tier(body)
            facts.modalities = reported_modalities(body)
            facts.prefill_seconds = facts.prefill_seconds or reported_prefill_seconds(body)
            facts.answer_digests = answer_digests(body)
            response_id = body.get("id")
            facts.response_id = response_id if isinstance(response_id, str) else None
            facts.diagnosis = reported_diagnosis(request.body, body)
            if request.control.rule.repair_history:
                await asyncio.to_thread(self._writer.history.remember, request, body)
        except UnstorableResponse:
            self._read_report(response)
            raise
        finally:
            self._report_reuse(response)
        if not self._exchange.storable:
            forbidden = why_request_forbids_storing(request.control)
            facts.not_stored = forbidden if self._exchange.cacheable else None
            return None
        if facts.not_stored is not None or response.entries:
            return None
        directives = read_response_directives(response.headers)
        writer = self._writer
        start = writer.start_writes_of_inputs if self._exchange.inputs_to_store else writer.start_write
        return await start(self._exchange, facts, body, directives)

    def _read_report(self, response: BackendResponse) -> None:
        """Read the usage of a response that cannot be read as a whole, if its stream reported it."""
        if (report := response.reader.report) is not None:
            response.facts.usage = self._reported_usage(response, report)
            response.facts.modalities = reported_modalities(report)

    def _reported_usage(self, response: BackendResponse, body: JsonObject) -> TokenCounts:
        request, facts = self._exchange.api_request, response.facts
        url = facts.served_by.url if facts.served_by is not None else "the backend"
        limits = usage_limits(request.body, len(request.raw), response.reader.size)
        is_possible, reuse = self._writer.usage_log.check(body, url, limits)
        if not is_possible:
            facts.prefix = None
            return None, None
        facts.prefix = facts.prefix or reuse
        return request.api.prompt_and_completion_tokens(body)

    def _report_reuse(self, response: BackendResponse) -> None:
        request, facts = self._exchange.api_request, response.facts
        if facts.prefix is None:
            return
        # A stream that is not read to its end may have reported its reuse before.
        if facts.prefix.prompt_tokens > usage_limits(request.body, len(request.raw), response.reader.size).prompt:
            facts.prefix = None
        elif facts.served_by is not None:
            model = facts.served_by.fallback or request.model
            facts.served_by.report_reuse(model, facts.prefix.prompt_tokens, facts.prefix.cached_tokens)
