"""An answer put together while it passes by."""

from typing import Any

from kvproxy.proxy.dialects.dialect import Dialect
from kvproxy.proxy.documents import loads
from kvproxy.proxy.sse import EventReader


class Recording:
    """Takes the parts of one answer and gives the object to store.

    Args:
        dialect: the API of the request.
        stream: whether the parts are server-sent events.
        limit: bytes from which on an answer is not kept.
    """

    def __init__(self, dialect: Dialect, stream: bool, limit: int) -> None:
        self._dialect = dialect
        self._limit = limit
        self._size = 0
        self._body: list[bytes] = []
        self._reader = EventReader()
        self._assembler = dialect.assembler() if stream else None
        self._lost = False

    def push(self, chunk: bytes) -> bool:
        """Take a part; whether a stream has come to its end with it."""
        self._size += len(chunk)
        if self._lost or self._size > self._limit:
            self._lose()
            return False
        if self._assembler is None:
            self._body.append(chunk)
            return False
        try:
            for data in self._reader.push(chunk):
                self._assembler.push(data)
        except Exception:
            # Whatever a server sends is the client's to judge; here it only means that nothing is kept.
            self._lose()
            return False
        return self._assembler.done

    def _lose(self) -> None:
        self._lost = True
        self._body.clear()

    def result(self, usage: dict[str, Any] | None) -> dict[str, Any] | None:
        """The complete object, or None where the answer is broken, partial, too large or an error.

        Args:
            usage: token counts to use where a stream carried none.
        """
        if self._lost:
            return None
        if self._assembler is not None:
            return self._assembler.result(usage)
        try:
            whole = loads(b"".join(self._body))
        except ValueError:
            return None
        return whole if isinstance(whole, dict) and self._dialect.complete(whole) else None
