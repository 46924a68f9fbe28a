"""The seam to whatever computes an answer: typed pieces from the embedded engine, or an upstream's bytes."""

from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from typing import Protocol, TypeAlias

from kvproxy.apis.codecs.codec import Echo
from kvproxy.apis.json import JsonObject
from kvproxy.apis.request import ApiRequest
from kvproxy.generation import Delta, Usage

Headers: TypeAlias = list[tuple[str, str]]
Body: TypeAlias = bytes | AsyncIterator[bytes]


async def _nothing() -> None:
    return None


@dataclass(slots=True)
class Generated:
    """An answer of the embedded engine that is on its way.

    Attributes:
        pieces: all pieces, the first one included; raises a KvproxyError where the engine fails.
        usage: of the first piece: the prompt's tokens, and how many were cached.
        model: its name for the client.
        echo: what each completion begins with.
        close: ends the work; safe to call at any time.
    """

    pieces: AsyncIterator[Delta]
    usage: Usage
    model: str
    echo: Echo | None = None
    close: Callable[[], Awaitable[None]] = field(default=_nothing)


@dataclass(frozen=True, slots=True)
class ServingUpstream:
    """The upstream that serves a request.

    Attributes:
        url: its URL.
        predicted_tokens: prompt tokens that its prefix cache should reuse; None without a prediction.
        report_reuse: callback for the reported reuse, called once with the model, the prompt tokens, and the reused tokens.
    """

    url: str
    predicted_tokens: int | None
    report_reuse: Callable[[str, int, int], None]


@dataclass(slots=True)
class Relayed:
    """An upstream's answer that is on its way.

    Attributes:
        status: HTTP status.
        headers: headers for the client, lower case, repeated ones included.
        chunks: the body's parts as they come; raises a KvproxyError where it breaks off.
        close: ends the work; safe to call at any time.
        when_begun: called once, when the body's first part comes.
        when_over: called once, when the body was read to its end, broke off or was closed, whatever comes first.
        served_by: the upstream that serves the request; None if no fleet chose one.
    """

    status: int
    headers: Headers
    chunks: AsyncIterator[bytes]
    close: Callable[[], Awaitable[None]] = field(default=_nothing)
    when_begun: list[Callable[[], None]] = field(default_factory=list)
    when_over: list[Callable[[], None]] = field(default_factory=list)
    served_by: ServingUpstream | None = None

    @property
    def streams(self) -> bool:
        """Whether the body is server-sent events."""
        return any(name == "content-type" and value.startswith("text/event-stream") for name, value in self.headers)

    async def begin(self) -> None:
        """Wait for the body's first part. An engine sends a stream's head at once, long before there is anything to say.

        Raises:
            KvproxyError: it broke off before it; the answer is closed then.
        """
        chunks = self.chunks
        try:
            first = [await anext(chunks)]
        except StopAsyncIteration:
            first = []
        except BaseException:
            await self.close()
            raise
        self.chunks = _rest(first, chunks)

    async def body(self) -> bytes:
        """The whole body; the answer is closed then."""
        try:
            return b"".join([chunk async for chunk in self.chunks])
        finally:
            await self.close()


async def _rest(first: list[bytes], chunks: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
    """An answer's parts, of which the first has been taken."""
    for chunk in first:
        yield chunk
    async for chunk in chunks:
        yield chunk


Reply: TypeAlias = Generated | Relayed


class Forwarder(Protocol):
    """Takes any request, not only those of the cached APIs."""

    async def forward(self, method: str, path: str, headers: Mapping[str, str], body: Body) -> Relayed:
        """Pass a request through untouched.

        Args:
            method: HTTP method.
            path: as the client sent it, with the query.
            headers: the client's, names in lower case.
            body: whole, or as it comes.
        """


class Backend(Protocol):
    """What computes answers."""

    name: str
    """Tells backends apart in keys: an answer is never served for another backend."""
    forwarder: Forwarder | None
    """Takes all other requests; None where there is nothing to pass them to."""

    async def start(self) -> None:
        """Get ready; called once."""

    async def send(self, request: ApiRequest) -> Reply:
        """Answer a request; returns when the first part of the answer is there, or raises a KvproxyError."""

    async def models(self) -> JsonObject:
        """OpenAI's list of models."""

    def failure(self) -> str | None:
        """Why no request can be answered now; None where it can."""

    async def close(self) -> None:
        """Release everything."""
