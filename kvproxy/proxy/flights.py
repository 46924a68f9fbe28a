"""Identical requests under way share one generation: late ones get what has come so far, then the rest as it comes.

The generation goes on until its last client leaves; the first one leaving does not harm the others.
"""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Hashable

from kvproxy.proxy.backend import Reply

Finish = Callable[[Reply, list[bytes]], Awaitable[bool]]
"""Called with the whole answer before its last part is handed on; True if it is stored now."""
IsLast = Callable[[bytes], bool]


class Flight:
    """One generation and those who wait for it.

    Args:
        open: begins the work.
        finish: keeps the complete answer.
        is_last: tells the chunk that completes a stream, so that it is kept before anyone sees it complete.
    """

    def __init__(self, open: Callable[[], Awaitable[Reply]], finish: Finish, is_last: IsLast) -> None:
        self._open = open
        self._finish = finish
        self._is_last = is_last
        self._chunks: list[bytes] = []
        self._changed = asyncio.Event()
        self._error: BaseException | None = None
        self.reply: Reply | None = None
        self.ended = False
        self.stored = False
        self.passengers = 0
        self.task = asyncio.create_task(self._fly())

    async def _fly(self) -> None:
        reply: Reply | None = None
        try:
            reply = await self._open()
            self.reply = reply
            self._notify()
            kept = False
            async for chunk in reply.chunks:
                if not kept and self._is_last(chunk):
                    kept = True
                    self.stored = await self._finish(reply, [*self._chunks, chunk])
                self._chunks.append(chunk)
                self._notify()
            if not kept:
                self.stored = await self._finish(reply, self._chunks)
        except BaseException as error:
            self._error = error
            if isinstance(error, asyncio.CancelledError):
                raise
        finally:
            self.ended = True
            self._notify()
            if reply is not None:
                await reply.close()

    def _notify(self) -> None:
        self._changed.set()
        self._changed = asyncio.Event()

    async def head(self) -> Reply:
        """The reply, once its first part is there; raises what the backend raised."""
        while self.reply is None and not self.ended:
            await self._changed.wait()
        if self.reply is None:
            assert self._error is not None
            raise self._error
        return self.reply

    async def body(self) -> bytes:
        """The whole answer."""
        return b"".join([chunk async for chunk in self.chunks()])

    async def chunks(self) -> AsyncIterator[bytes]:
        """All parts from the first one on; raises what broke the answer off."""
        sent = 0
        while True:
            changed = self._changed
            while sent < len(self._chunks):
                yield self._chunks[sent]
                sent += 1
            if self.ended and sent == len(self._chunks):
                break
            if sent == len(self._chunks) and changed is self._changed:
                await changed.wait()
        if self._error is not None:
            raise self._error


class Flights:
    """Flights under way, by what makes requests identical."""

    def __init__(self) -> None:
        self._flights: dict[Hashable, Flight] = {}

    def __len__(self) -> int:
        return len(self._flights)

    def board(self, key: Hashable, make: Callable[[], Flight]) -> tuple[Flight, bool]:
        """Join a flight, or begin one; whether it was under way already."""
        flight = self._flights.get(key)
        # One whose last client has just left is being cancelled: it is of no use to the next.
        joined = flight is not None and not flight.ended and not flight.task.cancelling()
        if flight is None or not joined:
            flight = self._flights[key] = make()
            flight.task.add_done_callback(lambda task: self._land(key, flight, task))
        flight.passengers += 1
        return flight, joined

    def leave(self, flight: Flight) -> None:
        """A client is done or gone; the last to go ends the work."""
        flight.passengers -= 1
        if flight.passengers == 0 and not flight.ended:
            flight.task.cancel()

    def _land(self, key: Hashable, flight: Flight, task: "asyncio.Task[None]") -> None:
        if self._flights.get(key) is flight:
            del self._flights[key]
        if not task.cancelled():
            task.exception()

    async def close(self) -> None:
        """End everything under way."""
        tasks = [flight.task for flight in self._flights.values()]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
