"""What became of cached answers: whether they were right for other questions. A log that every proxy on a store shares.

What a namespace has learned is a fold over this log (`learned.learner`), with a snapshot now and then so that a start is quick.
"""

import json
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal, Protocol

Source = Literal["answer", "user", "served"]


@dataclass(frozen=True, slots=True)
class Observation:
    """Whether a cached answer was right for a question, or what was served meanwhile.

    Attributes:
        entry: id of the cached answer; empty where nothing was compared.
        right: it was.
        source: `answer` where it was compared with a fresh answer, `user` where a person said so, `served` where nothing was
            compared, and only the counts matter.
        accepted: the policy would have served it.
        created: seconds since the epoch.
        namespace: where it was asked.
        answer: class of the cached answer.
        features: what the score was made from; None where the policy made none.
        error: the probability of being wrong that was expected.
        chance: the probability with which it was compared rather than served.
        vetoes: guards that spoke between the two questions.
        joined: class of the fresh answer.
        checked: the policy `checked` accepted it.
        repeat: the two questions are the same, so that a difference tells of the judge and of the model.
        served, risk: answers served in this namespace since the last observation, and the sum of their errors.
        number: place in the log, given by the store.
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
        """What a person says of an entry."""
        return cls(entry, right, "user", False, time.time(), namespace)

    def details(self) -> str:
        """What only the learning reads, as JSON; numbers come back as they were."""
        return json.dumps({name: getattr(self, name) for name in _DETAILS})

    @classmethod
    def from_row(cls, row: Sequence[Any]) -> "Observation":
        """From the columns that `COLUMNS` names."""
        number, entry, right, source, accepted, created, namespace, details = row
        kept = json.loads(details) if details else {}
        if kept.get("features") is not None:
            kept["features"] = tuple(kept["features"])
        kept["vetoes"] = tuple(kept.get("vetoes", ()))
        return cls(entry, bool(right), source, bool(accepted), created, namespace, number=number, **kept)


_DETAILS = ("answer", "features", "error", "chance", "vetoes", "joined", "checked", "repeat", "served", "risk")
COLUMNS = 'number, entry, "right", source, accepted, created, namespace, details'


class Observations(Protocol):
    """Durable observations, shared by everything that works on one store."""

    def add(self, observations: Sequence[Observation]) -> None:
        """Keep observations; durable when this returns."""

    def since(self, namespace: str, number: int, limit: int) -> list[Observation]:
        """Observations of a namespace beyond a number, oldest first."""

    def rejected(self, ids: Sequence[str]) -> set[str]:
        """Entries that a person said are wrong, and nobody took it back."""

    def snapshot(self, namespace: str) -> str | None:
        """What was last saved of what a namespace has learned."""

    def save(self, namespace: str, number: int, state: str) -> None:
        """Save what a namespace has learned from the observations up to a number, unless a later state is there."""

    def summary(self) -> dict[str, int]:
        """Totals: `observed`, `right`, `accepted`, `accepted_wrong`, and entries `rejected`."""

    def prune(self, keep: int) -> int:
        """Delete what nobody reads again, in one transaction, and keep its share of the totals. How many were deleted.

        That is what the saved snapshot of its namespace has taken in; and where no snapshot was ever saved, because nothing
        learns there, all but the newest `keep` of the whole log. People's verdicts stay, and so does the newest row.
        """

    def pruned(self, namespace: str) -> int:
        """The number up to which observations of a namespace were deleted; a snapshot of at least that number is there."""

    def close(self) -> None:
        """Close the store."""


# For either kind of store.
M003 = (
    "alter table learned add column pruned bigint not null default 0",
    "create table pruned_totals (observed bigint not null, agreed bigint not null, accepted bigint not null,"
    " accepted_wrong bigint not null)",
    "insert into pruned_totals values (0, 0, 0, 0)",
)
# What is counted of comparisons, in SQL that both kinds of store know.
COUNTS = (
    "coalesce(sum(case when source = 'answer' then 1 else 0 end), 0) as observed,"
    " coalesce(sum(case when source = 'answer' and \"right\" then 1 else 0 end), 0) as agreed,"
    " coalesce(sum(case when source = 'answer' and accepted then 1 else 0 end), 0) as accepted,"
    " coalesce(sum(case when source = 'answer' and accepted and not \"right\" then 1 else 0 end), 0) as accepted_wrong"
)
# The newest row stays, so that SQLite never gives a number twice.
_DEAD = (
    "source != 'user' and number < (select max(number) from observations) and (number <= (select learned.number from learned"
    " where learned.namespace = observations.namespace) or (number <= (select max(number) from observations) - {keep}"
    " and not exists (select 1 from learned where learned.namespace = observations.namespace)))"
)


def pruning(keep: int) -> tuple[str, ...]:
    """The statements of `Observations.prune`, the last of which deletes."""
    dead = _DEAD.format(keep=int(keep))
    sums = ", ".join(
        f"{name} = {name} + (select {name} from (select {COUNTS} from observations where {dead}) as gone)"
        for name in ("observed", "agreed", "accepted", "accepted_wrong")
    )
    return (
        f"update pruned_totals set {sums}",
        "update learned set pruned = number where pruned < number",
        f"delete from observations where {dead}",
    )


def values(seen: Observation) -> tuple[Any, ...]:
    """The columns of an observation, in the order of the inserts."""
    return (seen.entry, seen.right, seen.source, seen.accepted, seen.created, seen.namespace, seen.details())


class ReplayObservations:
    """Observations that are gone with the process, for replays. One namespace is as many as another."""

    def __init__(self) -> None:
        self._rows: list[Observation] = []

    def add(self, observations: Sequence[Observation]) -> None:
        self._rows += [replace(seen, number=len(self._rows) + place) for place, seen in enumerate(observations, 1)]

    def since(self, namespace: str, number: int, limit: int) -> list[Observation]:
        newer = self._rows[number : number + limit]
        return [seen for seen in newer if seen.namespace == namespace]

    def rejected(self, ids: Sequence[str]) -> set[str]:
        return set()

    def snapshot(self, namespace: str) -> str | None:
        return None

    def save(self, namespace: str, number: int, state: str) -> None:
        """Nothing: there will be no start."""

    def summary(self) -> dict[str, int]:
        return {}

    def prune(self, keep: int) -> int:
        return 0

    def pruned(self, namespace: str) -> int:
        return 0

    def close(self) -> None:
        self._rows.clear()
