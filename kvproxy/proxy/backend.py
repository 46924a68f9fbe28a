"""The seam to whatever computes an answer: the embedded engine, or a server behind a URL."""

from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, Protocol, TypeGuard

from kvproxy.proxy.dialects import DIALECTS
from kvproxy.proxy.dialects.dialect import Dialect

Endpoint = Literal["chat", "completions", "embeddings", "messages", "responses"]


@dataclass(frozen=True, slots=True)
class Call:
    """A request to one of the APIs whose answers are cached.

    Attributes:
        endpoint: which API.
        body: the parsed JSON; an upstream's business beyond what `dialects` read of it.
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
    def dialect(self) -> Dialect:
        return DIALECTS[self.endpoint]

    @property
    def stream(self) -> bool:
        return bool(self.body.get("stream"))


async def _nothing() -> None:
    return None


@dataclass(slots=True)
class Reply:
    """An answer that is on its way.

    Attributes:
        status: HTTP status.
        headers: headers for the client, lower case, repeated ones included.
        chunks: the body's parts as they come; raises a KvproxyError where it breaks off.
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

    @property
    def streams(self) -> bool:
        """Whether the body is server-sent events."""
        return any(name == "content-type" and value.startswith("text/event-stream") for name, value in self.headers)


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


class Forwarder(Protocol):
    """A backend that takes any request, not only those of the cached APIs."""

    async def forward(
        self, method: str, path: str, headers: Mapping[str, str], body: bytes | AsyncIterator[bytes]
    ) -> Reply:
        """Pass a request through untouched.

        Args:
            method: HTTP method.
            path: as the client sent it, with the query.
            headers: the client's, names in lower case.
            body: whole or as it comes.
        """


def forwards(backend: Backend) -> TypeGuard[Forwarder]:
    """Whether a backend takes any request."""
    return hasattr(backend, "forward")
