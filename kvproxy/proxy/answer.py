"""The flow of a request: exact key, similar question, identical request under way, backend, store."""

import logging
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, replace
from typing import Any

import orjson

from kvproxy.errors import NotCached, UpstreamBroken
from kvproxy.index.entry import Entry, new_id
from kvproxy.index.errors import CacheStoreError, EmbedderError
from kvproxy.index.lookup import Candidate
from kvproxy.index.response_cache import ResponseCache
from kvproxy.index.semantic import SemanticCache
from kvproxy.index.store import Store
from kvproxy.proxy.backend import Backend, Call, Reply
from kvproxy.proxy.cache_headers import (
    CacheControl,
    forward_status,
    hit_status,
    parse_cache_control,
    semantic_detail,
    tags_of,
    ttl_of,
)
from kvproxy.proxy.flights import Flight, Flights
from kvproxy.proxy.keys import CacheKey, cache_key
from kvproxy.proxy.observer import Observer
from kvproxy.proxy.recording import Recording
from kvproxy.settings import CacheSettings

JSON = ("content-type", "application/json")
EVENTS = ("content-type", "text/event-stream; charset=utf-8")
HOLD_SECONDS = 1.0
"""How long an answer that is no stream is held back after its head, so that Cache-Status can tell whether it is stored."""
_log = logging.getLogger("kvproxy")


@dataclass(frozen=True, slots=True)
class Answer:
    """What the client gets.

    Attributes:
        layer: who answered: exact, semantic, or forward.
        close: to be called when a body that comes in parts is done with, read or not.
    """

    status: int
    headers: list[tuple[str, str]]
    body: bytes | AsyncIterator[bytes]
    layer: str
    close: Callable[[], None] = lambda: None


