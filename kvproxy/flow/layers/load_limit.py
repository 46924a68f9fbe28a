"""The layer that queues cache misses while the event loop lags, so that hits stay fast."""

import asyncio
import math

from kvproxy.backends.overload_log import RETRY_SECONDS, OverloadLog
from kvproxy.errors import ProxyOverloaded
from kvproxy.exchange import Answer, Exchange
from kvproxy.flow.answered_bodies import AnsweredBodies
from kvproxy.flow.layers.layer import Layer, Rest
from kvproxy.journal.journal import Journal
from kvproxy.settings.limits import LimitSettings

MEASURED_FROM = 64
"""Misses in flight from which the lag is measured: fewer misses cause no lag for long."""
LEAST_LIMIT = 16
"""Misses that may be in flight at any lag."""
LAGGING_SECONDS = 0.5
"""Time in which each turn of the event loop must lag, by half of `max_lag` at least, before misses are limited.

A single stall limits none.
"""
BURST = 1024
"""Misses that may wait at any rate of completed misses, until the queue has been full for seconds; again when the limit ends."""
UNLIMITED_SECONDS = 5.0
"""Time without waiting misses until the limit ends."""
_TICK_SECONDS = 0.02
_RATE_SECONDS = 1.0
_BURST_HALF_LIFE = 1.0  # Seconds in which the queue is full.
_LEAST_FACTOR = 0.5
_INCREASE = 1.1
_OK = 200
UNREAD_LAG = 0.25
"""Share of `max_lag` from which a full queue refuses requests unread."""


class ConcurrencyLimit:
    """A limit on the misses in flight, computed from the lag of the event loop, and one on the misses that wait.

    The limit falls in proportion to the lag, as Envoy's gradient controller does with latencies. Misses that wait for a slow
    upstream cause no lag, and are not limited.

    Attributes:
        lag: of the last turn, in seconds.

    Args:
        max_lag: in seconds.
        max_wait: seconds that a miss may wait. If misses wait for twice as long, they do not cause the lag: the limit rises.
        now: in seconds.
    """

    def __init__(self, max_lag: float, max_wait: float, now: float = 0.0) -> None:
        self.max_lag = max_lag
        self._max_wait = max_wait
        self._lagging_since = math.inf
        self._last_wait = self._last_update = now
        self._rate = 0.0
        self._burst = float(BURST)
        self.lag = 0.0
        self.value = math.inf

    @property
    def max_waiting(self) -> float:
        """Number of misses that are completed within `max_wait` at the present rate, or a burst if it is larger."""
        return max(self._burst, self._max_wait * self._rate)

    def update(
        self, now: float, lag: float, in_flight: int, completed: int, oldest_wait: float, is_full: bool = False
    ) -> None:
        """Adapt the limits to a turn of the event loop.

        Args:
            lag: of this turn, in seconds.
            completed: misses that were completed since the last call.
            oldest_wait: seconds that the oldest waiting miss has waited; 0 if no miss waits.
            is_full: as many misses wait as may wait.
        """
        self.lag = lag
        passed, self._last_update = max(_TICK_SECONDS, now - self._last_update), now
        if oldest_wait or self.value == math.inf:
            # Otherwise, the rate is that of the arriving misses, and may be far below the capacity.
            self._rate += (completed / passed - self._rate) * -math.expm1(-passed / _RATE_SECONDS)
        is_lagging = lag > self.max_lag
        if lag < self.max_lag / 2:
            self._lagging_since = math.inf
        elif is_lagging:
            self._lagging_since = min(self._lagging_since, now)
        if oldest_wait:
            self._last_wait = now
        if is_full:
            self._burst = max(LEAST_LIMIT, self._burst * 0.5 ** (passed / _BURST_HALF_LIFE))
        elif not oldest_wait and self.value == math.inf:
            self._burst = BURST
        if self.value == math.inf:
            if is_lagging and now - self._lagging_since >= LAGGING_SECONDS:
                self._last_wait = now
                self._reduce(lag, in_flight)
        elif oldest_wait > 2 * self._max_wait:
            self.value *= _INCREASE
        elif is_lagging:
            # Until enough of the misses in flight end, the lag is that of an earlier limit.
            if in_flight < self.value + 1:
                self._reduce(lag, in_flight)
        elif now - self._last_wait >= UNLIMITED_SECONDS:
            self.value = math.inf
        elif lag < self.max_lag / 2 and in_flight >= self.value / _INCREASE:
            self.value *= _INCREASE

    def _reduce(self, lag: float, in_flight: int) -> None:
        factor = max(_LEAST_FACTOR, self.max_lag / lag)
        self.value = max(LEAST_LIMIT, min(self.value, in_flight) * factor)


