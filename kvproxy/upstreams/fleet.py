"""Upstreams as one backend: each request goes to the engine with the lowest cost."""

import asyncio
import logging
import re
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from functools import partial
from random import random
from typing import TYPE_CHECKING

from kvproxy.apis.api_request import BYTES_PER_TOKEN, ApiRequest, Delivery
from kvproxy.apis.json import JsonObject, objects
from kvproxy.apis.model_route import ModelRoute
from kvproxy.backends.protocol import Body, Forwarder, Headers, RelayedResponse
from kvproxy.errors import (
    KvproxyError,
    NotFound,
    UpstreamError,
    UpstreamKeyRefused,
    UpstreamsDraining,
    UpstreamTimeout,
    UpstreamUnreachable,
)
from kvproxy.settings import RoutingSettings, Settings
from kvproxy.upstreams.affinity_key import affinity_key
from kvproxy.upstreams.client import UpstreamClient
from kvproxy.upstreams.engine_hints import ResponseLocations, with_engine_hints, with_hints
from kvproxy.upstreams.fleet_engine import EnginePrediction, FleetEngine
from kvproxy.upstreams.mirror.prompt_hashes import HashedPrompt, compute_hashes
from kvproxy.upstreams.model_routes import BUSY, ModelRoutes, calls_for_retry, find_model_routes
from kvproxy.upstreams.prompt_tokenizer import PromptTokenizer
from kvproxy.upstreams.reloaded_engines import PreparedEngines, RemovedEngines
from kvproxy.upstreams.retry_log import RetryLog
from kvproxy.upstreams.routing import engine_order, rank_engines

if TYPE_CHECKING:
    from kvproxy.upstreams.mirror.mirror import Mirror

TOKENIZE_SECONDS = 0.5  # After this timeout, routing ignores cached prefixes.
_RESPONSE_ID = re.compile(rb'"id"\s*:\s*"(resp[\w-]{1,128})"')
_MAX_START = 65_536
_RANK_HEADER = "x-data-parallel-rank"
_log = logging.getLogger(__name__)


_UNKNOWN = EnginePrediction()


@dataclass(frozen=True, slots=True)
class _Destination:
    engine: FleetEngine
    uncached_tokens: int  # An estimate.
    prediction: EnginePrediction = _UNKNOWN
    is_predictable: bool = False  # The engine reports what it reuses of such a request.

    @property
    def predicted_tokens(self) -> int | None:
        """Reused prompt tokens. Unknown, too, if the reused blocks are still in computation."""
        prediction = self.prediction
        is_known = self.is_predictable and prediction.pending_tokens <= (prediction.tokens or 0)
        return prediction.tokens if is_known else None


