"""The door of a backend: never more inside than there may be, nobody forgotten in front of it."""

import asyncio
import random

import pytest

from kvproxy.backends.admission import Admission
from kvproxy.errors import Overloaded


async def test_the_first_come_are_served_first_and_the_others_turned_away() -> None:
    door = Admission(2, 3, 60.0)
    order: list[int] = []

    async def visit(number: int) -> None:
        await door.enter()
        order.append(number)

    for number in range(2):
        await visit(number)
    waiting = [asyncio.create_task(visit(number)) for number in range(2, 5)]
    await asyncio.sleep(0)
    assert (door.under_way, door.waiting) == (2, 3)
    with pytest.raises(Overloaded) as told:
        await door.enter()
    assert told.value.retry_after == 1.0
    for _ in range(5):
        door.leave()
        await asyncio.sleep(0)
    await asyncio.gather(*waiting)
    assert (order, door.under_way, door.waiting) == ([0, 1, 2, 3, 4], 0, 0)


async def test_nobody_waits_for_ever() -> None:
    door = Admission(1, 1, 0.01)
    await door.enter()
    with pytest.raises(Overloaded, match="within"):
        await door.enter()
    assert (door.under_way, door.waiting) == (1, 0)
    door.leave()
    await door.enter()


@pytest.mark.parametrize("seed", range(20))
async def test_however_many_come_and_go(seed: int) -> None:
    """Random visitors, some of whom give up: the door is empty in the end, and never held too many."""
    chance, door, inside, turned_away = random.Random(seed), Admission(3, 5, 0.02), 0, 0

    async def visit() -> None:
        nonlocal inside, turned_away
        await asyncio.sleep(chance.random() * 0.05)
        try:
            await door.enter()
        except Overloaded:
            turned_away += 1
            return
        inside += 1
        assert inside <= 3
        try:
            await asyncio.sleep(chance.random() * 0.01)
        finally:
            inside -= 1
            door.leave()

    visitors = [asyncio.create_task(visit()) for _ in range(60)]
    for visitor in chance.sample(visitors, 20):
        await asyncio.sleep(0.001)
        visitor.cancel()
    results = await asyncio.gather(*visitors, return_exceptions=True)
    assert not [
        each for each in results if isinstance(each, Exception) and not isinstance(each, asyncio.CancelledError)
    ]
    assert (door.under_way, door.waiting) == (0, 0)
