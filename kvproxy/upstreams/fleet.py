"""Upstreams as one backend, one or several: each request goes to the engine that can answer it with the least work."""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Coroutine, Mapping, Sequence
from dataclasses import dataclass

from kvproxy.apis.json import JsonObject
from kvproxy.apis.request import ApiRequest
from kvproxy.backends.protocol import Body, Forwarder, Relayed
from kvproxy.errors import KvproxyError, NotFound, Overloaded, UpstreamError
from kvproxy.mirror.match import prepare
from kvproxy.mirror.prompt import Prompt
from kvproxy.settings import RoutingSettings
from kvproxy.upstreams.affinity import Affinity
from kvproxy.upstreams.client import Upstream
from kvproxy.upstreams.engine import FleetEngine
from kvproxy.upstreams.prompt_tokenizer import PromptTokenizer
from kvproxy.upstreams.routing import Ring, choose

_BYTES_PER_TOKEN = 4
TOKENIZE_SECONDS = 0.5
"""How long a request waits for an engine to tell its tokens; then it is routed without."""
_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class _Route:
    """Engines in the order in which to try them; how many tokens each would have to compute, and is known to reuse."""

    engines: list[FleetEngine]
    work: dict[str, int]
    predicted: dict[str, int | None]


class Checks:
    """Which requests to a single upstream are predicted all the same, so that its mirror is checked.

    Args:
        share: of the requests, from 0 to 1.
    """

    def __init__(self, share: float) -> None:
        self._share = share
        self._owed = 0.0

    def due(self, engine: FleetEngine, request: ApiRequest) -> bool:
        """Whether this request is one of them."""
        if engine.mirror is None or not predictable(request):
            return False
        self._owed += self._share
        due = self._owed >= 1.0
        self._owed -= due
        return due


