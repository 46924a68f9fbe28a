"""Where a request was forwarded although a similar one is stored: compare the two answers, and let the policy learn from it.

All of it happens off the request path, one comparison after the other; when too many wait, further ones are dropped and counted.
"""

import asyncio
import contextlib
import logging
import time
from collections import Counter
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from kvproxy.apis.request import ApiRequest
from kvproxy.backends.protocol import Backend
from kvproxy.flow.learning.judges import Cached, EqualityJudge, Judge, ModelJudge, SimilarityJudge, answer_text
from kvproxy.index.entry import Entry
from kvproxy.index.errors import CacheStoreError
from kvproxy.index.lookup import Lookup
from kvproxy.index.semantic import SemanticCache
from kvproxy.settings import CacheSettings

_WAITING = 64
# Seconds of rest for each second of work: while requests wait to be looked up, and while they are not looked up at all.
_REST, _LONG_REST = 3.0, 20.0
_log = logging.getLogger("kvproxy")


@dataclass(frozen=True, slots=True)
class _Comparison:
    request: ApiRequest
    lookup: Lookup
    fresh: Entry
    late: bool


class Observer:
    """Compares answers in the background.

    Args:
        semantic: knows the cached answers, and learns.
        judge: says whether two answers are the same.
        shadow: whether every request is forwarded, whatever was found.
    """

    def __init__(self, semantic: SemanticCache, judge: Judge, *, shadow: bool = False) -> None:
        self._semantic = semantic
        self._judge = judge
        self._shadow = shadow
        self._queue: asyncio.Queue[_Comparison] = asyncio.Queue(_WAITING)
        self._task: asyncio.Task[None] | None = None
        self._unfinished = 0
        self.counts: Counter[str] = Counter()
        """Comparisons by result: right, wrong, undecided, dropped."""

    def compare(self, request: ApiRequest, fresh: Entry, lookup: Lookup, *, late: bool = False) -> None:
        """Have a fresh answer compared with those of its question's neighbours, later.

        Args:
            late: the question was looked up only after its request had been forwarded.
        """
        if self._task is None:
            self._task = asyncio.create_task(self._work())
        try:
            self._queue.put_nowait(_Comparison(request, lookup, fresh, late))
            self._unfinished += 1
        except asyncio.QueueFull:
            self.counts["dropped"] += 1

    async def idle(self) -> None:
        """Wait until everything that was handed in is done."""
        await self._queue.join()

    def results(self) -> dict[str, int]:
        """Comparisons by result, with those that were dropped before they came here."""
        dropped = self.counts["dropped"] + self._semantic.behind.dropped
        return dict(self.counts) | ({"dropped": dropped} if dropped else {})

    @property
    def is_idle(self) -> bool:
        """Whether everything that was handed in is done."""
        return self._unfinished == 0

    async def close(self) -> None:
        """Stop; what still waits is dropped."""
        if self._task is not None:
            self._task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._task

    async def _work(self) -> None:
        while True:
            comparison = await self._queue.get()
            began = time.monotonic()
            try:
                result = await self._observe(comparison)
                if comparison.lookup.judged is not None:
                    self.counts[result] += 1
            except CacheStoreError as error:
                _log.error("an observation was not stored: %s", error)
            except Exception as error:
                # One answer that cannot be compared must not end all comparing.
                _log.error("an answer could not be compared", exc_info=error)
            finally:
                self._queue.task_done()
                self._unfinished -= 1
            if self._semantic.lookups.busy:
                # Requests wait for the same cores: learning takes a part of their time, and no more.
                rest = _LONG_REST if self._semantic.lookups.overloaded else _REST
                await asyncio.sleep(rest * (time.monotonic() - began))

    async def _observe(self, comparison: _Comparison) -> str:
        fresh, learning = comparison.fresh, self._semantic.learning
        said = answer_text(fresh.response, fresh.endpoint)
        if said is None or learning is None:
            return "undecided"

        async def same(id: str) -> bool | None:
            entry = await self._semantic.entry(id)
            cached = answer_text(entry.response, entry.endpoint) if entry is not None else None
            if cached is None:
                return None
            return await self._judge.same(comparison.request, fresh.prompt, Cached(id, cached), said)

        # A request that was not looked up in time was forwarded whatever would have been decided.
        learned = await learning.learned(comparison.lookup, fresh, said, same, served=self._shadow or comparison.late)
        if learned is None:
            return "undecided"
        return "right" if learned.right else "wrong"


def make_observer(semantic: SemanticCache, backend: Backend, settings: CacheSettings) -> Observer | None:
    """The observer that the settings ask for, if any."""
    judge = make_judge(semantic, backend, settings)
    return None if judge is None else Observer(semantic, judge, shadow=settings.shadow)


def make_judge(semantic: SemanticCache, backend: Backend, settings: CacheSettings) -> Judge | None:
    """What compares answers, if the settings ask for it."""
    judges: dict[str, Callable[[], Judge]] = {
        "equality": EqualityJudge,
        "similarity": lambda: SimilarityJudge(_alike(semantic), settings.judge_similarity),
        "model": lambda: ModelJudge(backend),
    }
    make = judges.get(settings.judge)
    return None if make is None else make()


def _alike(semantic: SemanticCache) -> Callable[[Cached, str], Awaitable[float]]:
    async def alike(cached: Cached, fresh: str) -> float:
        if semantic.learning is None:
            return await semantic.similarity(cached.text, fresh)
        return await semantic.learning.alike(cached.entry, cached.text, fresh)

    return alike
