"""Converts a backend's response to bytes for the client, and to a JSON object for the cache."""

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence, Set
from dataclasses import dataclass, field
from typing import Protocol

from kvproxy.apis.api import Api, Assembler
from kvproxy.apis.api_request import BYTES_PER_TOKEN, ApiRequest, in_thread_if_large
from kvproxy.apis.codecs import CODECS
from kvproxy.apis.codecs.codec import ResponseEncoder
from kvproxy.apis.codecs.generation import Delta
from kvproxy.apis.json import JsonObject, as_object, dumps, loads
from kvproxy.apis.not_stored import Cause, NotStored, UnstorableResponse
from kvproxy.apis.reported_usage import PrefixReuse, ReuseReader
from kvproxy.apis.request_directives import parse_cache_control
from kvproxy.apis.service_tiers import TierReader
from kvproxy.apis.sse import Event, EventReader
from kvproxy.apis.stream_usage import UsageFilter
from kvproxy.backends.protocol import (
    Backend,
    GeneratedResponse,
    Headers,
    RelayedResponse,
    Reply,
    no_op,
)
from kvproxy.exchange import ResponseFacts
from kvproxy.index.entry import Entry
from kvproxy.index.pending_writes import PendingWrite
from kvproxy.journal.token_estimates import has_output
from kvproxy.settings.rules import RuleSettings

JSON = ("content-type", "application/json")
EVENTS = ("content-type", "text/event-stream; charset=utf-8")
IGNORED_HEADER = "x-kvproxy-ignored"
"""Header with the names of the request's fields that the embedded engine ignores."""
# Request headers that change only the encoding of a response, or which web pages may read it, or that describe the body.
_CHANGE_NO_CONTENT = frozenset(
    "accept accept-charset accept-encoding content-type content-length content-encoding origin"
    " access-control-request-method access-control-request-headers".split()
)

_STORING_HEADERS = ("cache-control", "vary", "content-encoding")


class ResponseReader(Protocol):
    """Reads the chunks of a backend's response, to store the response and to find its usage.

    Attributes:
        facts: receives what the chunks report.
        size: bytes of the chunks.
    """

    facts: ResponseFacts
    size: int

    @property
    def report(self) -> JsonObject | None:
        """The usage of a stream that has sent its output, even if it cannot be assembled; else None."""

    def push(self, chunk: bytes) -> bool:
        """Read the next chunk, and return whether it completes the response."""

    async def result(self) -> JsonObject:
        """Return the complete response. Raises UnstorableResponse if it is invalid, incomplete, or too large to store."""


@dataclass(slots=True)
class BackendResponse:
    """A response of the backend, whose body is still being received.

    Attributes:
        chunks: the body; the iterator raises a KvproxyError if the backend fails before the end.
        reader: reads the same chunks for the cache.
        single_chunk: the whole body arrives as one chunk.
        write: stores the response; None if it is not stored, or not complete yet.
        usage_filter: removes the chunk with the usage for clients; None if they requested it. The reader reads it.
        entries: the stored response, or those to all missing inputs of an array, if another proxy with the same store
            computed them; empty if the backend computes the response.
    """

    status: int
    headers: Headers
    chunks: AsyncIterator[bytes]
    reader: ResponseReader
    close: Callable[[], Awaitable[None]] = field(default=no_op)
    single_chunk: bool = False
    streams: bool = False
    write: PendingWrite | None = None
    usage_filter: UsageFilter | None = None
    entries: Sequence[Entry] = ()

    @property
    def facts(self) -> ResponseFacts:
        return self.reader.facts