class Answerer:
    """Answers requests from the caches or the backend.

    Args:
        backend: computes what is not cached.
        store: responses by exact key.
        semantic: responses by similar question, None where that is off.
        settings: what may be cached and for how long.
        clock: seconds since the epoch.
        observer: compares fresh answers with cached ones, None to learn nothing.
    """

    def __init__(
        self,
        backend: Backend,
        store: Store,
        semantic: SemanticCache | None,
        settings: CacheSettings,
        clock: Callable[[], float] = time.time,
        observer: Observer | None = None,
    ) -> None:
        self.backend = backend
        self.store = store
        self.semantic = semantic
        self.observer = observer
        self.outcomes: Counter[str] = Counter()
        """Semantic lookups by what came of them."""
        self.cache = ResponseCache(store, semantic)
        self.flights = Flights()
        self.settings = settings
        self._clock = clock

    async def answer(self, call: Call) -> Answer:
        """The answer to a request.

        Raises:
            NotCached: the request accepts only a cached answer and there is none.
            KvproxyError: what the backend raised.
        """
        control = parse_cache_control(call.headers.get("cache-control"))
        tags_of(call.headers)  # What is wrong is told before anything is computed.
        lifetime = self._lifetime(ttl_of(call.headers))
        key = cache_key(call, self.backend.name, shared=self.settings.shared)
        near = None
        cacheable = self.settings.enabled and call.dialect.cacheable(call.body)
        if cacheable and not control.no_cache:
            hit, near = await self._cached(call, key, control)
            if hit is not None:
                return hit
        if control.only_if_cached:
            raise NotCached(
                "no stored answer, and the request said only-if-cached: send it without to have it computed"
            )
        if lifetime <= 0:
            control = replace(control, no_store=True)
        return await self._forward(call, key, control, near, cacheable=cacheable)

    def _lifetime(self, asked: float | None) -> float:
        """Seconds that an answer is kept: those that the request asks for, as far as the settings let it."""
        longest = self.settings.ttl if self.settings.max_ttl is None else self.settings.max_ttl
        return min(self.settings.ttl if asked is None else asked, longest)

    async def _cached(self, call: Call, key: CacheKey, control: CacheControl) -> tuple[Answer | None, Candidate | None]:
        """An answer from the cache; without one, the similar entry that a fresh answer may be compared with."""
        try:
            entry = await self.cache.find(key.exact)
            if entry is not None and self._young(entry, control):
                return self._hit(call, entry, "exact", "exact"), None
            if self.semantic is None or key.text is None:
                return None, None
            lookup = await self.semantic.lookup(key.namespace, key.text, limits=control.limits)
            self.outcomes[lookup.outcome] += 1
            if lookup.entry is None or self.settings.shadow or not self._young(lookup.entry, control):
                return None, lookup.comparable
            return self._hit(call, lookup.entry, "semantic", semantic_detail(lookup)), None
        except (CacheStoreError, EmbedderError) as error:
            # Without its cache a proxy is slower, not broken.
            _log.error("lookup failed, the request is forwarded: %s", error)
        except Exception:
            # An imported answer that is none, a user's verifier that fails.
            _log.exception("lookup failed, the request is forwarded")
        return None, None

    def _young(self, entry: Entry, control: CacheControl) -> bool:
        return control.max_age is None or self._clock() - entry.created <= control.max_age

    def _hit(self, call: Call, entry: Entry, layer: str, detail: str) -> Answer:
        status = ("cache-status", hit_status(entry.expires, self._clock(), detail))
        age = ("age", str(max(0, int(self._clock() - entry.created))))
        headers, body = [JSON, status, age], entry.response
        if call.stream:
            body = b"".join(call.dialect.replay(orjson.loads(entry.response), call.body))
            headers = [EVENTS, status, age, ("cache-control", "no-cache")]
        self.store.touch(entry.id)
        return Answer(200, headers, body, layer)

    async def _forward(
        self, call: Call, key: CacheKey, control: CacheControl, near: Candidate | None, *, cacheable: bool
    ) -> Answer:
        keep = cacheable and not control.no_store
        # A request that wants a fresh or an unstored answer flies alone.
        alone = control.no_cache or not keep
        form = (call.stream, orjson.dumps(call.body.get("stream_options")))
        flight, collapsed = self.flights.board(
            (key.exact, form, object() if alone else None),
            lambda: Flight(lambda: self.backend.send(call), _Keeper(self, call, key, near, keep=keep)),
        )
        try:
            reply = await flight.head()
            whole = not reply.streams and await flight.settle(HOLD_SECONDS)
            if flight.error is not None and not isinstance(flight.error, UpstreamBroken):
                raise flight.error
            status = forward_status(
                ("request" if alone else "uri-miss") if cacheable else "bypass",
                stored=flight.stored,
                collapsed=collapsed,
                detail=reply.detail,
                status=reply.status if reply.status != 200 else None,
            )
            headers = [*reply.headers, ("cache-status", status)]
            if not whole:
                return Answer(reply.status, headers, flight.chunks(), "forward", flight.leave)
            body = await flight.body()
        except BaseException:
            flight.leave()
            raise
        flight.leave()
        return Answer(reply.status, headers, body, "forward")

    async def store_answer(self, call: Call, key: CacheKey, whole: dict[str, Any], near: Candidate | None) -> bool:
        """Keep a complete answer to a request, and have it compared with that of a similar one; whether it was kept."""
        prompt_tokens, completion_tokens = call.dialect.usage(whole)
        now = self._clock()
        entry = Entry(
            id=new_id(),
            key=key.exact,
            namespace=key.namespace,
            tenant=call.tenant,
            model=str(call.body.get("model", "")),
            endpoint=call.endpoint,
            prompt=key.text or key.prompt,
            semantic=key.text is not None and self.semantic is not None,
            request=call.raw,
            response=orjson.dumps(whole),
            created=now,
            expires=now + self._lifetime(ttl_of(call.headers)),
            prompt_tokens=prompt_tokens,
            completion_tokens=completion_tokens,
            tags=tags_of(call.headers),
            backend=self.backend.name,
            request_id=call.request_id,
        )
        kept = await self.cache.insert(entry)
        if kept and self.observer is not None and near is not None:
            self.observer.compare(call, near, entry)
        return kept


class _Keeper:
    """Keeps the answer of a flight, if it is complete and successful."""

    def __init__(self, answerer: Answerer, call: Call, key: CacheKey, near: Candidate | None, *, keep: bool) -> None:
        self.limit = answerer.settings.max_response_bytes
        self._answerer = answerer
        self._call = call
        self._key = key
        self._near = near
        self._keep = keep
        self._recording: Recording | None = None

    def push(self, reply: Reply, chunk: bytes) -> bool:
        if not self._keep or reply.status != 200:
            return False
        if self._recording is None:
            self._recording = Recording(self._call.dialect, reply.streams, self.limit)
        return self._recording.push(chunk)

    async def finish(self, reply: Reply) -> bool:
        try:
            whole = self._recording.result(reply.usage) if self._recording is not None else None
            if whole is None:
                return False
            return await self._answerer.store_answer(self._call, self._key, whole, self._near)
        except Exception as error:
            # Whatever keeps an answer out of the cache must not keep it from the client.
            _log.error("the answer was not stored: %s", error or type(error).__name__)
            return False
