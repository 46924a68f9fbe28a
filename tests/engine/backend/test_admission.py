"""Admission limits concurrent requests, serves waiting ones in order, and leaves no waiter behind."""

import asyncio
import random

import pytest

from kvproxy.backends.admission import Admission
from kvproxy.errors import Overloaded


async def test_waiting_requests_are_served_in_order_and_excess_ones_rejected() -> None:
    admission = Admission(2, 3, 60.0)
    order: list[int] = []

    async def visit(number: int) -> None:
        await admission.enter()
        order.append(number)

    for number in range(2):
        await visit(number)
    waiting = [asyncio.create_task(visit(number)) for number in range(2, 5)]
    await asyncio.sleep(0)
    assert (admission.active, admission.waiting) == (2, 3)
    with pytest.raises(Overloaded) as raised:
        await admission.enter()
    assert raised.value.retry_after == 1.0
    for _ in range(5):
        admission.leave()
        await asyncio.sleep(0)
    await asyncio.gather(*waiting)
    assert (order, admission.active, admission.waiting) == ([0, 1, 2, 3, 4], 0, 0)


async def test_waiting_ends_with_the_timeout(caplog: pytest.LogCaptureFixture) -> None:
    admission = Admission(1, 1, 0.01)
    await admission.enter()
    # The client reads no settings; the log names them, once.
    for _ in range(3):
        with pytest.raises(Overloaded, match="the proxy is overloaded: retry after 1 s"):
            await admission.enter()
    assert len([message for message in caplog.messages if "limits.queue_seconds" in message]) == 1
    assert (admission.active, admission.waiting) == (1, 0)
    admission.leave()
    await admission.enter()


@pytest.mark.parametrize("seed", range(6))
async def test_random_requests_with_cancellations(seed: int) -> None:
    chance, admission, inside, turned_away = random.Random(seed), Admission(3, 5, 0.02), 0, 0

    async def visit() -> None:
        nonlocal inside, turned_away
        await asyncio.sleep(chance.random() * 0.05)
        try:
            await admission.enter()
        except Overloaded:
            turned_away += 1
            return
        inside += 1
        assert inside <= 3
        try:
            await asyncio.sleep(chance.random() * 0.01)
        finally:
            inside -= 1
            admission.leave()

    visitors = [asyncio.create_task(visit()) for _ in range(60)]
    for visitor in chance.sample(visitors, 20):
        await asyncio.sleep(0.001)
        visitor.cancel()
    results = await asyncio.gather(*visitors, return_exceptions=True)
    assert not [
        each for each in results if isinstance(each, Exception) and not isinstance(each, asyncio.CancelledError)
    ]
    assert (admission.active, admission.waiting) == (0, 0)
