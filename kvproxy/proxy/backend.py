"""The seam to whatever computes an answer: the embedded engine, or a server behind a URL."""

from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, Protocol

Endpoint = Literal["chat", "completions"]
PATHS: dict[Endpoint, str] = {"chat": "/v1/chat/completions", "completions": "/v1/completions"}


@dataclass(frozen=True, slots=True)
class Call:
    """A validated request.

    Attributes:
        endpoint: which API.
        body: the parsed JSON.
        raw: the bytes as the client sent them.
        headers: the client's, names in lower case.
        tenant: who asks, see `keys`.
        request_id: also given to the client; a client that chose it may choose it twice.
        query: the URL's query, without its question mark.
    """

    endpoint: Endpoint
    body: dict[str, Any]
    raw: bytes
    headers: Mapping[str, str]
    tenant: str
    request_id: str
    query: str = ""

    @property
    def stream(self) -> bool:
        return bool(self.body.get("stream"))

    @property
    def include_usage(self) -> bool:
        options = self.body.get("stream_options")
        return bool(options.get("include_usage")) if isinstance(options, dict) else False


async def _nothing() -> None:
    return None


@dataclass(slots=True)
class Reply:
    """An answer that is on its way.

    Attributes:
        status: HTTP status.
        headers: headers for the client.
        chunks: a JSON body, or server-sent events as they come.
        detail: what the backend says of its own cache, for Cache-Status.
        usage: token counts that a stream did not carry itself, known when it ended.
        close: ends the work behind the reply; safe to call at any time.
    """

    status: int
    headers: list[tuple[str, str]]
    chunks: AsyncIterator[bytes]
    detail: str | None = None
    usage: dict[str, Any] | None = None
    close: Callable[[], Awaitable[None]] = field(default=_nothing)


class Backend(Protocol):
    """What computes answers."""

    name: str
    """Tells backends apart in keys: an answer is never served for another backend."""

    async def start(self) -> None:
        """Get ready; called once."""

    async def send(self, call: Call) -> Reply:
        """Forward a request; returns when the first part of the answer is there, or raises a KvproxyError."""

    async def models(self) -> dict[str, Any]:
        """OpenAI's list of models."""

    async def close(self) -> None:
        """Release everything."""