class Fleet:
    """All upstreams. `routes` are those of their models; None if all upstreams serve the same models."""

    def __init__(
        self,
        engines: Sequence[FleetEngine],
        tokenizer: PromptTokenizer,
        settings: RoutingSettings,
        routes: ModelRoutes | None = None,
    ) -> None:
        self.routes = routes
        self._retry_log = RetryLog()
        self.engines = {engine.url: engine for engine in engines}
        self.tokenizer = tokenizer
        self.forwarder: Forwarder | None = self
        self._settings = settings
        self._stored = ResponseLocations()
        self._tasks: list[asyncio.Task[None]] = []
        self._removed = RemovedEngines()

    @property
    def name(self) -> str:
        """The name in cache keys of requests without a route."""
        return self._settings.name or f"upstream:{' '.join(sorted(self.engines))}"

    def names_in_cache_keys(self) -> set[str]:
        """Return the names of the lists of upstreams for which responses are stored."""
        routes = self.routes
        return {self.name} if routes is None else {routes.find(name).backend for name in routes.names()}

    def resolve(self, request: ApiRequest) -> ApiRequest:
        """Find the route of a request, if upstreams serve different models. See `ModelRoutes.resolve`."""
        return request if self.routes is None else self.routes.resolve(request)

    async def start(self) -> None:
        for engine in self.engines.values():
            await engine.start()
        self._tasks = [
            asyncio.create_task(self._run_periodically(FleetEngine.probe, self._settings.health_interval)),
            asyncio.create_task(self._run_periodically(FleetEngine.monitor, self._settings.metrics_interval)),
        ]

    async def close(self) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        for engine in self.engines.values():
            await engine.close()
        await self._removed.close()

    async def reload(self, settings: Settings, drained: Collection[str] = ()) -> None:
        """Use the upstreams of changed settings for new requests. Requests in flight stay on their upstreams.

        New upstreams with URLs in `drained` are drained. Raises SettingsError, and then changes nothing.
        """
        before = self.engines
        prepared = await asyncio.to_thread(PreparedEngines, before, settings)
        routes = find_model_routes(settings.servers, settings.routing)
        await prepared.start(drained)
        prepared.apply(settings)
        if routes is not None and self.routes is not None:
            routes.fallback_counts.update(self.routes.fallback_counts)
        self.engines, self.routes, self._settings = prepared.engines, routes, settings.routing
        for engine in before.values():
            if engine is not self.engines.get(engine.url):
                self._removed.add(engine, settings.routing.health_interval)

    async def _run_periodically(self, work: Callable[[FleetEngine], Awaitable[None]], interval: float) -> None:
        while True:
            for result in await asyncio.gather(*map(work, self.engines.values()), return_exceptions=True):
                if isinstance(result, Exception):
                    _log.error("a probe failed, and will be repeated", exc_info=result)
            await asyncio.sleep(interval)

    def failure(self) -> str | None:
        engines = list(self.engines.values())
        # An ejection for failed requests ends by itself, and while all engines are ejected, they are used.
        if any(not engine.health.draining and not engine.health.is_unreachable for engine in engines):
            return None
        return "; ".join(engine.health.error or f"{engine.url} is {engine.health.state}" for engine in engines)

    @property
    def is_degraded(self) -> bool:
        """Whether a configured model has no available upstream: all are ejected, draining, or in a cooldown."""
        available: dict[str, bool] = {}
        for engine in self.engines.values():
            for model in engine.models or ("",):
                available[model] = available.get(model, False) or engine.health.available
        return not all(available.values())

    async def models(self, headers: Mapping[str, str] | None = None) -> JsonObject:
        """Return the models that clients may name; `headers` has the client's key."""
        if self.routes is None:
            return await self.available_engines()[0].client.models(headers)
        asked = [engine for engine in self.engines.values() if engine.health.available]
        listings = await asyncio.gather(*(engine.client.models(headers) for engine in asked), return_exceptions=True)
        rows = [
            (engine.url, objects(listed.get("data")))
            for engine, listed in zip(asked, listings, strict=True)
            if not isinstance(listed, BaseException)
        ]
        return {"object": "list", "data": [*self.routes.list(rows)], "has_more": False}

    async def list_models(self, query: str, headers: Mapping[str, str]) -> tuple[int, JsonObject]:
        """Return the status and the body of the first available engine's list of models."""
        return await self.available_engines()[0].client.list_models(query, headers)

    async def forward(
        self,
        method: str,
        path: str,
        headers: Mapping[str, str],
        body: Body,
        tenant: str | None = None,
        *,
        delivery: Delivery | None = None,
    ) -> RelayedResponse:
        """Forward a request of an uncached API to the first available engine: all uploaded files must be on one engine.

        A path of a stored response (`/v1/responses/ID`) goes to its engine. If upstreams serve different models, a body in one
        piece is forwarded to the engines of its model: JSON, or a form.
        """
        route = None
        if self.routes is not None and isinstance(body, bytes):
            body, route = self.routes.resolve_body(body, headers.get("content-type", ""))
        available, stored = self.available_engines(route), self._stored.find_path(tenant, path)
        engine = next((engine for engine in available if engine.url == stored), available[0])
        try:
            reply = await engine.client.forward(method, path, headers, body, delivery=delivery)
        except UpstreamError as error:
            # A key may be permitted for some routes only.
            engine.record_failure(error, may_eject=not isinstance(error, UpstreamKeyRefused))
            raise
        engine.record_response(reply)
        return reply

    async def send(self, request: ApiRequest) -> RelayedResponse:
        """Send a request to the best engine, or to the next one if it fails before its first chunk.

        A status of 500 or above, other than those of a busy engine, is retried once. It counts as a failure of its engine if
        another engine serves the request, so that a request that fails everywhere ejects no engine.

        If upstreams serve different models, these are the engines of its model, and then of its fallbacks. Raises Overloaded,
        UpstreamError, or ModelNotFound.
        """
        if self.routes is None:
            return await self._send_to_engines(request, True)
        return await self.routes.send(request, self._send_to_engines, self._has_available_engine)

    def _has_available_engine(self, route: ModelRoute) -> bool:
        return any(engine.health.available for engine in self.engines_of(route))

    def engines_of(self, route: ModelRoute | None) -> list[FleetEngine]:
        """Return the engines of a route, by default all. Raises ModelNotFound if a reload removed all engines of its model."""
        if route is None:
            return [*self.engines.values()]
        engines = [self.engines[url] for url in route.upstreams if url in self.engines]
        if engines:
            return engines
        return self.engines_of(None if self.routes is None else self.routes.find(route.model))

    async def _send_to_engines(self, request: ApiRequest, is_final: bool) -> RelayedResponse:
        request = self.with_hints(request)
        destinations = await self._route(request)
        # Only its engine stores a conversation.
        if self._stored.find(request) is not None:
            destinations = destinations[:1]
        failed: list[tuple[FleetEngine, str]] = []
        has_retried_failure = False
        for number, destination in enumerate(destinations, 1):
            engine, is_last = destination.engine, number == len(destinations)
            try:
                reply = await self._send(destination, request, is_last=is_last and is_final)
            except UpstreamError as error:
                is_retryable = error.is_unprocessed or not request.has_side_effects
                if is_last or not is_retryable:
                    engine.retried += is_retryable and not is_final
                    raise
                cause, kind = error.message, type(error).__name__
            else:
                if reply.status < 500:
                    for other, cause in failed:
                        other.health.record_failed_request(cause)
                is_retryable = calls_for_retry(reply.status, has_side_effects=request.has_side_effects)
                # Another engine may fail in the same way, after as much work.
                if is_last or not is_retryable or (has_retried_failure and reply.status not in BUSY):
                    engine.retried += is_retryable and not is_final
                    return reply
                has_retried_failure = has_retried_failure or reply.status not in BUSY
                cause, kind = f"HTTP {reply.status} of {engine.url}", str(reply.status)
                if reply.status >= 500:
                    failed.append((engine, cause))
                await reply.close()
            engine.retried += 1
            self._retry_log.warn(request, kind, f"{cause}: trying another upstream", upstream=engine.url)
        raise AssertionError("a route without an engine")

    def with_hints(self, request: ApiRequest) -> ApiRequest:
        return with_hints(request, self._settings.hints) if self._settings.hints else request

    def available_engines(self, route: ModelRoute | None = None) -> list[FleetEngine]:
        """Return the available engines of a route, by default all; else those in a cooldown; else the ejected engines.

        Raises UpstreamsDraining if all these engines are draining.
        """
        engines = self.engines_of(route)
        up = [engine for engine in engines if engine.health.available]
        up = up or [engine for engine in engines if not engine.health.draining and not engine.health.ejected]
        up = up or [engine for engine in engines if not engine.health.draining]
        if not up:
            which = "all upstreams" if route is None else f"all upstreams of the model {route.model}"
            raise UpstreamsDraining(f"{which} are draining")
        return up

    def mirrored_engines(self) -> "list[tuple[FleetEngine, Mirror]]":
        engines = sorted(self.engines.values(), key=lambda engine: not engine.health.available)
        return [(engine, engine.mirror) for engine in engines if engine.mirror is not None]

    async def _route(self, request: ApiRequest) -> list[_Destination]:
        """Return the available engines, the best first."""
        available = self.available_engines(request.route)
        length = len(request.raw) // BYTES_PER_TOKEN
        is_sampled = random() < self._settings.prediction_sample_rate
        must_predict = is_sampled and available[0].mirror is not None and _has_predictable_reuse(request)
        if len(available) == 1 and not must_predict and not available[0].has_ranks:
            return [_Destination(available[0], length)]
        affinity = affinity_key(request)
        order = engine_order({engine.url: engine.weight for engine in available}, affinity)
        by_url = {engine.url: engine for engine in available}
        engines = [by_url[url] for url in order]
        prompt = await self._tokenize(request, engines)
        length = len(prompt.tokens) if prompt else length
        is_predictable = _has_predictable_reuse(request)
        predictions = {engine.url: engine.predict(prompt, affinity) for engine in engines}
        candidates = [engine.routing_candidate(predictions[engine.url]) for engine in engines]
        return [
            _Destination(
                by_url[candidate.name],
                length - (candidate.matched_tokens or 0),
                predictions[candidate.name],
                is_predictable,
            )
            for candidate in sorted(
                rank_engines(candidates, length), key=lambda candidate: candidate.name != self._stored.find(request)
            )
        ]

    async def _tokenize(self, request: ApiRequest, engines: Sequence[FleetEngine]) -> HashedPrompt | None:
        # Ask only mirrored engines: llama.cpp's /tokenize has another format.
        mirrored = [(engine, engine.mirror) for engine in engines if engine.mirror is not None]
        for engine, _ in sorted(mirrored, key=lambda pair: pair[0].health.failures > 0):
            try:
                prompt = await self.tokenizer.tokenize_request(request, engine.client, TOKENIZE_SECONDS)
            except KvproxyError as error:
                _log.debug("not tokenized: %s", error.message)
                if isinstance(error, UpstreamError):
                    engine.record_tokenizing(error.message)
                if isinstance(error, UpstreamUnreachable):
                    continue
                # After a timeout, each further engine could delay the request by another one.
                return None
            engine.record_tokenizing(None)
            await compute_hashes(prompt, [mirror for _, mirror in mirrored])
            return prompt
        return None

    async def _send(self, destination: _Destination, request: ApiRequest, *, is_last: bool) -> RelayedResponse:
        engine, uncached = destination.engine, destination.uncached_tokens
        request.delivery.received_at = None
        computation = engine.begin(destination.prediction, uncached)
        restored = False

        async def send(outgoing: ApiRequest) -> RelayedResponse:
            nonlocal restored
            sent = await engine.with_generated_tokens(outgoing)
            restored = sent is not outgoing
            return await engine.send(sent)

        try:
            routed = with_rank(request, destination.prediction.rank)
            if self._settings.hints:
                metrics = engine.metrics()
                routed = with_engine_hints(routed, self._settings.hints, metrics.kind if metrics is not None else None)
            is_measured = request.body.get("stream") is True and destination.predicted_tokens is not None
            async with first_byte_deadline(engine.client, request.delivery) as is_limited:
                reply = await engine.refused_fields.send(routed, send)
                reply.on_first_chunk.add(partial(computation.on_first_chunk, is_measured and reply.status == 200))
                reply.on_end.add(computation.finish)
                if reply.status == 200 and (is_limited or not is_last):
                    # Before the first chunk, another engine can take the request.
                    await reply.wait_for_first_chunk()
        except BaseException as error:
            computation.finish()
            if isinstance(error, UpstreamError):
                engine.record_failure(error)
            elif isinstance(error, asyncio.CancelledError) and request.delivery.received_at is not None:
                engine.errors += engine.health.record_cancelled_request(request.delivery.received_at)
            raise
        engine.record_response(reply)
        if reply.status in BUSY and (seconds := _retry_after(reply.headers)) is not None:
            engine.health.cool_down(seconds)
        elif reply.status < 500:
            engine.health.record_success(request.delivery.received_at)
        if request.api.name == "responses" and reply.status == 200:
            reply.chunks = self._remember_response(reply.chunks, request.tenant, engine.url)
        if reply.served_by is None:
            predicted = None if restored else destination.predicted_tokens
            loaded = destination.prediction.loaded
            reply.served_by = engine.serving_upstream(predicted, uncached, has_generated_tokens=restored, loaded=loaded)
        return reply

    async def _remember_response(self, chunks: AsyncIterator[bytes], tenant: str, url: str) -> AsyncIterator[bytes]:
        """Pass on a response, and remember the engine that stores it by the id at its beginning."""
        start: bytes | None = b""
        async for chunk in chunks:
            if start is not None:
                start += chunk
                match = _RESPONSE_ID.search(start)
                if match is not None:
                    self._stored.add(tenant, match[1].decode(), url)
                if match is not None or len(start) > _MAX_START:
                    start = None
            yield chunk

    def set_drained(self, urls: Collection[str]) -> None:
        """Drain the upstreams with these URLs only."""
        for engine in self.engines.values():
            if engine.health.draining != (engine.url in urls):
                engine.health.draining = engine.url in urls
                state = "is drained by an operator" if engine.health.draining else "is no longer drained"
                _log.info("the upstream %s %s", engine.url, state)

    def find_engine(self, name: str) -> FleetEngine:
        """Find an engine by its URL, or by its number from 1. Raises NotFound."""
        engines = list(self.engines.values())
        if name.isdecimal() and len(name) < 5 and 0 < int(name) <= len(engines):
            return engines[int(name) - 1]
        engine = self.engines.get(name.rstrip("/").removesuffix("/v1"))
        if engine is None:
            raise NotFound(f"no upstream {name[:200]!r}: see kvproxy upstreams")
        return engine


