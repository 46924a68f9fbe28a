"""Several upstreams as one backend: each request goes to the engine that can answer it with the least work."""

import asyncio
import hashlib
import logging
from collections.abc import AsyncIterator, Mapping, Sequence
from typing import Any

import orjson

from kvproxy.errors import KvproxyError, NotFound, Overloaded, UpstreamError
from kvproxy.mirror.match import Prompt
from kvproxy.proxy.backend import Call, Reply
from kvproxy.proxy.fleet.engine import FleetEngine
from kvproxy.proxy.prompts import PromptTokenizer
from kvproxy.routing.choose import choose
from kvproxy.routing.load import Ticket
from kvproxy.routing.ring import Ring
from kvproxy.settings import RoutingSettings

_BEGINNING = 1024
"""Bytes of a prompt that consistent hashing looks at: some 16 blocks."""
_BYTES_PER_TOKEN = 4
_log = logging.getLogger(__name__)


class FleetBackend:
    """Routes requests over engines that serve the same model.

    Args:
        engines: one or more.
        tokenizer: turns requests into the tokens that mirrors know; asked only where an engine has a mirror.
        settings: probes and ejection.
    """

    def __init__(self, engines: Sequence[FleetEngine], tokenizer: PromptTokenizer, settings: RoutingSettings) -> None:
        self.engines = {engine.url: engine for engine in engines}
        self.tokenizer = tokenizer
        self.name = settings.name or f"upstream:{' '.join(sorted(self.engines))}"
        self._ring = Ring({engine.url: engine.weight for engine in engines})
        self._interval = settings.health_interval
        self._probing: asyncio.Task[None] | None = None

    async def start(self) -> None:
        for engine in self.engines.values():
            await engine.start()
        self._probing = asyncio.create_task(self._probe())

    async def close(self) -> None:
        if self._probing is not None:
            self._probing.cancel()
            await asyncio.gather(self._probing, return_exceptions=True)
        for engine in self.engines.values():
            await engine.close()

    async def _probe(self) -> None:
        while True:
            await asyncio.gather(*(engine.probe() for engine in self.engines.values()))
            await asyncio.sleep(self._interval)

    async def models(self) -> dict[str, Any]:
        return await self._first().backend.models()

    async def forward(
        self, method: str, path: str, headers: Mapping[str, str], body: bytes | AsyncIterator[bytes]
    ) -> Reply:
        """Pass any other request to the first engine that is up: what it names may live there only."""
        return await self._first().backend.forward(method, path, headers, body)

    async def send(self, call: Call) -> Reply:
        """Forward a request, to the next best engine where one cannot be reached; never after its answer has begun.

        Raises:
            Overloaded: no engine is up.
        """
        prompt = await self._prompt(call)
        engines = self._ranked(call, prompt)
        for engine in engines[:-1]:
            try:
                reply = await self._send(engine, call, prompt)
            except UpstreamError as error:
                if not (error.unsent or _repeatable(call)):
                    raise
                _log.warning("%s: trying another engine", error.message)
                continue
            if reply.status != 503:
                return reply
            await reply.close()
        return await self._send(engines[-1], call, prompt)

    async def _prompt(self, call: Call) -> Prompt | None:
        """The request's tokens, where a mirror could know them."""
        if len(self.engines) == 1 or not any(engine.mirror for engine in self.engines.values()):
            return None
        try:
            return await self.tokenizer.prompt(call)
        except KvproxyError as error:
            _log.debug("routed without tokens: %s", error.message)
            return None

    def _ranked(self, call: Call, prompt: Prompt | None) -> list[FleetEngine]:
        available = [engine for engine in self.engines.values() if engine.health.available]
        # Rather an engine that failed a moment ago than none.
        available = available or [engine for engine in self.engines.values() if not engine.health.draining]
        if not available:
            raise Overloaded("every upstream is draining: kvproxy upstreams undrain lets one back in")
        length = len(prompt.tokens) if prompt else len(call.raw) // _BYTES_PER_TOKEN
        order = self._ring.order(beginning(call))
        return [self.engines[name] for name in choose([each.candidate(prompt) for each in available], length, order)]

    async def _send(self, engine: FleetEngine, call: Call, prompt: Prompt | None) -> Reply:
        matched = engine.candidate(prompt).matched or 0
        length = len(prompt.tokens) if prompt else len(call.raw) // _BYTES_PER_TOKEN
        ticket = engine.load.add(length - matched)
        engine.sent += 1
        try:
            reply = await engine.backend.send(call)
        except BaseException as error:
            ticket.ended()
            if isinstance(error, UpstreamError):
                engine.health.failed(error.message)
            raise
        if reply.status < 500:
            engine.health.succeeded()
        return _ticketed(reply, ticket)

    def _first(self) -> FleetEngine:
        engines = list(self.engines.values())
        return next((engine for engine in engines if engine.health.available), engines[0])

    def engine(self, name: str) -> FleetEngine:
        """An engine by its URL, or its place in the list from 1.

        Raises:
            NotFound: there is none.
        """
        engines = list(self.engines.values())
        if name.isdigit() and 0 < int(name) <= len(engines):
            return engines[int(name) - 1]
        found = self.engines.get(name.rstrip("/").removesuffix("/v1"))
        if found is None:
            raise NotFound(f"no upstream {name!r}: kvproxy upstreams lists them")
        return found


def beginning(call: Call) -> bytes:
    """What a prompt begins with, for consistent hashing: the model, and its first bytes."""
    body = call.body
    prompt = [body.get(name) for name in ("system", "instructions", "tools", "messages", "prompt", "input")]
    text = orjson.dumps([part for part in prompt if part is not None])
    return hashlib.sha256(str(body.get("model")).encode() + text[:_BEGINNING]).digest()


def _repeatable(call: Call) -> bool:
    """Whether computing a request twice does nothing twice: it leaves nothing behind on the engine."""
    return call.endpoint in ("chat", "completions", "embeddings", "messages") and not call.body.get("store")


def _ticketed(reply: Reply, ticket: Ticket) -> Reply:
    """The reply, its engine's load lowered when its answer begins and when it ends."""
    chunks, close = reply.chunks, reply.close

    async def counted() -> AsyncIterator[bytes]:
        try:
            async for chunk in chunks:
                ticket.begun()
                yield chunk
        finally:
            ticket.ended()

    async def closed() -> None:
        ticket.ended()
        await close()

    reply.chunks, reply.close = counted(), closed
    return reply
