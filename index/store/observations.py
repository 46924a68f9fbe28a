"""Observations: whether cached answers were right for other questions. All proxies on a store share this log.

The state of the learned policy is a fold over the log of its namespace (`learned.learner`), with snapshots for a quick start.
"""

import json
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal, Protocol

Source = Literal["answer", "user", "served"]


@dataclass(frozen=True, slots=True)
class Observation:
    """Whether a cached answer was right for a question, or the number of answers served without a comparison.

    Attributes:
        entry: id of the cached answer; empty without a comparison.
        right: it was right.
        source: `answer` after a comparison with a fresh answer, `user` for a person's verdict, `served` for counts only.
        accepted: the policy would have served it.
        created: seconds since the epoch.
        answer: class of the cached answer.
        features: input of the score; None if the policy computed no score.
        error: expected probability of a wrong answer.
        chance: the probability with which the answer was compared instead of served.
        vetoes: guards that fired between the two questions.
        joined: class of the fresh answer.
        checked: the policy `checked` accepted it.
        repeat: the two questions are equal, so that a difference measures the judge and the model.
        served, risk: answers served in this namespace since the last observation, and the sum of their expected errors.
        number: position in the log, set by the store.
    """

    entry: str
    right: bool
    source: Source
    accepted: bool
    created: float
    namespace: str = ""
    answer: str = ""
    features: tuple[float, ...] | None = None
    error: float | None = None
    chance: float = 1.0
    vetoes: tuple[str, ...] = ()
    joined: str = ""
    checked: bool = False
    repeat: bool = False
    served: int = 0
    risk: float = 0.0
    number: int = 0

    @classmethod
    def verdict(cls, entry: str, right: bool, namespace: str = "") -> "Observation":
        """Create the observation of a person's verdict on an entry."""
        return cls(entry, right, "user", False, time.time(), namespace)

    def row(self) -> dict[str, Any]:
        """Columns of the table, except for the number. Floats in the JSON column keep their exact value."""
        details = json.dumps({name: getattr(self, name) for name in _DETAILS})
        return {name: getattr(self, name) for name in _COLUMNS} | {"details": details}

    @classmethod
    def from_row(cls, row: Mapping[str, Any]) -> "Observation":
        values = json.loads(row["details"])
        values |= {name: row[name] for name in (*_COLUMNS, "number")}
        values |= {name: bool(values[name]) for name in ("right", "accepted")}
        for name in ("features", "vetoes"):
            values[name] = None if values[name] is None else tuple(values[name])
        return cls(**values)


_COLUMNS = ("entry", "right", "source", "accepted", "created", "namespace")
_DETAILS = ("answer", "features", "error", "chance", "vetoes", "joined", "checked", "repeat", "served", "risk")


class Observations(Protocol):
    """Durable observations, shared by all processes on one store."""

    def add(self, observations: Sequence[Observation]) -> None:
        """Store observations in one transaction."""

    def since(self, namespace: str, number: int, limit: int) -> list[Observation]:
        """Observations of a namespace beyond a number, oldest first."""

    def rejected(self, ids: Sequence[str]) -> set[str]:
        """Entries whose last verdict by a person is negative."""

    def snapshot(self, namespace: str) -> str | None:
        """The last saved state of a namespace."""

    def save(self, namespace: str, number: int, state: str) -> None:
        """Save the state of a namespace after the observation with a number, unless a later state is saved."""

    def summary(self) -> dict[str, int]:
        """Totals: `observed`, `right`, `accepted`, `accepted_wrong`, and entries `rejected`."""

    def prune(self, keep: int) -> int:
        """Delete observations in one transaction, add them to the totals, and return their number.

        An observation is deleted if the snapshot of its namespace includes it. In namespaces without a snapshot, the newest
        `keep` of the whole log stay. People's verdicts and the newest row stay.
        """

    def pruned(self, namespace: str) -> int:
        """The number up to which observations of a namespace were deleted. Its snapshot has at least this number."""

    def close(self) -> None:
        """Close the database."""


class ReplayObservations:
    """Observations in memory for replays. All namespaces share one numbering."""

    def __init__(self) -> None:
        self._rows: list[Observation] = []

    def add(self, observations: Sequence[Observation]) -> None:
        self._rows += [replace(each, number=len(self._rows) + place) for place, each in enumerate(observations, 1)]

    def since(self, namespace: str, number: int, limit: int) -> list[Observation]:
        return [each for each in self._rows[number : number + limit] if each.namespace == namespace]

    def rejected(self, ids: Sequence[str]) -> set[str]:
        return set()

    def snapshot(self, namespace: str) -> str | None:
        return None

    def save(self, namespace: str, number: int, state: str) -> None:
        """Do nothing: a replay has no restart."""

    def summary(self) -> dict[str, int]:
        return {}

    def prune(self, keep: int) -> int:
        return 0

    def pruned(self, namespace: str) -> int:
        return 0

    def close(self) -> None:
        self._rows.clear()