class Fleet:
    """Routes requests over engines that serve the same model.

    Args:
        engines: one or more.
        tokenizer: turns requests into the tokens that mirrors know; asked only where it decides something.
        settings: probes and ejection.
    """

    def __init__(self, engines: Sequence[FleetEngine], tokenizer: PromptTokenizer, settings: RoutingSettings) -> None:
        self.engines = {engine.url: engine for engine in engines}
        self.tokenizer = tokenizer
        self.name = settings.name or f"upstream:{' '.join(sorted(self.engines))}"
        self.forwarder: Forwarder | None = self
        self._ring = Ring({engine.url: engine.weight for engine in engines})
        self._interval = settings.health_interval
        self._affinity = Affinity()
        self._check = Checks(settings.predicted_share)
        self._look_interval = settings.figures_interval
        self._tasks: list[asyncio.Future[None]] = []

    async def start(self) -> None:
        for engine in self.engines.values():
            await engine.start()
        self._tasks = [
            asyncio.create_task(self._each(FleetEngine.probe, self._interval)),
            asyncio.create_task(self._each(FleetEngine.look, self._look_interval)),
        ]

    async def close(self) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        for engine in self.engines.values():
            await engine.close()

    def run(self, work: Coroutine[None, None, None]) -> None:
        """Let something run until the fleet is closed."""
        self._tasks.append(asyncio.ensure_future(work))

    async def _each(self, work: Callable[[FleetEngine], Awaitable[None]], interval: float) -> None:
        """Do something with all engines at once, again and again."""
        while True:
            done = await asyncio.gather(*map(work, self.engines.values()), return_exceptions=True)
            for failed in done:
                if isinstance(failed, Exception):
                    _log.error("a probe failed, and is tried again", exc_info=failed)
            await asyncio.sleep(interval)

    def failure(self) -> str | None:
        engines = list(self.engines.values())
        if any(engine.health.available for engine in engines):
            return None
        return "; ".join(engine.health.error or f"{engine.url} is {engine.health.state}" for engine in engines)

    async def models(self) -> JsonObject:
        return await self._first().upstream.models()

    async def forward(self, method: str, path: str, headers: Mapping[str, str], body: Body) -> Relayed:
        """Pass any other request to the first engine that is up: what it names may live there only."""
        return await self._first().upstream.forward(method, path, headers, body)

    async def send(self, request: ApiRequest) -> Relayed:
        """Forward a request, to the next best engine where one cannot be reached; never after its answer's first part.

        Raises:
            Overloaded: no engine is up.
            UpstreamError: the last engine that was tried gave no answer.
        """
        route = await self._route(request)
        for engine in route.engines[:-1]:
            try:
                reply = await self._send(engine, request, route)
            except UpstreamError as error:
                if not (error.unsent or _repeatable(request)):
                    raise
                _log.warning("%s: trying another engine", error.message)
                continue
            if reply.status != 503:
                return reply
            await reply.close()
        return await self._send(route.engines[-1], request, route)

    def available(self) -> list[FleetEngine]:
        """Engines that may be asked; rather one that failed a moment ago than none.

        Raises:
            Overloaded: all are draining.
        """
        up = [engine for engine in self.engines.values() if engine.health.available]
        up = up or [engine for engine in self.engines.values() if not engine.health.draining]
        if not up:
            raise Overloaded("every upstream is draining: kvproxy upstreams undrain lets one back in")
        return up

    def upstreams(self) -> list[Upstream]:
        """Upstreams that may be asked what tokens their mirrors mean, those that are up first."""
        mirrored = [engine for engine in self.engines.values() if engine.mirror is not None]
        engines = sorted(mirrored, key=lambda engine: not engine.health.available)
        return [engine.upstream for engine in engines]

    async def _route(self, request: ApiRequest) -> _Route:
        available = self.available()
        length = len(request.raw) // _BYTES_PER_TOKEN
        if len(available) == 1 and not self._check.due(available[0], request):
            return _Route(available, {available[0].url: length}, {available[0].url: None})
        order = self._ring.order(self._affinity.key(request))
        place = {name: index for index, name in enumerate(order)}
        prompt = await self._prompt(request, sorted(available, key=lambda engine: place[engine.url]))
        length = len(prompt.tokens) if prompt else length
        candidates = [engine.candidate(prompt) for engine in available]
        work = {candidate.name: length - (candidate.matched or 0) for candidate in candidates}
        predicted = {candidate.name: candidate.matched for candidate in candidates if predictable(request)}
        return _Route([self.engines[name] for name in choose(candidates, length, order)], work, predicted)

    async def _prompt(self, request: ApiRequest, available: Sequence[FleetEngine]) -> Prompt | None:
        """The request's tokens with their digests, where a mirror could know them."""
        # Another engine's /tokenize may be another route: llama.cpp's finds no text in what vLLM's reads.
        mirrored = [engine for engine in available if engine.mirror is not None]
        mirrors = [engine.mirror for engine in mirrored if engine.mirror is not None]
        if not mirrors:
            return None
        try:
            # The engine that would serve it is asked, and no other: a second one would cost as much time again.
            prompt = await self.tokenizer.prompt(request, [mirrored[0].upstream], TOKENIZE_SECONDS)
        except KvproxyError as error:
            _log.debug("routed without tokens: %s", error.message)
            return None
        await asyncio.to_thread(prepare, prompt, [recipe for mirror in mirrors for recipe in mirror.recipes()])
        return prompt

    async def _send(self, engine: FleetEngine, request: ApiRequest, route: _Route) -> Relayed:
        ticket = engine.load.add(route.work[engine.url])
        engine.sent += 1
        try:
            reply = await engine.send(request)
            reply.when_begun.append(ticket.begun)
            reply.when_over.append(ticket.ended)
            if reply.status == 200 and engine is not route.engines[-1]:
                # Until then another engine can take the request.
                await reply.begin()
        except BaseException as error:
            ticket.ended()
            if isinstance(error, UpstreamError):
                engine.health.failed(error.message)
            raise
        if reply.status < 500:
            engine.health.succeeded()
        reply.served_by = reply.served_by or engine.serving_upstream(
            route.predicted.get(engine.url), route.work[engine.url]
        )
        return reply

    def _first(self) -> FleetEngine:
        engines = list(self.engines.values())
        return next((engine for engine in engines if engine.health.available), engines[0])

    def engine(self, name: str) -> FleetEngine:
        """An engine by its URL, or its place in the list from 1.

        Raises:
            NotFound: there is none.
        """
        engines = list(self.engines.values())
        if name.isdecimal() and len(name) < 5 and 0 < int(name) <= len(engines):
            return engines[int(name) - 1]
        found = self.engines.get(name.rstrip("/").removesuffix("/v1"))
        if found is None:
            raise NotFound(f"no upstream {name[:200]!r}: kvproxy upstreams lists them")
        return found


def predictable(request: ApiRequest) -> bool:
    """Whether what an engine reports of a request can be told before.

    Log-probabilities of the prompt need all of it computed. Of several answers, each looks the prefix cache up, and a later one
    finds what the first has computed; vLLM reports one of them.
    """
    body = request.body
    return body.get("prompt_logprobs") is None and not body.get("echo") and body.get("n") in (None, 1)


def _repeatable(request: ApiRequest) -> bool:
    """Whether computing a request twice does nothing twice: it leaves nothing behind on the engine."""
    return request.api.name != "responses" and not request.body.get("store")
