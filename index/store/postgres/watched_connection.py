"""A connection to PostgreSQL that is closed if the server does not answer."""

import time
from typing import Any

import psycopg
from psycopg.abc import RV, PQGen
from psycopg.rows import Row
from psycopg.waiting import READY_NONE, READY_R


class ServerSilent(psycopg.OperationalError):
    """The server did not answer on any connection."""


class ServerAnswers:
    """The time of a server's last answer on any of its connections. Thread-safe.

    Attributes:
        max_silence: seconds without an answer after which a statement that waits for one fails.
    """

    def __init__(self, max_silence: float) -> None:
        self.max_silence = max_silence
        self._last = time.monotonic()

    def record(self) -> None:
        self._last = time.monotonic()

    def check(self, began: float) -> None:
        """Raise ServerSilent if no answer came for too long. `began`: when the statement was sent."""
        if time.monotonic() - max(began, self._last) > self.max_silence:
            raise ServerSilent(f"the server has not answered for {self.max_silence:g} s")


class WatchedConnection(psycopg.Connection[Row]):
    """A statement fails, and the connection is closed, if `answers` ends the wait. Without `answers`, it waits."""

    answers: ServerAnswers | None = None

    def wait(self, gen: PQGen[RV], *args: Any, **options: Any) -> RV:
        try:
            return super().wait(gen if self.answers is None else _watch(gen, self.answers), *args, **options)
        except ServerSilent:
            self.pgconn.finish()
            raise


def _watch(gen: PQGen[RV], answers: ServerAnswers) -> PQGen[RV]:
    began = time.monotonic()
    try:
        state = next(gen)
        while True:
            # psycopg resumes a generator ten times a second without an event, and after an interrupt without a value.
            ready = (yield state) or READY_NONE
            if ready & READY_R:
                answers.record()
            elif not ready:
                answers.check(began)
            state = gen.send(ready)
    except StopIteration as end:
        result: RV = end.value
        return result
