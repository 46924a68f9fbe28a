"""Joins the writes of one event loop iteration into one system call, since uvicorn writes head and body separately."""

import asyncio
from typing import Any

_LINGER_SECONDS = 2.0
_MOST = 32 * 1024
"""More bytes are written immediately, so that the transport notices a client that does not read."""


class JoinedWrites(asyncio.Transport):
    """A transport that buffers writes until the end of the event loop iteration.

    Args:
        transport: the underlying transport.
    """

    def __init__(self, transport: asyncio.Transport) -> None:
        super().__init__()
        self._transport = transport
        self._loop = asyncio.get_running_loop()
        self._parts: list[bytes] = []
        self._size = 0
        self.linger = False
        """Whether `close` keeps reading for two seconds. Closing a socket with unread bytes resets the connection, and the
        reset could destroy the last response before its client reads it."""
        self._lingering = False

    def write(self, data: bytes) -> None:  # type: ignore[override]
        if self._lingering:
            return
        if not self._parts:
            self._loop.call_soon(self._flush)
        self._parts.append(data)
        self._size += len(data)
        if self._size > _MOST:
            self._flush()

    def _flush(self) -> None:
        parts, self._parts, self._size = self._parts, [], 0
        if not parts or self._transport.is_closing():
            return
        if len(parts) == 1:
            self._transport.write(parts[0])
        else:
            self._transport.writelines(parts)

    def close(self) -> None:
        self._flush()
        if self.linger and self._transport.can_write_eof() and not self._transport.is_closing():
            if not self._lingering:
                self._lingering = True
                self._transport.write_eof()
                self._transport.resume_reading()
                self._loop.call_later(_LINGER_SECONDS, self._transport.close)
            return
        self._transport.close()

    def abort(self) -> None:
        self._parts, self._size = [], 0
        self._transport.abort()

    def is_closing(self) -> bool:
        return self._lingering or self._transport.is_closing()

    def get_write_buffer_size(self) -> int:
        return self._size + self._transport.get_write_buffer_size()

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        return self._transport.get_extra_info(name, default)

    def pause_reading(self) -> None:
        self._transport.pause_reading()

    def resume_reading(self) -> None:
        self._transport.resume_reading()