def open_response(request: ApiRequest, reply: Reply, max_stored_bytes: int) -> BackendResponse:
    """Convert a backend's reply to bytes. A response with more than `max_stored_bytes` bytes is relayed, but not stored."""
    match reply:
        case GeneratedResponse():
            return _open_generated(request, reply, max_stored_bytes)
        case RelayedResponse():
            upstream = reply.served_by
            facts = ResponseFacts(
                upstream,
                0 if upstream is None else upstream.block_size,
                time.perf_counter(),
                upstream_status=reply.status,
            )
            is_streamed = reply.is_streamed
            is_filtered = is_streamed and reply.has_unrequested_usage and _has_plain_events(reply)
            return BackendResponse(
                reply.status,
                [header for header in reply.headers if header[0] != "content-length"] if is_filtered else reply.headers,
                reply.chunks,
                UpstreamReader(request.api, is_streamed, max_stored_bytes, facts),
                reply.close,
                streams=is_streamed,
                usage_filter=UsageFilter() if is_filtered else None,
            )


def _has_plain_events(reply: RelayedResponse) -> bool:
    return reply.status == 200 and not any(name == "content-encoding" for name, _ in reply.headers)


def stored_response(api: Api, entries: Sequence[Entry]) -> BackendResponse:
    async def chunks() -> AsyncIterator[bytes]:
        for entry in entries:
            yield entry.response

    reader = UpstreamReader(api, False, sum(len(entry.response) for entry in entries))
    return BackendResponse(200, [JSON], chunks(), reader, single_chunk=True, entries=entries)


def why_headers_forbid_storing(headers: Headers, rule: RuleSettings, keyed: Set[str]) -> NotStored | None:
    """Return why the headers of a response forbid storing it; None if they allow it.

    `keyed` are the headers that the cache key contains. Other headers that `Vary` names matter even if the request has none of
    them, since the next request may have them.
    """
    headers = [header for header in headers if header[0] in _STORING_HEADERS]
    if not headers:
        return None
    directives = parse_cache_control(value for name, value in headers if name == "cache-control")
    for cause in (Cause.NO_STORE, Cause.PRIVATE):
        if cause.value in directives and cause.value not in rule.store_despite:
            return NotStored(cause)
    varying = {part.strip().lower() for name, value in headers if name == "vary" for part in value.split(",")}
    if unkeyed := sorted(varying - {""} - _CHANGE_NO_CONTENT - keyed):
        return NotStored(Cause.VARY, ", ".join(unkeyed))
    encodings = [value for name, value in headers if name == "content-encoding" and value.lower() != "identity"]
    return NotStored(Cause.COMPRESSED, ", ".join(encodings)) if encodings else None


async def fetch_response(backend: Backend, request: ApiRequest, *, max_bytes: int, seconds: float) -> JsonObject | None:
    """Send a request of the proxy itself, and return the response. Raises a KvproxyError, or TimeoutError.

    Return None if the response is unsuccessful, invalid, incomplete, or larger than `max_bytes` bytes.
    """
    async with asyncio.timeout(seconds):
        response = open_response(request, await backend.send(request), max_bytes)
        size = 0
        try:
            async for chunk in response.chunks:
                size += len(chunk)
                if size > max_bytes:
                    return None
                response.reader.push(chunk)
            return await response.reader.result() if response.status == 200 else None
        except UnstorableResponse:
            return None
        finally:
            await response.close()


def _open_generated(request: ApiRequest, reply: GeneratedResponse, max_stored_bytes: int) -> BackendResponse:
    reader = _GeneratedResponseReader(
        CODECS[request.api.name].encoder(request, reply.model, reply.echo), max_stored_bytes, streams=request.stream
    )
    usage, facts = reply.usage, reader.facts
    facts.block_size, facts.started = reply.block_size, time.perf_counter()
    facts.prefix = PrefixReuse(usage.prompt_tokens, usage.cached_tokens, tier_tokens=usage.tier_tokens)
    return BackendResponse(
        200,
        [*([EVENTS, ("cache-control", "no-cache")] if request.stream else [JSON]), *_ignored_header(reply.ignored)],
        reader.events(reply) if request.stream else reader.body(reply),
        reader,
        reply.close,
        single_chunk=not request.stream,
        streams=request.stream,
    )


def _ignored_header(names: Sequence[str]) -> Headers:
    return [(IGNORED_HEADER, ", ".join(names))] if names else []


