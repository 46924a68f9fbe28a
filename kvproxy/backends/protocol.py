"""The interface of backends."""

from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from typing import Protocol, TypeAlias

from kvproxy.apis.api_request import ApiRequest
from kvproxy.apis.codecs.codec import Echo
from kvproxy.apis.json import JsonObject
from kvproxy.generation import Delta, Usage

Headers: TypeAlias = list[tuple[str, str]]
Body: TypeAlias = bytes | AsyncIterator[bytes]


def is_stream(headers: Headers) -> bool:
    return any(name == "content-type" and value.startswith("text/event-stream") for name, value in headers)


async def _nothing() -> None:
    return None


@dataclass(slots=True)
class GeneratedResponse:
    """A response of the embedded engine in flight.

    Attributes:
        pieces: raises a KvproxyError if the engine fails.
        usage: token counts, including the prompt's reused tokens.
        block_size: tokens of the engine's blocks.
        echo: the prompt, if completions must begin with it.
        close: stops the generation; may be called again.
    """

    pieces: AsyncIterator[Delta]
    usage: Usage
    model: str
    echo: Echo | None = None
    block_size: int = 0
    close: Callable[[], Awaitable[None]] = field(default=_nothing)


@dataclass(frozen=True, slots=True)
class ServingUpstream:
    """The upstream that serves a request.

    Attributes:
        predicted_tokens: prompt tokens that its prefix cache should reuse; None without a prediction.
        report_reuse: called once with the model, the prompt tokens, and the reused tokens.
        is_engine: an engine that caches prompts and outputs, not a paid API.
        block_size: tokens of its blocks; 0 if it is unknown.
        restores_tokens: the prompt has the engine's own tokens of earlier answers.
    """

    url: str
    predicted_tokens: int | None
    report_reuse: Callable[[str, int, int], None]
    is_engine: bool = False
    restores_tokens: bool = False
    block_size: int = 0


@dataclass(slots=True)
class RelayedResponse:
    """A response of an upstream in flight.

    Attributes:
        headers: names in lower case, possibly repeated.
        chunks: raises a KvproxyError if the upstream breaks off.
        close: may be called again.
        on_end: called once, at the end of the body, its failure, or `close`.
        served_by: None if no fleet chose an upstream.
    """

    status: int
    headers: Headers
    chunks: AsyncIterator[bytes]
    close: Callable[[], Awaitable[None]] = field(default=_nothing)
    on_first_chunk: list[Callable[[], None]] = field(default_factory=list)
    on_end: list[Callable[[], None]] = field(default_factory=list)
    served_by: ServingUpstream | None = None

    @property
    def streams(self) -> bool:
        return is_stream(self.headers)

    async def wait_for_first_chunk(self) -> None:
        """Wait for the first chunk; on failure, close the response and raise a KvproxyError.

        An engine sends the head of a stream long before its first token.
        """
        chunks = self.chunks
        try:
            first = await anext(chunks, b"")
        except BaseException:
            await self.close()
            raise
        self.chunks = _prepend(first, chunks)

    async def body(self) -> bytes:
        """Read the whole body, then close."""
        try:
            return b"".join([chunk async for chunk in self.chunks])
        finally:
            await self.close()


async def _prepend(first: bytes, chunks: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
    if first:
        yield first
    async for chunk in chunks:
        yield chunk


Reply: TypeAlias = GeneratedResponse | RelayedResponse


class Forwarder(Protocol):
    async def forward(self, method: str, path: str, headers: Mapping[str, str], body: Body) -> RelayedResponse:
        """Forward a request unchanged; `path` includes the query."""


class Backend(Protocol):
    name: str
    """Part of the cache key: backends never share responses."""
    forwarder: Forwarder | None
    """Serves all other requests; None for the embedded engine."""

    async def start(self) -> None: ...

    async def send(self, request: ApiRequest) -> Reply:
        """Return once the response's head is known, or raise a KvproxyError."""

    async def models(self) -> JsonObject:
        """Return the models in the format of OpenAI's list."""

    def failure(self) -> str | None:
        """Return why no request can be served; None if healthy."""

    async def close(self) -> None: ...
