"""The flow of a request: exact key, similar question, identical request under way, backend, store."""

import asyncio
import logging
import time
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass
from typing import Any

import orjson

from index.entry import Entry, new_id
from index.errors import CacheStoreError
from index.semantic import SemanticCache
from index.store import ResponseStore
from kvproxy.errors import NotCached
from kvproxy.proxy.backend import Backend, Call, Reply
from kvproxy.proxy.cache_headers import CacheControl, forward_status, hit_status, parse_cache_control
from kvproxy.proxy.flights import Flight, Flights
from kvproxy.proxy.keys import CacheKey, cache_key
from kvproxy.proxy.sse import Assembler, EventReader, replay, says_done
from kvproxy.settings import CacheSettings

JSON = ("content-type", "application/json")
EVENTS = ("content-type", "text/event-stream; charset=utf-8")
_log = logging.getLogger("kvproxy")


@dataclass(frozen=True, slots=True)
class Answer:
    """What the client gets. `layer` says who answered: exact, semantic, or forward."""

    status: int
    headers: list[tuple[str, str]]
    body: bytes | AsyncIterator[bytes]
    layer: str


class Answerer:
    """Answers requests from the caches or the backend.

    Args:
        backend: computes what is not cached.
        store: responses by exact key.
        semantic: responses by similar question, None where that is off.
        settings: what may be cached and for how long.
        clock: seconds since the epoch.
    """

    def __init__(
        self,
        backend: Backend,
        store: ResponseStore,
        semantic: SemanticCache | None,
        settings: CacheSettings,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self.backend = backend
        self.store = store
        self.semantic = semantic
        self.flights = Flights()
        self._settings = settings
        self._clock = clock

    async def answer(self, call: Call) -> Answer:
        """The answer to a request.

        Raises:
            NotCached: the request accepts only a cached answer and there is none.
            KvproxyError: what the backend raised.
        """
        control = parse_cache_control(call.headers.get("cache-control"))
        key = cache_key(call, self.backend.name)
        if self._settings.enabled and not control.no_cache:
            hit = await self._cached(call, key, control)
            if hit is not None:
                return hit
        if control.only_if_cached:
            raise NotCached(
                "no stored answer, and the request said only-if-cached: send it without to have it computed"
            )
        return await self._forward(call, key, control)

    async def _cached(self, call: Call, key: CacheKey, control: CacheControl) -> Answer | None:
        try:
            entry = self.store.find(key.exact)
            if entry is not None and self._young(entry, control):
                return self._hit(call, entry, "exact", "exact")
            if self.semantic is None or key.text is None:
                return None
            lookup = await self.semantic.lookup(key.namespace, key.text, threshold=control.similarity)
        except CacheStoreError as error:
            # Without its cache a proxy is slower, not broken.
            _log.error("lookup failed, the request is forwarded: %s", error)
            return None
        if lookup.entry is None or not self._young(lookup.entry, control):
            return None
        return self._hit(call, lookup.entry, "semantic", f"semantic similarity={lookup.similarity:.3f}")

    def _young(self, entry: Entry, control: CacheControl) -> bool:
        return control.max_age is None or self._clock() - entry.created <= control.max_age

    def _hit(self, call: Call, entry: Entry, layer: str, detail: str) -> Answer:
        self.store.touch(entry.id)
        status = ("cache-status", hit_status(entry.expires, self._clock(), detail))
        age = ("age", str(max(0, int(self._clock() - entry.created))))
        if not call.stream:
            return Answer(200, [JSON, status, age], entry.response, layer)
        events = replay(orjson.loads(entry.response), include_usage=call.include_usage)
        return Answer(200, [EVENTS, status, age, ("cache-control", "no-cache")], b"".join(events), layer)

    async def _forward(self, call: Call, key: CacheKey, control: CacheControl) -> Answer:
        keep = self._settings.enabled and not control.no_store

        def make() -> Flight:
            return Flight(
                open=lambda: self.backend.send(call),
                finish=lambda reply, chunks: self._keep(call, key, reply, chunks, keep),
                is_last=lambda chunk: call.stream and says_done(chunk),
            )

        # A request that wants a fresh or an unstored answer flies alone.
        alone = control.no_cache or control.no_store
        name = (key.exact, call.stream, call.include_usage, object() if alone else None)
        flight, collapsed = self.flights.board(name, make)
        try:
            reply = await flight.head()
            reason = "request" if alone else "uri-miss"
            if not self._settings.enabled:
                reason = "bypass"
            body = None if call.stream and reply.status == 200 else await flight.body()
        except BaseException:
            self.flights.leave(flight)
            raise
        status = forward_status(
            reason,
            stored=flight.stored,
            collapsed=collapsed,
            detail=reply.detail,
            status=reply.status if reply.status != 200 else None,
        )
        headers = [*reply.headers, ("cache-status", status)]
        if body is not None:
            self.flights.leave(flight)
            return Answer(reply.status, headers, body, "forward")
        return Answer(reply.status, headers, self._relay(flight), "forward")

    async def _relay(self, flight: Flight) -> AsyncIterator[bytes]:
        try:
            async for chunk in flight.chunks():
                yield chunk
        finally:
            self.flights.leave(flight)

    async def _keep(self, call: Call, key: CacheKey, reply: Reply, chunks: list[bytes], keep: bool) -> bool:
        """Store an answer if it is complete and successful; whether it was stored."""
        if not keep or reply.status != 200:
            return False
        try:
            return await self._store(call, key, _assemble(call, chunks, reply))
        except Exception as error:
            # Whatever keeps an answer out of the cache must not keep it from the client.
            _log.error("the answer was not stored: %s", error or type(error).__name__)
            return False

    async def _store(self, call: Call, key: CacheKey, whole: dict[str, Any] | None) -> bool:
        if whole is None:
            return False
        usage = whole.get("usage") or {}
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
            expires=now + self._settings.ttl,
            prompt_tokens=usage.get("prompt_tokens") or 0,
            completion_tokens=usage.get("completion_tokens") or 0,
        )
        await self.insert(entry)
        return True

    async def insert(self, entry: Entry) -> None:
        """Keep an entry; durable and findable when this returns."""
        if self.semantic is not None:
            await self.semantic.insert(entry)
        else:
            await asyncio.to_thread(self.store.put, entry)

    async def remove(self, ids: list[str]) -> int:
        """Remove entries; how many there were."""
        if self.semantic is not None:
            return await self.semantic.remove(ids)
        return await asyncio.to_thread(self.store.delete, ids)


def _assemble(call: Call, chunks: list[bytes], reply: Reply) -> dict[str, Any] | None:
    """The complete object of an answer, or None where it is broken, partial or an error."""
    if not call.stream:
        try:
            whole = orjson.loads(b"".join(chunks))
        except orjson.JSONDecodeError:
            return None
        complete = isinstance(whole, dict) and whole.get("choices") and "error" not in whole
        return whole if complete and all(_finished(choice) for choice in whole["choices"]) else None
    reader, assembler = EventReader(), Assembler()
    for chunk in chunks:
        for data in reader.push(chunk):
            assembler.push(data)
    return assembler.result(reply.usage)


def _finished(choice: object) -> bool:
    return isinstance(choice, dict) and choice.get("finish_reason") is not None
