"""Layers that answer from the response cache: exact, stale, and semantic hits."""

import time

from kvproxy.errors import KvproxyError, NotCached
from kvproxy.exchange import Answer, Exchange, ResponseFacts
from kvproxy.flow.answer import Answerer
from kvproxy.flow.fresh_and_stale_hits import logging_failures
from kvproxy.flow.layers.layer import Prediction, Rest
from kvproxy.flow.layers.timeouts import with_timeout
from kvproxy.index.entry import Entry

_FALLBACK_FRACTION = 0.9  # Of the client's timeout, after which a stale response is served.


class ExactHits:
    """Serves the stored response to an equal request if it is fresh."""

    def __init__(self, parts: Answerer) -> None:
        self._parts = parts

    async def answer(self, exchange: Exchange, rest: Rest) -> Answer:
        answer = await self._find_in_time(exchange) if exchange.cacheable else None
        return answer or await rest(exchange)

    async def _find_in_time(self, exchange: Exchange) -> Answer | None:
        seconds = exchange.api_request.control.timeout
        if seconds is None or not self._parts.store.remote:
            return await self._serve(exchange)
        left = max(0.0, seconds - (time.perf_counter() - exchange.started))
        return await with_timeout(left, self._serve(exchange), "the store did not answer")

    async def _serve(self, exchange: Exchange) -> Answer | None:
        with logging_failures(exchange):
            entry = await self._find(exchange)
            if entry is not None:
                return await self._parts.lookups.replay(exchange, entry)
        return None

    async def predict(self, exchange: Exchange) -> Prediction | None:
        entry = await self._find(exchange) if exchange.cacheable else None
        return None if entry is None else Prediction("exact", entry)

    async def _find(self, exchange: Exchange) -> Entry | None:
        entry = exchange.stored_entry = await self._parts.cache.find(exchange.cache_key.exact)
        exchange.exact_done = time.perf_counter()
        if entry is None or entry.expires <= self._parts.clock():
            return None
        exchange.is_entry_refused = not self._parts.lookups.accepts_age(entry, exchange)
        return None if exchange.is_entry_refused else entry


class StaleHits:
    """Serves an expired response during its stale-while-revalidate period (RFC 5861)."""

    def __init__(self, parts: Answerer) -> None:
        self._lookups = parts.lookups

    async def answer(self, exchange: Exchange, rest: Rest) -> Answer:
        entry = self._find(exchange)
        if entry is not None:
            with logging_failures(exchange):
                return await self._lookups.replay(exchange, entry, stale="stale-while-revalidate")
        return await rest(exchange)

    async def predict(self, exchange: Exchange) -> Prediction | None:
        entry = self._find(exchange)
        return None if entry is None else Prediction("exact", entry, stale="stale-while-revalidate")

    def _find(self, exchange: Exchange) -> Entry | None:
        entry = exchange.stored_entry if exchange.bypass_reason is None else None
        return None if entry is None or self._lookups.stale_reason(entry, exchange) is None else entry


class SemanticHits:
    """Serves the stored response to a similar question, if the policy accepts it."""

    def __init__(self, parts: Answerer) -> None:
        self._lookups = parts.lookups

    async def answer(self, exchange: Exchange, rest: Rest) -> Answer:
        hit = await self._lookups.serve_similar(exchange) if exchange.bypass_reason is None else None
        return hit or await rest(exchange)

    async def predict(self, exchange: Exchange) -> Prediction | None:
        return await self._lookups.predict_similar(exchange) if exchange.bypass_reason is None else None


class OnlyIfCached:
    """Refuses a request with `only-if-cached` that no stored response answers (RFC 9111)."""

    def __init__(self, parts: Answerer) -> None: ...

    async def answer(self, exchange: Exchange, rest: Rest) -> Answer:
        if exchange.api_request.control.only_if_cached:
            raise NotCached("no stored response answers this request, and only-if-cached forbids a call of the backend")
        return await rest(exchange)

    async def predict(self, exchange: Exchange) -> Prediction | None:
        return Prediction("refused") if exchange.api_request.control.only_if_cached else None


class StaleIfError:
    """Serves an expired response, or the response to a similar question, if the backend fails or is too slow (RFC 5861)."""

    def __init__(self, parts: Answerer) -> None:
        self._parts = parts
        self._lookups = parts.lookups

    async def answer(self, exchange: Exchange, rest: Rest) -> Answer:
        if self._parts.backend.failure() is not None and (hit := await self._serve(exchange)) is not None:
            return hit
        try:
            answer = await with_timeout(self._seconds(exchange), rest(exchange), "no fresh answer came")
        except KvproxyError as error:
            if error.status < 500 or (hit := await self._serve(exchange)) is None:
                raise
            return hit
        if (answer.status >= 500 or answer.is_broken) and (hit := await self._serve(exchange)) is not None:
            answer.close()
            exchange.facts, exchange.ended, exchange.client_disconnected = ResponseFacts(), 0.0, False
            return hit
        return answer

    async def predict(self, exchange: Exchange) -> Prediction | None:
        if self._parts.backend.failure() is None or exchange.bypass_reason is not None:
            return None
        if (entry := self._stale_entry(exchange)) is not None:
            return Prediction("exact", entry, stale="stale-if-error")
        return await self._lookups.predict_similar(exchange, failed=True)

    async def _serve(self, exchange: Exchange) -> Answer | None:
        if exchange.bypass_reason is not None:
            return None
        entry = self._stale_entry(exchange)
        if entry is None:
            return await self._lookups.serve_similar(exchange, failed=True)
        with logging_failures(exchange):
            return await self._lookups.replay(exchange, entry, stale="stale-if-error")
        return None

    def _stale_entry(self, exchange: Exchange) -> Entry | None:
        entry = exchange.stored_entry
        return None if entry is None or self._lookups.stale_reason(entry, exchange, failed=True) is None else entry

    def _seconds(self, exchange: Exchange) -> float | None:
        """Return the seconds to wait for the backend before a stale response is served; None for no limit."""
        timeout = exchange.api_request.control.timeout
        if timeout is None or exchange.bypass_reason is not None or self._stale_entry(exchange) is None:
            return None
        return max(0.0, _FALLBACK_FRACTION * timeout - (time.perf_counter() - exchange.started))
