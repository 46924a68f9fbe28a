"""A backend's answer as bytes for the client, and what it says: typed pieces written once, or bytes read as they pass."""

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass, field
from typing import Protocol

from kvproxy.apis.api import Api
from kvproxy.apis.codecs import CODECS
from kvproxy.apis.codecs.codec import ResponseEncoder
from kvproxy.apis.json import JsonObject, dumps, loads
from kvproxy.apis.reported_usage import ReuseReader
from kvproxy.apis.request import ApiRequest
from kvproxy.apis.sse import Event, EventReader
from kvproxy.backends.protocol import Backend, Generated, Headers, Relayed, Reply, ServingUpstream
from kvproxy.flow.outcome import PrefixUse

JSON = ("content-type", "application/json")
EVENTS = ("content-type", "text/event-stream; charset=utf-8")
# What these vary is the form of an answer or who may read it, or it is part of the key.
_SAME_FOR_ALL = frozenset(
    "origin accept accept-encoding accept-language authorization cookie api-key x-api-key user-agent"
    " access-control-request-method access-control-request-headers openai-organization openai-project".split()
)
_SLOW_BYTES = 256 * 1024
"""From here on parsing takes milliseconds, and leaves the event loop."""


class Said(Protocol):
    """What an answer says, known once all of it has passed."""

    def push(self, chunk: bytes) -> bool:
        """Take a part that passes; whether the answer is complete with it."""

    def listen(self, chunk: bytes) -> None:
        """Take a part of a stream that is not kept: only what it says of reuse matters."""

    @property
    def reused(self) -> PrefixUse | None:
        """What the upstream says that it reused, as far as a stream has told."""

    async def whole(self) -> JsonObject | None:
        """The answer as one object; None where it is broken, partial or too large."""


@dataclass(slots=True)
class Source:
    """An answer on its way to those who wait for it.

    Attributes:
        chunks: the body's parts; raises a KvproxyError where it breaks off.
        said: what it says.
        at_once: the body comes as one part when all is done.
        parsed: what it says is read from the bytes of its events, which takes time.
        private: whether who sent it forbids to keep it for others.
        prefix: what was reused of the prompt, where the backend tells; an upstream tells while its answer passes.
        served_by: the upstream that took the request; None for the embedded engine.
        usage: tokens of the prompt and of the answer, known at the end where the answer is read.
        opened: when it began, by `time.perf_counter`.
    """

    status: int
    headers: Headers
    chunks: AsyncIterator[bytes]
    said: Said
    close: Callable[[], Awaitable[None]]
    at_once: bool = False
    streams: bool = False
    private: bool = False
    parsed: bool = False
    prefix: PrefixUse | None = None
    served_by: ServingUpstream | None = None
    usage: tuple[int, int] | None = None
    opened: float = field(default_factory=time.perf_counter)

    @property
    def upstream(self) -> str | None:
        """URL of the upstream that took the request."""
        return None if self.served_by is None else self.served_by.url

    @property
    def predicted(self) -> int | None:
        """Prompt tokens that this upstream's mirror said it would reuse."""
        return None if self.served_by is None else self.served_by.predicted_tokens


def open_source(request: ApiRequest, reply: Reply, limit: int) -> Source:
    """A reply to a request as bytes.

    Args:
        limit: bytes from which on what it says is not kept.
    """
    match reply:
        case Generated():
            return _generated(request, reply, limit)
        case Relayed():
            said = Recording(request.api, reply.streams, limit)
            private = forbids_keeping(reply.headers, request)
            source = Source(reply.status, reply.headers, reply.chunks, said, reply.close, private=private)
            source.streams = source.parsed = reply.streams
            source.served_by = reply.served_by
            return source


def forbids_keeping(headers: Headers, request: ApiRequest) -> bool:
    """Whether an upstream's answer must not be kept.

    It says `Cache-Control: no-store` or `private`, or it varies with a header that the request has and no key holds.
    """
    directives: set[str] = set()
    varying: set[str] = set()
    for name, value in headers:
        each = {part.strip().lower() for part in value.split(",")}
        if name == "cache-control":
            directives |= {part.partition("=")[0] for part in each}
        elif name == "vary":
            varying |= each
    if directives & {"no-store", "private"} or "*" in varying:
        return True
    # Only what the request said could have made the answer another one; who asks is part of the key already.
    keyed = request.control.ruled.key_headers
    return any(name in request.headers for name in varying - _SAME_FOR_ALL.union(keyed))


