"""Identical requests under way share one answer: late ones get what has come so far, then the rest as it comes.

The work goes on until its last client leaves; the first one leaving does not harm the others. The answer is read no faster
than its fastest client takes it, and once it has grown too large to be kept, no faster than its slowest.
"""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable, Hashable
from typing import Protocol

from kvproxy.apis.json import dumps
from kvproxy.apis.request import ApiRequest
from kvproxy.backends.protocol import Backend
from kvproxy.flow.backend_response import Source, open_source
from kvproxy.flow.quota_charges import metered
from kvproxy.flow.store_response import Asked, FlightKeeper, Shelf
from kvproxy.index.coming import Coming

WINDOW = 256 * 1024
"""Bytes that may wait for a client before the source has to."""
STEP = 4 * 1024
"""Bytes of an upstream's stream that are read at a go: some 25 events, which take half a millisecond."""

_END_SECONDS = 0.25
"""Seconds in which an upstream usually ends its response after the last event. It is not kept if more events come by then."""


class Keeper(Protocol):
    """Keeps the answer of a flight."""

    limit: int
    """Bytes up to which all parts are held for clients that come later."""

    def push(self, source: Source, chunk: bytes) -> bool:
        """Take a part before it is handed on; True if the answer is complete with it."""

    async def finish(self, source: Source) -> Coming | None:
        """Called once, when the answer is complete or has ended; the entry that is to keep it, on its way to the store."""


class Flight:
    """One generation and those who wait for it.

    Args:
        open: begins the work.
        keeper: keeps the answer.
    """

    def __init__(self, open: Callable[[], Awaitable[Source]], keeper: Keeper) -> None:
        self._open = open
        self._keeper = keeper
        self._chunks: list[bytes] = []
        self._dropped = 0
        self._size = 0
        self._read: dict[object, int] = {}
        self._taken: dict[object, int] = {}
        self._changed = asyncio.Event()
        self._moved = asyncio.Event()
        self.error: BaseException | None = None
        self.source: Source | None = None
        self.ended = False
        self._coming: Coming | None = None
        self.passengers = 0
        self.task = asyncio.create_task(self._fly())

    @property
    def open_to_all(self) -> bool:
        """Whether one more client would get everything from the start."""
        return not (self.ended or self._dropped or self.task.cancelling())

    @property
    def entry(self) -> str | None:
        """Id of the entry that keeps the answer, from its way to the store on."""
        return None if self._coming is None else self._coming.id

    async def stored(self) -> bool:
        """Wait until the answer is stored, or is not; whether it is, durable."""
        return self._coming is not None and await self._coming.stored()

    async def _fly(self) -> None:
        source: Source | None = None
        try:
            source = await self._open()
            self.source = source
            self._notify()
            await self._relay(source)
        except asyncio.CancelledError:
            # A new error: the traceback of the one that was raised holds this frame, and the frame holds the flight.
            self.error = asyncio.CancelledError()
            raise
        except BaseException as error:
            self.error = error
        finally:
            self.ended = True
            self._notify()
            if source is not None:
                await source.close()

    async def _relay(self, source: Source) -> None:
        """Hand on each part. Keep the response before its last part is handed on, since a client may leave then."""
        kept = False
        chunks = aiter(source.chunks)
        following: asyncio.Future[bytes | None] | None = None
        try:
            while (chunk := await (following or anext(chunks, None))) is not None:
                following = None
                if not kept and await self._push(source, chunk):
                    # A response that goes on after its end is not kept, so look for one more part first.
                    following = asyncio.ensure_future(anext(chunks, None))
                    await asyncio.wait({following}, timeout=_END_SECONDS)
                    if not following.done() or following.exception() is not None or following.result() is None:
                        kept = True
                        self._coming = await self._keeper.finish(source)
                self._chunks.append(chunk)
                self._size += len(chunk)
                self._notify()
                if not source.at_once:
                    await self._room()
        finally:
            if following is not None:
                following.cancel()
        if not kept:
            self._coming = await self._keeper.finish(source)

    async def _push(self, source: Source, chunk: bytes) -> bool:
        """Have a part read. A large one is read in steps: at a go it would hold up everybody else."""
        if not source.parsed or len(chunk) <= STEP:
            return self._keeper.push(source, chunk)
        complete = False
        for start in range(0, len(chunk), STEP):
            complete = self._keeper.push(source, chunk[start : start + STEP])
            await asyncio.sleep(0)
        return complete

    def _notify(self) -> None:
        self._changed.set()
        self._changed = asyncio.Event()

    async def _room(self) -> None:
        """Wait for the clients, so that no more than a window of parts lies here unread."""
        while self._size > WINDOW:
            large = self._size > self._keeper.limit
            if large:
                self._drop()
            if self._size - self._reached(min if large else max) <= WINDOW:
                return
            self._moved.clear()
            await self._moved.wait()

    def _reached(self, which: Callable[[list[int]], int]) -> int:
        """Bytes that the fastest or the slowest client has; one that has not begun to read has none."""
        waiting = [0] * (self.passengers - len(self._read))
        return which([*self._read.values(), *waiting] or [self._size])

    def _drop(self) -> None:
        """Let go of what every client has."""
        if len(self._taken) < self.passengers:
            return
        taken = min(self._taken.values(), default=0) - self._dropped
        if taken > 0:
            del self._chunks[:taken]
            self._dropped += taken

    def leave(self) -> None:
        """A client is done or gone; the last to go ends the work."""
        self.passengers -= 1
        self._moved.set()
        if self.passengers == 0 and not self.ended:
            self.task.cancel()

    async def head(self) -> Source:
        """The answer's head, once it is there; raises what the backend raised."""
        while self.source is None and not self.ended:
            await self._changed.wait()
        if self.source is None:
            assert self.error is not None
            raise self.error
        return self.source

    async def settle(self, seconds: float | None) -> bool:
        """Wait until the answer is whole, or has been under way too long or grown too large to be held back.

        Args:
            seconds: how long; what comes at once is waited for.

        Returns:
            Whether it is whole.
        """
        source = await self.head()
        # One part that comes when all is done: there is nothing to hand on before, however large it is.
        while source.at_once and not self.ended:
            await self._changed.wait()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                while not self.ended and self._size < WINDOW:
                    await self._changed.wait()
        return self.ended and self.error is None

    async def body(self) -> bytes:
        """The whole answer."""
        return b"".join([chunk async for chunk in self.chunks()])

    async def chunks(self, *, confirm: bool = False) -> AsyncIterator[bytes]:
        """All parts from the first one on; raises what broke the answer off.

        Args:
            confirm: hold back what is left when the answer is complete, until it is stored.
        """
        me = object()
        sent = self._dropped
        self._read[me], self._taken[me] = 0, sent
        try:
            while True:
                changed = self._changed
                while sent < self._dropped + len(self._chunks):
                    if confirm:
                        await self.stored()
                    chunk = self._chunks[sent - self._dropped]
                    yield chunk
                    sent += 1
                    self._read[me] += len(chunk)
                    self._taken[me] = sent
                    self._moved.set()
                if self.ended and sent == self._dropped + len(self._chunks):
                    break
                if sent == self._dropped + len(self._chunks) and changed is self._changed:
                    await changed.wait()
            if self.error is not None:
                raise self.error
            if confirm:
                await self.stored()
        finally:
            del self._read[me], self._taken[me]
            self._moved.set()