class LimitLoad(Layer):
    """Queues misses beyond a `ConcurrencyLimit`, without a semantic lookup. Refuses misses that would wait for too long.

    While the journal is behind, it admits none.

    `finish` must receive each exchange.
    """

    def __init__(self, limits: LimitSettings, journal: Journal = Journal()) -> None:
        super().__init__()
        self._journal = journal
        self._max_wait = limits.overload_seconds
        self._limit = ConcurrencyLimit(limits.max_lag, limits.overload_seconds)
        self._answered = AnsweredBodies()
        self._log = OverloadLog()
        self._in_flight: set[Exchange] = set()
        self._waiting: dict[Exchange, _Place] = {}
        self._completed = 0
        self._timer: asyncio.TimerHandle | None = None
        self._due = 0.0

    @property
    def _has_place(self) -> bool:
        # A miss that waits for the journal in flight would hold a place, and let the limit rise.
        return len(self._in_flight) < self._limit.value and not self._journal.is_behind

    @property
    def _is_full(self) -> bool:
        # Those in flight beyond a reduced limit end first.
        ahead = max(0.0, len(self._in_flight) - self._limit.value)
        return len(self._waiting) + ahead >= self._limit.max_waiting

    @property
    def is_overloaded(self) -> bool:
        """Whether the queue is full, and lookups for further requests would increase the lag, or delay the journal."""
        is_lagging = self._limit.lag > self._limit.max_lag * UNREAD_LAG
        return (is_lagging or self._journal.is_behind) and self._is_full

    def refuses_unread(self, body: bytes) -> bool:
        """Whether to refuse a request without a lookup: the proxy is overloaded, and answered no equal body."""
        return self.is_overloaded and body not in self._answered

    def check_unread(self, body: bytes) -> None:
        """Raise ProxyOverloaded if the request is to be refused without a lookup."""
        if self.refuses_unread(body):
            raise self.refusal()

    def record_answered(self, body: bytes, status: int) -> None:
        if status == _OK:
            self._answered.add(body)

    def refusal(self) -> ProxyOverloaded:
        """Return the error for a request beyond the queue, and log the overload once a minute."""
        self._log.log("overload_seconds", f"{len(self._waiting)} cache misses wait, because the event loop lags")
        message = f"the proxy is overloaded (limits.overload_seconds): retry after {RETRY_SECONDS:g} s"
        return ProxyOverloaded(message, limit="overload_seconds", retry_after=RETRY_SECONDS)

    async def answer(self, exchange: Exchange, rest: Rest) -> Answer:
        await self.enter(exchange)
        return await rest(exchange)

    async def enter(self, exchange: Exchange) -> None:
        """Wait in FIFO order until the miss may be in flight, or until its client disconnects. Raises ProxyOverloaded."""
        if exchange in self._in_flight:
            # The path refused it as invalid, and it is forwarded unread.
            return
        if not self._waiting and self._has_place:
            self._admit(exchange)
            return
        if self._is_full:
            # Without a key, the journal does not store the prompt, which takes as long as the rest of a refusal.
            exchange.key, exchange.failure = None, ProxyOverloaded.reason
            raise self.refusal()
        exchange.was_queued = True
        waiting = self._wait(exchange)
        await (waiting if exchange.watch is None else exchange.watch(waiting))

    async def _wait(self, exchange: Exchange) -> None:
        loop = asyncio.get_running_loop()
        place = self._waiting[exchange] = _Place(loop)
        if self._timer is None:
            self._schedule(loop)
        try:
            await place.admitted
        finally:
            self._waiting.pop(exchange, None)

    def finish(self, exchange: Exchange) -> None:
        """Remove an ended exchange, and admit the next one."""
        if exchange in self._in_flight:
            self._in_flight.remove(exchange)
            self._completed += 1
            self._admit_waiting()

    def close(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _admit(self, exchange: Exchange) -> None:
        self._in_flight.add(exchange)
        if self._timer is None and len(self._in_flight) >= MEASURED_FROM:
            self._schedule(asyncio.get_running_loop())

    def _admit_waiting(self) -> None:
        while self._waiting and self._has_place:
            exchange = next(iter(self._waiting))
            admitted = self._waiting.pop(exchange).admitted
            if not admitted.done():
                self._admit(exchange)
                admitted.set_result(None)

    def _schedule(self, loop: asyncio.AbstractEventLoop) -> None:
        self._due = loop.time() + _TICK_SECONDS
        self._timer = loop.call_at(self._due, self._tick, loop)

    def _tick(self, loop: asyncio.AbstractEventLoop) -> None:
        now, in_flight = loop.time(), len(self._in_flight)
        completed, self._completed = self._completed, 0
        oldest_wait = now - next(iter(self._waiting.values())).since if self._waiting else 0.0
        self._limit.update(now, now - self._due, in_flight, completed, oldest_wait, self._is_full)
        self._admit_waiting()
        if in_flight >= MEASURED_FROM or self._limit.value < math.inf or self._waiting:
            self._schedule(loop)
        else:
            self._timer = None


class _Place:
    """A place in the queue."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self.since = loop.time()
        self.admitted = loop.create_future()
