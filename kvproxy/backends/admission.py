"""How many requests a backend works on at once, how many may wait for it, and for how long. The others are told to come back."""

import asyncio
from collections import deque

from kvproxy.errors import Overloaded

RETRY_SECONDS = 1.0
"""After which a request that was turned away may come back."""


class Admission:
    """A bounded door. Who enters must leave.

    Args:
        most: requests under way at once.
        waiting: requests that may wait in front of it, first come, first served.
        seconds: how long one waits at most.
    """

    def __init__(self, most: int, waiting: int, seconds: float) -> None:
        self._most = most
        self._waiting = waiting
        self._seconds = seconds
        self._line: deque[asyncio.Future[None]] = deque()
        self.under_way = 0

    @property
    def waiting(self) -> int:
        """Requests in front of the door."""
        return len(self._line)

    async def enter(self) -> None:
        """Come in, perhaps after a while.

        Raises:
            Overloaded: too many wait already, or it took too long.
        """
        if self.under_way < self._most and not self._line:
            self.under_way += 1
            return
        if len(self._line) >= self._waiting:
            raise _turned_away("waiting", f"{self.under_way} requests are under way and {len(self._line)} wait")
        turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._line.append(turn)
        try:
            async with asyncio.timeout(self._seconds):
                await turn
        except BaseException as error:
            if turn.done() and not turn.cancelled():
                # The turn came in the same moment: it goes to the next.
                self.leave()
            elif turn in self._line:
                # Who made room may have found it given up, and taken it out.
                self._line.remove(turn)
            if isinstance(error, TimeoutError):
                raise _turned_away("waiting_seconds", f"no turn came within {self._seconds:g} s") from None
            raise

    def leave(self) -> None:
        """Make room for the next."""
        while self._line:
            turn = self._line.popleft()
            if not turn.done():
                # The place goes over from one to the other.
                turn.set_result(None)
                return
        self.under_way -= 1


def _turned_away(limit: str, why: str) -> Overloaded:
    error = Overloaded(f"too busy: {why}; try again, or raise the setting limits.{limit}")
    error.retry_after, error.limit = RETRY_SECONDS, limit
    return error