@asynccontextmanager
async def first_byte_deadline(client: UpstreamClient, delivery: Delivery) -> AsyncIterator[bool]:
    """Limit the time from the delivery of a request, which may first be queued. Yield whether there is a limit.

    Raises UpstreamTimeout.
    """
    seconds = client.first_byte_timeout
    if seconds is None:
        yield False
        return
    timeout = asyncio.timeout(None)
    loop = asyncio.get_running_loop()
    delivery.on_received = lambda: timeout.reschedule(loop.time() + seconds)
    try:
        async with timeout:
            yield True
    except TimeoutError:
        raise UpstreamTimeout(
            f"{client.url} sent no byte of a response within {seconds:g} s (first_byte_timeout)"
        ) from None
    finally:
        delivery.on_received = None


def with_rank(request: ApiRequest, rank: int | None) -> ApiRequest:
    """Return the request with vLLM's header for a data-parallel rank, unless the client chose one."""
    if rank is None or _RANK_HEADER in request.headers:
        return request
    return replace(request, headers={**request.headers, _RANK_HEADER: str(rank)})


def _retry_after(headers: Headers) -> float | None:
    """Return the seconds of a `Retry-After` header; None without one, or with a date."""
    text = next((value for name, value in headers if name == "retry-after"), "")
    return float(text) if text.isdecimal() and len(text) < 10 else None


def _has_predictable_reuse(request: ApiRequest) -> bool:
    body = request.body
    return body.get("prompt_logprobs") is None and not body.get("echo") and body.get("n") in (None, 1)