class _GeneratedResponseReader:
    def __init__(self, encoder: ResponseEncoder, limit: int, *, streams: bool) -> None:
        self.facts = ResponseFacts()
        self._streams = streams
        self._encoder = encoder
        self._limit = limit
        self.size = 0
        self._ended = False

    async def events(self, reply: GeneratedResponse) -> AsyncIterator[bytes]:
        async for piece in reply.pieces:
            if written := self._encode(piece):
                yield written
        self._ended = True
        yield b"".join(self._encoder.end())

    async def body(self, reply: GeneratedResponse) -> AsyncIterator[bytes]:
        async for piece in reply.pieces:
            self._encode(piece)
        self._ended = True
        yield await asyncio.to_thread(lambda: dumps(self._encoder.response()))

    def _encode(self, piece: Delta) -> bytes:
        if piece.timing is not None and self.facts.prefill_seconds is None:
            self.facts.prefill_seconds = piece.timing.first_token - piece.timing.queue
        return b"".join(self._encoder.write(piece))

    @property
    def report(self) -> JsonObject | None:
        return None

    def push(self, chunk: bytes) -> bool:
        self.size += len(chunk)
        self.facts.received_tokens += 1 if self._streams else len(chunk) // BYTES_PER_TOKEN
        return self._ended

    async def result(self) -> JsonObject:
        if self.size > self._limit:
            raise UnstorableResponse(Cause.TOO_LARGE)
        if not self._ended:
            raise UnstorableResponse(Cause.INCOMPLETE)
        return self._encoder.response()


class UpstreamReader:
    def __init__(self, api: Api, stream: bool, limit: int, facts: ResponseFacts | None = None) -> None:
        self.facts = facts or ResponseFacts()
        self._limit = limit
        self._has_output = has_output(api.path)
        self.size = 0
        self._body: list[bytes] = []
        self._events = EventReader()
        self._reuse = ReuseReader()
        self._assembler = api.assembler() if stream else None
        self._failure: NotStored | None = None
        self._tier = TierReader()

    @property
    def report(self) -> JsonObject | None:
        return self._reuse.report

    def push(self, chunk: bytes) -> bool:
        self.size += len(chunk)
        if self.size > self._limit:
            self._failure = self._failure or NotStored(Cause.TOO_LARGE)
        if self._assembler is None:
            self.facts.received_tokens += len(chunk) // BYTES_PER_TOKEN if self._has_output else 0
            if self._failure is not None:
                self._body.clear()
            else:
                self._body.append(chunk)
            return False
        # A stream without event boundaries must not accumulate in memory.
        for event in self._events.push(chunk) if len(self._events) <= self._limit else ():
            self.facts.received_tokens += 1
            self._add(self._assembler, event)
        return self._assembler.done and self._failure is None

    def _add(self, assembler: Assembler, event: Event) -> None:
        self._reuse.push(event)
        self.facts.prefix, self.facts.prefill_seconds = self._reuse.reuse, self._reuse.prefill_seconds
        self._tier.push(event)
        self.facts.service_tier = self._tier.tier
        if self._failure is None:
            # An invalid stream still reaches the client, but it is not stored.
            try:
                assembler.push(event)
            except Exception as error:
                self._failure = _not_stored(error)

    async def result(self) -> JsonObject:
        if self._assembler is not None and not self._assembler.done:
            # Some servers omit the last blank line.
            for event in self._events.end():
                self._add(self._assembler, event)
        if self._failure is not None:
            raise UnstorableResponse(self._failure.cause, self._failure.detail)
        try:
            if self._assembler is not None:
                return self._assembler.result()
            data = b"".join(self._body)
            return as_object(await in_thread_if_large(len(data), lambda: loads(data)))
        except UnstorableResponse:
            raise
        except (ValueError, KeyError, TypeError):
            raise UnstorableResponse(Cause.INVALID) from None


def _not_stored(error: Exception) -> NotStored:
    return error.not_stored if isinstance(error, UnstorableResponse) else NotStored(Cause.INVALID)
