"""Remembers exact hits by the bytes of their requests."""

from collections import OrderedDict
from dataclasses import dataclass

from kvproxy.flow.cached.again import Again
from kvproxy.http.cache_status import cache_headers
from kvproxy.http.connections.relay import encode

Headers = list[tuple[bytes, bytes]]
Bytes = tuple[str, bytes, bytes, tuple[tuple[bytes, bytes], ...]]
"""A request as it was sent: path, query, body, and the headers that could matter, in their order."""

_MOST_BYTES = 64 * 2**20
_BESIDES = 4096
"""Bytes that a remembered hit takes beside its texts, about."""
# They are another for each request, and nothing is decided by them.
_PASSING = frozenset((b"x-request-id", b"traceparent", b"tracestate", b"x-stainless-retry-count"))


@dataclass(slots=True)
class Remembered:
    """An exact hit.

    Attributes:
        again: gives it once more.
        headers: of its answer, without those that tell what became of a request.
        body: of its answer.
        second: for which `told` was written.
        told: all headers, as they are in that second.
    """

    again: Again
    headers: Headers
    body: bytes
    second: int = -1
    told: Headers | None = None

    def all_headers(self, now: float) -> Headers:
        """The headers of an answer that is given now, in seconds since the epoch."""
        second = int(now)
        if self.told is None or self.second != second:
            length = (b"content-length", str(len(self.body)).encode())
            self.told = [*self.headers, *encode(cache_headers(self.again.outcome(now))), length]
            self.second = second
        return self.told

    @property
    def bytes(self) -> int:
        """What it takes, about: the request is here as text and as JSON, and with the entry."""
        return _BESIDES + 4 * len(self.again.request.raw) + 2 * len(self.body) + len(self.again.entry.response)


class Memory:
    """The exact hits of a moment ago, those least recently used forgotten first.

    Args:
        most: bytes, about.
    """

    def __init__(self, most: int = _MOST_BYTES) -> None:
        self._most = most
        self._known: OrderedDict[Bytes, Remembered] = OrderedDict()
        self._bytes = 0

    def find(self, sent: Bytes) -> Remembered | None:
        """The hit of an equal request."""
        found = self._known.get(sent)
        if found is not None:
            self._known.move_to_end(sent)
        return found

    def add(self, sent: Bytes, hit: Remembered) -> None:
        """Remember a hit."""
        self.forget(sent)
        self._known[sent] = hit
        self._bytes += hit.bytes
        while self._bytes > self._most:
            self._bytes -= self._known.popitem(last=False)[1].bytes

    def forget(self, sent: Bytes) -> None:
        """Forget the hit of a request, if it is known."""
        old = self._known.pop(sent, None)
        if old is not None:
            self._bytes -= old.bytes

    def clear(self) -> None:
        """Forget everything."""
        self._known.clear()
        self._bytes = 0

    def __len__(self) -> int:
        return len(self._known)


def sent_bytes(path: str, query: bytes, body: bytes, headers: Headers) -> Bytes:
    """What two equal requests share."""
    return path, query, body, tuple([header for header in headers if header[0] not in _PASSING])
