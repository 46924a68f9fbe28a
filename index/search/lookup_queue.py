"""Lookups of many callers, done together on one thread: each is answered within its time, or not at all.

One job embeds the questions of all who wait, searches and decides. Whoever would wait too long behind the others is told so
at once, and is not worked on. How many may wait is found by trying: one more where all are decided in time, half as many after
one that was not. Where one after the other comes too late, fewer and fewer are tried: their work would be for nothing, and take
the time of those who need none.
"""

import asyncio
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from kvproxy.index.entry import Freshness
from kvproxy.index.pending_writes import NO_WRITES, AwaitedWrites
from kvproxy.index.policies.policy import Limits, PolicyName
from kvproxy.index.search.batching import Batcher
from kvproxy.index.search.lookup import FRESH, Lookup

_MOST = 32
_RECENT = 0.2  # How much the last batch counts in what a lookup is expected to take.
_OVERLOADED = 0.05  # Seconds after a lookup was skipped in which what is not urgent stays out of the way.
_PAUSE = 0.02  # Seconds in which none is tried after a second one in a row came too late; twice as many after the next.
_LONGEST_PAUSE = 1.0
_SHARE = 0.5  # Of the time that a caller has, what a batch may take: a caller that comes just too late waits for two.


@dataclass(frozen=True, slots=True)
class Ask:
    """A question to look up; see `SemanticCache.lookup`. Without a reach it is that of the policy that decides."""

    namespace: str
    question: str
    limits: Limits
    reach: int | None
    explore: bool
    served: tuple[Freshness, ...] = FRESH
    policy: PolicyName | None = None
    writes: AwaitedWrites = NO_WRITES

    def skipped(self) -> Lookup:
        """What is told where it was not decided in time."""
        return Lookup(None, (), namespace=self.namespace, question=self.question, skipped=True)


class Lookups:
    """Lookups that share runs of the embedder.

    Args:
        work: looks up several questions; called on one thread at a time.
    """

    def __init__(self, work: Callable[[Sequence[Ask]], Sequence[Lookup]]) -> None:
        self._work = work
        self._seconds = 0.0
        self._room = float(_MOST)
        self._late = 0  # In a row.
        self._late_at = self._again = float("-inf")
        self._skipped = float("-inf")
        self._batches: Batcher[Ask, Lookup] = Batcher(self._timed, _MOST)

    @property
    def busy(self) -> bool:
        """Whether callers wait, or were sent away a moment ago."""
        return len(self._batches) > 0 or self.overloaded

    @property
    def overloaded(self) -> bool:
        """Whether callers were sent away a moment ago."""
        return time.monotonic() - self._skipped < _OVERLOADED

    def _timed(self, asks: Sequence[Ask]) -> Sequence[Lookup]:
        began = time.perf_counter()
        try:
            return self._work(asks)
        finally:
            took = (time.perf_counter() - began) / len(asks)
            self._seconds += _RECENT * (took - self._seconds)

    async def find(self, ask: Ask, seconds: float | None) -> Lookup:
        """What a lookup finds.

        Args:
            seconds: time for it; what is not decided by then is skipped. None: as long as it takes.
        """
        if seconds is None:
            return await asyncio.shield(self._batches.submit(ask))
        ahead, now = len(self._batches), time.monotonic()
        # Where nobody waits it is tried after a while, so that what was slow once does not stay so.
        if now < self._again or (ahead and (ahead >= self._room or (ahead + 1) * self._seconds > seconds)):
            return self._skip(ask)
        self._batches.most = max(1, min(_MOST, int(_SHARE * seconds / max(self._seconds, 1e-6))))
        future = self._batches.submit(ask)
        try:
            async with asyncio.timeout(seconds):
                found = await asyncio.shield(future)
        except TimeoutError:
            # What has not begun by now need not begin any more.
            future.cancel()
            # A busy event loop delays what the job itself does not know of.
            self._room = max(1.0, self._room / 2)
            self._rest(now)
            return self._skip(ask)
        self._late = 0
        if ahead + 1 >= self._room:
            self._room += 1
        return found

    def _rest(self, asked: float) -> None:
        """One came too late that was asked at a moment. After a single one the next is tried at once, since anybody is late
        now and then; after more in a row none is tried for a while. Those that were tried together count once."""
        if asked < self._late_at:
            return
        self._late, self._late_at = self._late + 1, time.monotonic()
        if self._late > 1:
            self._again = self._late_at + min(_PAUSE * 2 ** (self._late - 2), _LONGEST_PAUSE)

    def _skip(self, ask: Ask) -> Lookup:
        self._skipped = time.monotonic()
        return ask.skipped()
