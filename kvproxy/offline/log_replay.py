"""A log through our own flow: the keys, the store and the policies are the proxy's, and what the backend says is the log's."""

import asyncio
import tempfile
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from random import random
from time import time

from kvproxy.apis.json import JsonObject, dumps
from kvproxy.apis.request import ApiRequest
from kvproxy.backends.protocol import Forwarder, Generated, Relayed, Reply
from kvproxy.errors import KvproxyError
from kvproxy.exchange import Exchange
from kvproxy.flow.answer import Answerer
from kvproxy.flow.keys import tenant_of
from kvproxy.flow.learn import Cached, Judge, Observer, answer_text, make_judge
from kvproxy.generation import Delta, Usage
from kvproxy.offline.request_log import LoggedRequest
from kvproxy.responses import open_response_cache
from kvproxy.settings import Settings

_PATIENCE = 60.0
_NO_USAGE = Usage(0, 0, 0)


@dataclass(frozen=True, slots=True)
class Replayed:
    """The result of one request.

    Attributes:
        asked: the request as the flow received it.
        exchange: None if no cache key could be computed.
        right: whether a semantic hit agrees with the log's own response; None if this is unknown.
    """

    logged: LoggedRequest
    asked: ApiRequest
    exchange: Exchange | None
    right: bool | None = None


def has_answers(requests: Sequence[LoggedRequest]) -> bool:
    """Whether a log has answers, so that there is something to learn from."""
    return any(each.answer is not None for each in requests)


def as_asked(logged: LoggedRequest, settings: Settings) -> ApiRequest:
    """A request of a log as the proxy would read it."""
    tenant = tenant_of(logged.headers, settings.access.tenant_headers)
    return ApiRequest(logged.api, logged.body, dumps(logged.body), logged.headers, tenant, f"line-{logged.line}")


async def replay(
    requests: Sequence[LoggedRequest],
    settings: Settings,
    progress: Callable[[float], None] = lambda share: None,
    chance: Callable[[], float] = random,
) -> list[Replayed]:
    """What an empty cache makes of requests that come one after the other. Nothing is kept afterwards.

    Where the log has answers, fresh ones are compared and learned from, as in the proxy; where it has none, nothing is.

    Args:
        settings: of the proxy; where the log tells times, answers age by them.
        progress: told the share of the work that is done.
        chance: uniform numbers below 1, by which the policy `learned` explores.

    Raises:
        SettingsError: the embedder or the verifier cannot be used.
    """
    found: list[Replayed] = []
    async with _open(settings, has_answers(requests), chance) as player:
        for number, logged in enumerate(requests, 1):
            found.append(await player.play(logged))
            progress(number / len(requests))
    return found


@asynccontextmanager
async def _open(settings: Settings, answers: bool, chance: Callable[[], float]) -> AsyncIterator["_Player"]:
    with tempfile.TemporaryDirectory(prefix="kvproxy-") as folder:
        backend, clock = LoggedBackend(), _Clock()
        # Nobody waits for an answer here, so every question is looked up.
        caching = settings.cache.model_copy(update={"budget": _PATIENCE})
        opened = asyncio.to_thread(
            open_response_cache,
            Path(folder) / "responses.db",
            caching,
            embedder=settings.embedder,
            data=settings.data,
            clock=clock,
            chance=chance,
        )
        cache = await opened
        judge = observer = None
        if answers and cache.semantic is not None:
            judge = make_judge(cache.semantic, backend, settings.cache)
            observer = None if judge is None else Observer(cache.semantic, judge)
        answerer = Answerer(backend, cache, caching, clock, observer)
        try:
            yield _Player(settings, answerer, backend, clock, judge)
        finally:
            await answerer.close()
            if observer is not None:
                await observer.close()
            await asyncio.to_thread(cache.close)


class _Clock:
    """The time of the request that is played."""

    def __init__(self) -> None:
        self.now = time()

    def __call__(self) -> float:
        return self.now


@dataclass(frozen=True, slots=True)
class _Player:
    settings: Settings
    answerer: Answerer
    backend: "LoggedBackend"
    clock: _Clock
    judge: Judge | None

    async def play(self, logged: LoggedRequest) -> Replayed:
        asked = as_asked(logged, self.settings)
        if logged.time is not None:
            self.clock.now = logged.time
        self.backend.answers = logged.answer
        exchange = Exchange(asked.api.name, asked.request_id, asked.tenant, request=asked)
        try:
            answer = await self.answerer.answer(exchange)
        except KvproxyError:
            return Replayed(logged, asked, None)
        given = answer.body
        body = given if isinstance(given, bytes) else b"".join([chunk async for chunk in given])
        answer.close()
        await self.answerer.cache.pending_writes.wait()
        if self.answerer.observer is not None:
            # The next request finds what was learned from this one: the proxy's own pauses are longer than a comparison.
            await self.answerer.observer.idle()
        return Replayed(logged, asked, exchange, await self._right(asked, logged, exchange, body))

    async def _right(self, asked: ApiRequest, logged: LoggedRequest, exchange: Exchange, body: bytes) -> bool | None:
        own = said(logged)
        served = answer_text(body, asked.api.name) if exchange.layer == "semantic" else None
        if self.judge is None or own is None or served is None or exchange.hit is None:
            return None
        return await self.judge.same(asked, "", Cached(exchange.hit.id, served), own)


def said(logged: LoggedRequest) -> str | None:
    """What the log says was answered, as one text; None where it does not tell, or where the answer is no text."""
    answer = logged.answer
    return answer if isinstance(answer, str) or answer is None else logged.api.said(answer)


class LoggedBackend:
    """Answers a request with what the log says, and else with words that no other request gets."""

    name = "log"
    forwarder: Forwarder | None = None

    def __init__(self) -> None:
        self.answers: JsonObject | str | None = None

    async def start(self) -> None:
        """Nothing to be made ready."""

    async def close(self) -> None:
        """Nothing to be released."""

    def failure(self) -> str | None:
        return None

    async def models(self) -> JsonObject:
        return {"object": "list", "data": []}

    async def send(self, request: ApiRequest) -> Reply:
        if isinstance(self.answers, dict):
            return _relayed(self.answers)
        if request.api.name == "embeddings":
            vector: JsonObject = {"object": "embedding", "index": 0, "embedding": [0.0]}
            return _relayed({"object": "list", "data": [vector], "model": request.model})
        delta = Delta(0, self.answers or request.request_id, (), (), "stop", _NO_USAGE)
        return Generated(_once(delta), _NO_USAGE, request.model)


def _relayed(answer: JsonObject) -> Relayed:
    return Relayed(200, [("content-type", "application/json")], _bytes(dumps(answer)))


async def _once(piece: Delta) -> AsyncIterator[Delta]:
    yield piece


async def _bytes(body: bytes) -> AsyncIterator[bytes]:
    yield body