class Flights:
    """Flights under way, by what makes requests identical."""

    def __init__(self) -> None:
        self._boarding: dict[Hashable, Flight] = {}
        self._flying: set[Flight] = set()

    def __len__(self) -> int:
        return len(self._flying)

    def board(self, key: Hashable, make: Callable[[], Flight]) -> tuple[Flight, bool]:
        """Join a flight, or begin one; whether it was under way already."""
        flight = self._boarding.get(key)
        # One whose last client has just left is being cancelled: it is of no use to the next.
        joined = flight is not None and flight.open_to_all
        if flight is None or not joined:
            flight = self._boarding[key] = make()
            self._flying.add(flight)
            flight.task.add_done_callback(lambda task: self._land(key, flight, task))
        flight.passengers += 1
        return flight, joined

    def _land(self, key: Hashable, flight: Flight, task: "asyncio.Task[None]") -> None:
        self._flying.discard(flight)
        if self._boarding.get(key) is flight:
            del self._boarding[key]
        # A cancelled task keeps its error until it is asked for it, and the traceback of that error holds the flight.
        with contextlib.suppress(asyncio.CancelledError):
            task.exception()

    async def close(self) -> None:
        """End everything under way."""
        tasks = [flight.task for flight in self._flying]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


class Boarding:
    """Has requests answered by a backend.

    Args:
        backend: answers.
        shelf: keeps what may be kept.
    """

    def __init__(self, backend: Backend, shelf: Shelf) -> None:
        self.flights = Flights()
        self._backend = backend
        self._shelf = shelf

    def alone(self, asked: Asked) -> bool:
        """Whether a request flies alone: one that wants a fresh or an unstored answer."""
        return asked.request.control.no_cache or not self._keeps(asked)

    def _keeps(self, asked: Asked) -> bool:
        lifetime = self._shelf.lifetime(asked.request)
        return asked.cacheable and not asked.request.control.no_store and lifetime > 0

    def board(self, asked: Asked) -> tuple[Flight, bool]:
        """The flight of a request, to be left with `leave`; whether it was under way already.

        One never joins another tenant's flight: errors and cookies belong to who asked, even where answers are shared.
        """
        request, keep = asked.request, self._keeps(asked)
        form = (request.stream, dumps(request.body.get("stream_options")))
        return self.flights.board(
            (asked.key.exact, request.tenant, form, object() if self.alone(asked) else None),
            lambda: Flight(lambda: self._open(request), FlightKeeper(self._shelf, asked, keep=keep)),
        )

    async def _open(self, request: ApiRequest) -> Source:
        limit = self._shelf.settings.max_response_bytes
        if request.account is not None:
            return await metered(request, request.account, self._backend, limit)
        return open_source(request, await self._backend.send(request), limit)
