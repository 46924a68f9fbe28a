"""Where a request was forwarded although a similar one is stored: compare the two answers, and let the policy learn from it.

All of it happens off the request path, one comparison after the other; when too many wait, further ones are dropped and counted.
"""

import asyncio
import contextlib
import logging
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, replace

from kvproxy.apis.request import ApiRequest
from kvproxy.backends.protocol import Backend
from kvproxy.flow.learning.judges import EqualityJudge, Judge, ModelJudge, SimilarityJudge, answer_text
from kvproxy.index.entry import Entry
from kvproxy.index.errors import CacheStoreError
from kvproxy.index.lookup import Candidate
from kvproxy.index.observations import Observation
from kvproxy.index.semantic import SemanticCache
from kvproxy.settings import CacheSettings

_WAITING = 64
_log = logging.getLogger("kvproxy")


@dataclass(frozen=True, slots=True)
class _Comparison:
    request: ApiRequest
    candidate: Candidate
    fresh: Entry


class Observer:
    """Compares answers in the background.

    Args:
        semantic: knows the cached answers, and learns.
        judge: says whether two answers are the same.
        clock: seconds since the epoch.
    """

    def __init__(self, semantic: SemanticCache, judge: Judge, clock: Callable[[], float] = time.time) -> None:
        self._semantic = semantic
        self._judge = judge
        self._clock = clock
        self._queue: asyncio.Queue[_Comparison] = asyncio.Queue(_WAITING)
        self._task: asyncio.Task[None] | None = None
        self.counts: Counter[str] = Counter()
        """Comparisons by result: right, wrong, undecided, dropped."""

    def compare(self, request: ApiRequest, candidate: Candidate, fresh: Entry) -> None:
        """Have a fresh answer compared with a candidate's, later."""
        if self._task is None:
            self._task = asyncio.create_task(self._work())
        try:
            self._queue.put_nowait(_Comparison(request, candidate, fresh))
        except asyncio.QueueFull:
            self.counts["dropped"] += 1

    async def idle(self) -> None:
        """Wait until everything that was handed in is done."""
        await self._queue.join()

    async def close(self) -> None:
        """Stop; what still waits is dropped."""
        if self._task is not None:
            self._task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._task

    async def _work(self) -> None:
        while True:
            comparison = await self._queue.get()
            try:
                self.counts[await self._observe(comparison)] += 1
            except CacheStoreError as error:
                _log.error("an observation was not stored: %s", error)
            except Exception as error:
                # One answer that cannot be compared must not end all comparing.
                _log.error("an answer could not be compared", exc_info=error)
            finally:
                self._queue.task_done()

    async def _observe(self, comparison: _Comparison) -> str:
        candidate, fresh = comparison.candidate, comparison.fresh
        entry = await self._semantic.entry(candidate.id)
        cached = answer_text(entry.response, entry.endpoint) if entry is not None else None
        said = answer_text(fresh.response, fresh.endpoint)
        if cached is None or said is None:
            return "undecided"
        right = await self._judge.same(comparison.request, fresh.prompt, cached, said)
        if right is None:
            return "undecided"
        policy = self._semantic.policy
        accepted = candidate.verdict in ("accepted", "explored")
        seen = Observation(candidate.id, candidate.score, right, policy.scorer, "answer", accepted, self._clock())
        if not right:
            # The fresh answer would be as wrong for the candidate's question. An entry that comes into being where answers
            # differ must not look as good as one of which nothing is known.
            await self._semantic.observe(seen, replace(seen, entry=fresh.id, source="mirror", accepted=False))
            return "wrong"
        await self._semantic.observe(seen)
        if policy.learns:
            # As in vCache: what a neighbour's answer serves needs no vector of its own, and its observations go to the neighbour.
            await self._semantic.unindex([fresh.id])
        return "right"


def make_observer(semantic: SemanticCache, backend: Backend, settings: CacheSettings) -> Observer | None:
    """The observer that the settings ask for, if any."""
    judges: dict[str, Callable[[], Judge]] = {
        "equality": EqualityJudge,
        "similarity": lambda: SimilarityJudge(semantic.similarity, settings.judge_similarity),
        "model": lambda: ModelJudge(backend),
    }
    make = judges.get(settings.judge)
    return Observer(semantic, make()) if make is not None else None
