"""The order of lookups and background jobs on the threads of the models."""

import asyncio
import threading
from collections.abc import Sequence

import pytest

from kvproxy.index.search import lookup_queue
from kvproxy.index.search.lookup import Lookup, LookupRequest
from kvproxy.index.search.lookup_queue import LookupQueue


async def order_of(jobs: int, lookups: int) -> list[str]:
    """Return the order in which jobs and lookups ran that were waiting together, the jobs first."""
    ran, blocked = list[str](), threading.Event()

    def look_up(request: LookupRequest) -> Lookup:
        ran.append(request.question)
        return request.without_result()

    def prepare(requests: Sequence[LookupRequest]) -> None: ...

    queue = LookupQueue(prepare, look_up, threads=1, size=64)
    try:
        first = asyncio.ensure_future(queue.run_in_background(blocked.wait))
        waiting = [asyncio.ensure_future(queue.run_in_background(lambda: ran.append("job"))) for _ in range(jobs)]
        found = [asyncio.ensure_future(queue.find(LookupRequest("n", "lookup"))) for _ in range(lookups)]
        await asyncio.sleep(0)
        blocked.set()
        await asyncio.gather(first, *waiting, *found)
    finally:
        queue.close()
    return ran


async def test_lookups_run_before_background_jobs() -> None:
    assert await order_of(jobs=3, lookups=6) == ["lookup"] * 6 + ["job"] * 3


async def test_a_job_that_waits_too_long_runs_after_the_next_batch(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lookup_queue, "_BACKGROUND_SECONDS", 0.0)
    assert (await order_of(jobs=1, lookups=6)).index("job") == 4
