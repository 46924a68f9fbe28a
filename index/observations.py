"""What became of the policies' scores: observations of cached answers that were right or wrong for another question."""

import contextlib
import sqlite3
import threading
import time
from collections.abc import Iterator, Sequence
from dataclasses import astuple, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, Protocol

from kvproxy.index.errors import CacheStoreError
from kvproxy.index.steps import apply_steps, connect

if TYPE_CHECKING:
    from sqlite_utils import Database

Source = Literal["answer", "mirror", "user"]
NEWEST = 100  # Observations of one entry that count; older ones speak of an older world.


@dataclass(frozen=True, slots=True)
class Observation:
    """Whether a cached answer was right for a question.

    Attributes:
        entry: id of the cached answer.
        score: what the scorer gave the two questions; None for a person's verdict without a question.
        right: it was.
        scorer: what made the score.
        source: `answer` where it was compared with a fresh answer, `mirror` where its own answer was the fresh one, `user`
            where a person said so.
        accepted: the policy served it, or would have.
        created: seconds since the epoch.
    """

    entry: str
    score: float | None
    right: bool
    scorer: str
    source: Source
    accepted: bool
    created: float

    @classmethod
    def verdict(cls, entry: str, right: bool, score: float | None = None, scorer: str = "") -> "Observation":
        """What a person says; with the score of the question that the entry was served for, if that is known."""
        return cls(entry, score, right, scorer, "user", score is not None, time.time())


@dataclass(frozen=True, slots=True)
class History:
    """What was observed of one entry, oldest first. `rejected`: a person said that it is wrong, and nobody took it back."""

    scores: tuple[float, ...] = ()
    rights: tuple[bool, ...] = ()
    rejected: bool = False


class Observations(Protocol):
    """Durable observations, shared by everything that works on one store."""

    def add(self, observations: Sequence[Observation]) -> None:
        """Keep observations; durable when this returns."""

    def histories(self, ids: Sequence[str], scorer: str) -> dict[str, History]:
        """The newest observations of each entry that has any, by one scorer, and whether it is rejected."""

    def recent(self, scorer: str, limit: int) -> list[tuple[str, float, bool]]:
        """(entry, score, right) of the newest observations with a score, newest first."""

    def summary(self) -> dict[str, int]:
        """Totals: `observed`, `right`, `accepted`, `accepted_wrong`, and entries `rejected`."""

    def prune(self, keep: int) -> int:
        """Delete all but the newest, people's verdicts aside. How many were deleted."""

    def close(self) -> None:
        """Close the store."""


def m001_observations(db: "Database") -> None:
    columns = {"number": int, "entry": str, "score": float, "right": int, "scorer": str, "source": str}
    table = db["observations"]
    table.create(columns | {"accepted": int, "created": float}, pk="number")
    table.create_index(["entry", "number"])
    db.execute("create index users_verdicts on observations (entry, number) where source = 'user'")
    table.create_index(["scorer", "number"])


class SqliteObservations:
    """Observations in the file of the responses, over a connection of their own. Safe to use from several threads.

    Raises:
        CacheStoreError: the file cannot be used.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._lock = threading.Lock()
        with self._told():
            path.parent.mkdir(parents=True, exist_ok=True)
            self._connection = connect(path)
            apply_steps(self._connection, "kvproxy.observations", [m001_observations])

    def add(self, observations: Sequence[Observation]) -> None:
        sql = (
            "insert into observations (entry, score, right, scorer, source, accepted, created)"
            " values (?, ?, ?, ?, ?, ?, ?)"
        )
        with self._lock, self._told(), self._connection:
            self._connection.executemany(sql, map(astuple, observations))

    def histories(self, ids: Sequence[str], scorer: str) -> dict[str, History]:
        return {id: history for id in ids if (history := self._history(id, scorer)) != History()}

    def _history(self, id: str, scorer: str) -> History:
        newest = self._query(
            "select score, right from observations where entry = ? and scorer = ? and score is not null"
            " order by number desc limit ?",
            [id, scorer, NEWEST],
        )[::-1]
        verdict = self._query(
            "select right from observations where entry = ? and source = 'user' order by number desc limit 1", [id]
        )
        return History(
            tuple(score for score, _ in newest), tuple(bool(right) for _, right in newest), verdict == [(0,)]
        )

    def recent(self, scorer: str, limit: int) -> list[tuple[str, float, bool]]:
        rows = self._query(
            "select entry, score, right from observations where scorer = ? and score is not null"
            " order by number desc limit ?",
            [scorer, limit],
        )
        return [(entry, score, bool(right)) for entry, score, right in rows]

    def summary(self) -> dict[str, int]:
        compared = "source = 'answer'"
        counts = self._query(
            f"select coalesce(sum({compared}), 0), coalesce(sum({compared} and right), 0),"
            f" coalesce(sum({compared} and accepted), 0), coalesce(sum({compared} and accepted and not right), 0)"
            " from observations",
            [],
        )[0]
        rejected = self._query(
            "select count(*) from observations where not right and number in"
            " (select max(number) from observations where source = 'user' group by entry)",
            [],
        )[0]
        names = ("observed", "right", "accepted", "accepted_wrong", "rejected")
        return dict(zip(names, (*counts, *rejected), strict=True))

    def prune(self, keep: int) -> int:
        with self._lock, self._told(), self._connection:
            return int(
                self._connection.execute(
                    "delete from observations where source != 'user' and number <= (select max(number) from observations) - ?",
                    [keep],
                ).rowcount
            )

    def close(self) -> None:
        self._connection.close()

    def _query(self, sql: str, values: Sequence[Any]) -> list[tuple[Any, ...]]:
        with self._lock, self._told():
            return list(self._connection.execute(sql, values))

    @contextlib.contextmanager
    def _told(self) -> Iterator[None]:
        """SQLite's errors as the store's own."""
        try:
            yield
        except (sqlite3.Error, OSError) as error:
            raise CacheStoreError(
                f"the store {self._path} failed ({error}): check the disk, and kvproxy doctor"
            ) from error
