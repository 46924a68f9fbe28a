"""The interface to the embedded engine, and to upstreams, as the path of a request uses it."""

from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from typing import Protocol, TypeAlias

from kvproxy.apis.api_request import ApiRequest, Delivery
from kvproxy.apis.codecs.codec import Echo
from kvproxy.apis.codecs.generation import Delta, Usage
from kvproxy.apis.json import JsonObject

Headers: TypeAlias = list[tuple[str, str]]
Body: TypeAlias = bytes | AsyncIterator[bytes]


def is_stream(headers: Headers) -> bool:
    return any(name == "content-type" and value.startswith("text/event-stream") for name, value in headers)


class Callbacks:
    """Functions that are called once, the last one first, at an event such as the end of a response."""

    def __init__(self) -> None:
        self._functions: list[Callable[[], object]] = []

    def add(self, function: Callable[[], object]) -> None:
        self._functions.append(function)

    def run(self) -> None:
        """Call the functions, all of them also if one raises an exception. Later calls do nothing."""
        while self._functions:
            function = self._functions.pop()
            try:
                function()
            except BaseException:
                self.run()
                raise


async def no_op() -> None:
    return None


@dataclass(slots=True)
class GeneratedResponse:
    """A response that the embedded engine generates.

    Attributes:
        pieces: the output. The iterator raises a KvproxyError if the engine fails.
        usage: token counts of the first piece; the prompt's counts are final, the output's are not.
        echo: the prompt, if the response must begin with it.
        block_size: tokens in a block of the engine.
        close: stops the generation; idempotent.
        ignored: names of the request's fields that the engine ignores.
    """

    pieces: AsyncIterator[Delta]
    usage: Usage
    model: str
    echo: Echo | None = None
    block_size: int = 0
    close: Callable[[], Awaitable[None]] = field(default=no_op)
    ignored: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class ServingUpstream:
    """The upstream that serves a request.

    Attributes:
        url: empty if it is unknown.
        predicted_tokens: number of prompt tokens that it should reuse; None without a prediction.
        report_reuse: receives the response's model, number of prompt tokens, and number of reused tokens.
        is_engine: whether it is a self-hosted engine, not a provider's API.
        has_generated_tokens: whether the prompt has the tokens that vLLM generated for earlier answers (`TokenRestorer`).
        block_size: tokens in a block of its prefix cache; 0 if unknown.
        loaded: those of the `predicted_tokens` that it loads from other media than the GPU, by medium.
        fallback: model that answered instead of the requested one; empty if the requested one did.
    """

    url: str
    predicted_tokens: int | None = None
    report_reuse: Callable[[str, int, int], None] = lambda model, prompt_tokens, cached_tokens: None
    is_engine: bool = False
    has_generated_tokens: bool = False
    block_size: int = 0
    loaded: Mapping[str, int] = field(default_factory=dict)
    fallback: str = ""

    def loaded_tokens(self, reused_tokens: int | None) -> dict[str, int]:
        """Return the reported `reused_tokens` that the engine loaded from media besides its GPU, as predicted."""
        if reused_tokens is None or self.predicted_tokens is None:
            return {}
        rest = max(0, reused_tokens - (self.predicted_tokens - sum(self.loaded.values())))
        loaded: dict[str, int] = {}
        for medium, tokens in self.loaded.items():
            loaded[medium] = min(tokens, rest)
            rest -= loaded[medium]
        return {medium: tokens for medium, tokens in loaded.items() if tokens}


@dataclass(slots=True)
class RelayedResponse:
    """A response that an upstream sends.

    Attributes:
        headers: pairs of a name in lower case and a value; names may be repeated.
        chunks: the body. The iterator raises a KvproxyError if the upstream ends it early.
        close: ends the response; idempotent.
        on_first_chunk: callbacks for the first chunk.
        on_end: callbacks for the end or a failure of the body, or for `close`.
        on_complete: callbacks for the end of a complete body, before those of `on_end`.
        on_broken: callbacks for a body that the upstream ended early, before those of `on_end`.
        served_by: the upstream; None if it served a request of an uncached API.
        has_unrequested_usage: the proxy asked for a last chunk with the usage, which the client did not request.
        lacks_cache_fields: the upstream refuses the proxy's fields for its cache, so the request was sent without them.
    """

    status: int
    headers: Headers
    chunks: AsyncIterator[bytes]
    close: Callable[[], Awaitable[None]] = field(default=no_op)
    on_first_chunk: Callbacks = field(default_factory=Callbacks)
    on_end: Callbacks = field(default_factory=Callbacks)
    on_complete: Callbacks = field(default_factory=Callbacks)
    on_broken: Callbacks = field(default_factory=Callbacks)
    served_by: ServingUpstream | None = None
    has_unrequested_usage: bool = False
    lacks_cache_fields: bool = False

    @property
    def is_streamed(self) -> bool:
        return is_stream(self.headers)

    async def wait_for_first_chunk(self) -> None:
        """Wait for the first chunk. On failure, close the response and raise a KvproxyError.

        An engine sends the status before the prefill, which may still fail.
        """
        chunks = self.chunks
        try:
            first = await anext(chunks, b"")
        except BaseException:
            await self.close()
            raise
        self.chunks = _prepend(first, chunks)


async def _prepend(first: bytes, chunks: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
    if first:
        yield first
    async for chunk in chunks:
        yield chunk


Reply: TypeAlias = GeneratedResponse | RelayedResponse


class Forwarder(Protocol):
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
        """Forward a request of an uncached API unchanged.

        `path` includes the query. `tenant` is the tenant of the request; None if it is unknown.
        `delivery` records the upstream that received it.
        """


class Backend(Protocol):
    forwarder: Forwarder | None
    """Serves requests of uncached APIs. It is None for the embedded engine, which supports only cached APIs."""

    @property
    def name(self) -> str:
        """Part of the cache key, so that backends share no responses."""

    async def start(self) -> None: ...

    async def send(self, request: ApiRequest) -> Reply:
        """Send a request; return when the response begins. Raises a KvproxyError."""

    async def models(self) -> JsonObject:
        """Return the available models as OpenAI's list."""

    def failure(self) -> str | None:
        """Return why no request can be served; None if requests can be served."""

    async def close(self) -> None: ...
