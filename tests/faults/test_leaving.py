"""A client that disconnects at the moment when its answer is ready, or has failed: each result has an owner."""

import asyncio
import gc
from typing import Any

import pytest
from starlette.requests import ClientDisconnect, Request

from kvproxy.errors import UpstreamUnreachable
from kvproxy.http.deadlines_and_disconnects import Deadline, Deadlines


@pytest.mark.parametrize("steps", range(8))
@pytest.mark.parametrize("fails", [True, False])
async def test_what_is_ready_as_the_client_leaves_is_taken_or_never_finished(steps: int, fails: bool) -> None:
    """An unread error makes asyncio log a traceback, and an unread answer stays open."""
    complaints: list[dict[str, Any]] = []
    asyncio.get_running_loop().set_exception_handler(lambda loop, context: complaints.append(context))
    leaves, finished = asyncio.Event(), []

    async def receive() -> dict[str, str]:
        await leaves.wait()
        return {"type": "http.disconnect"}

    async def work() -> str:
        leaves.set()
        for _ in range(steps):
            await asyncio.sleep(0)
        finished.append("an answer that somebody must close")
        if fails:
            raise UpstreamUnreachable("it broke off")
        return finished[0]

    request = Request({"type": "http", "headers": []}, receive)
    try:
        taken = await Deadline(Deadlines(60.0, str)).cancel_when_over(request.receive, work())
    except UpstreamUnreachable:
        assert fails
    except ClientDisconnect:
        assert not finished
    else:
        assert [taken] == finished
    # The young generations have all objects of this test.
    gc.collect(1)
    await asyncio.sleep(0)
    assert complaints == []