async def ask(backend: Backend, request: ApiRequest, limit: int) -> JsonObject | None:
    """The whole answer of a backend to a request of our own; None where it gives none. Raises a KvproxyError."""
    source = open_source(request, await backend.send(request), limit)
    try:
        async for chunk in source.chunks:
            source.said.push(chunk)
        return await source.said.whole() if source.status == 200 else None
    finally:
        await source.close()


def _generated(request: ApiRequest, reply: Generated, limit: int) -> Source:
    encoder = CODECS[request.api.name].encoder(request, reply.model, reply.echo)
    said = _Written(encoder, limit)
    usage = reply.usage
    prefix = PrefixUse(usage.prompt_tokens, usage.cached_tokens, usage.tier_tokens)
    if request.stream:
        headers = [EVENTS, ("cache-control", "no-cache")]
        return Source(200, headers, said.events(reply), said, reply.close, streams=True, prefix=prefix)
    return Source(200, [JSON], said.body(reply), said, reply.close, at_once=True, prefix=prefix)


class _Written:
    """An embedded answer: it is known in typed form, so nothing is parsed."""

    reused = None
    """The engine tells it before the first part."""

    def __init__(self, encoder: ResponseEncoder, limit: int) -> None:
        self._encoder = encoder
        self._limit = limit
        self._size = 0
        self._ended = False

    async def events(self, reply: Generated) -> AsyncIterator[bytes]:
        async for piece in reply.pieces:
            if written := b"".join(self._encoder.write(piece)):
                yield written
        self._ended = True
        yield b"".join(self._encoder.end())

    async def body(self, reply: Generated) -> AsyncIterator[bytes]:
        async for piece in reply.pieces:
            for _ in self._encoder.write(piece):
                pass
        self._ended = True
        yield await asyncio.to_thread(lambda: dumps(self._encoder.whole()))

    def push(self, chunk: bytes) -> bool:
        self._size += len(chunk)
        return self._ended

    def listen(self, chunk: bytes) -> None:
        """There is nothing to learn."""

    async def whole(self) -> JsonObject | None:
        return self._encoder.whole() if self._ended and self._size <= self._limit else None


class Recording:
    """An upstream's answer, read while it passes by; see `Said`.

    Args:
        api: the API of the request.
        stream: whether the parts are server-sent events.
        limit: bytes from which on an answer is not kept.
    """

    def __init__(self, api: Api, stream: bool, limit: int) -> None:
        self._limit = limit
        self._size = 0
        self._body: list[bytes] = []
        self._reader = EventReader()
        self._reuse = ReuseReader()
        self._assembler = api.assembler() if stream else None
        self._lost = False

    def listen(self, chunk: bytes) -> None:
        self._events(chunk)

    @property
    def reused(self) -> PrefixUse | None:
        return None if self._reuse.told is None else PrefixUse(*self._reuse.told)

    def _events(self, chunk: bytes) -> list[Event]:
        # What never ends an event is no stream; it must not pile up here.
        events = self._reader.push(chunk) if len(self._reader) <= self._limit else []
        for event in events:
            self._reuse.take(event)
        return events

    def push(self, chunk: bytes) -> bool:
        self._size += len(chunk)
        events = self._events(chunk) if self._assembler is not None else []
        if self._lost or self._size > self._limit:
            self._lose()
            return False
        if self._assembler is None:
            self._body.append(chunk)
            return False
        try:
            for event in events:
                self._assembler.push(event)
        except Exception:
            # Whatever a server sends is the client's to judge; here it only means that nothing is kept.
            self._lose()
            return False
        return self._assembler.done

    def _lose(self) -> None:
        self._lost = True
        self._body.clear()

    async def whole(self) -> JsonObject | None:
        if self._lost:
            return None
        try:
            if self._assembler is not None:
                return self._assembler.result()
            data = b"".join(self._body)
            body = await asyncio.to_thread(loads, data) if len(data) > _SLOW_BYTES else loads(data)
        except (ValueError, KeyError, TypeError):
            return None
        return body if isinstance(body, dict) else None
