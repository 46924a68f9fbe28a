"""A log of comparisons between cached and fresh answers, from which the policy `learned` learns.

Observations can be deleted once a snapshot of the policy's state (`Learner`) includes them.
"""

import json
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any, Literal

from kvproxy.index.entry import learning_namespace
from kvproxy.index.store.database import Database

Source = Literal["answer", "undecided", "user", "served"]
"""Origin: a fresh answer, whose comparison can be undecided, a person's verdict (`user`), or a count of hits (`served`)."""
Audit = tuple[bool, bool]
"""Two verdicts on whether two answers are equal: of the comparison of facts, and of the model."""


@dataclass(frozen=True, slots=True)
class Observation:
    """A comparison of a cached answer with a fresh answer, and the hits in the namespace since its last observation."""

    entry: str  # Id of the cached answer; empty if only hits are counted.
    right: bool  # The answers are equal, or a person approved the cached answer.
    source: Source
    accepted: bool  # The policy accepted the cached answer, but the request was forwarded.
    created: float
    namespace: str = ""
    answer: str = ""  # Class of the cached answer, see `answer_classes`.
    features: tuple[float, ...] | None = None  # Inputs of the error model, see `compute_features`.
    error: float | None = None  # Result of the error model.
    chance: float = 1.0  # Probability with which this request was forwarded for a comparison.
    vetoes: tuple[str, ...] = ()  # Names of the guards that vetoed.
    joined: str = ""  # Class that the fresh answer joined.
    checked: bool = False  # The policy `checked` accepted the answer.
    repeat: bool = False  # The questions are equal, so answers differ by an error of the judge or at random.
    served: int = 0  # Hits in the namespace since the last observation.
    risk: float = 0.0  # Sum of the estimated errors of these hits, without those of `checked`.
    served_by_checked: int = 0  # Hits that the policy `checked` decided, among `served`.
    merged: tuple[str, ...] = ()  # Classes that became part of the class `joined`.
    audits: tuple[Audit, ...] = ()  # Comparisons of facts that the model judged, too.
    is_new: bool = False  # The fresh answer starts the class `joined`.
    hits: tuple[tuple[str, int], ...] = ()  # Numbers of these hits by class.
    number: int = 0  # Position in the log, which the database assigns.

    @classmethod
    def from_verdict(cls, entry: str, right: bool, namespace: str = "") -> "Observation":
        return cls(entry, right, "user", False, time.time(), learning_namespace(namespace))

    def row(self) -> dict[str, Any]:
        details = json.dumps({name: getattr(self, name) for name in _DETAILS})
        return {name: getattr(self, name) for name in _COLUMNS} | {"details": details}

    @classmethod
    def from_row(cls, row: Mapping[str, Any]) -> "Observation":
        values = json.loads(row["details"])
        values |= {name: row[name] for name in (*_COLUMNS, "number")}
        values |= {name: bool(values[name]) for name in ("right", "accepted")}
        values |= {
            name: tuple(values[name]) for name in ("features", "vetoes", "merged") if values.get(name) is not None
        }
        values["audits"] = tuple((facts, model) for facts, model in values.get("audits", ()))
        values["hits"] = tuple((name, count) for name, count in values.get("hits", ()))
        return cls(**values)


_COLUMNS = ("entry", "right", "source", "accepted", "created", "namespace")
_DETAILS = tuple(field.name for field in fields(Observation) if field.name not in (*_COLUMNS, "number"))
_SELECTED = 'number, entry, "right", source, accepted, created, namespace, details'
_INSERT = (
    'insert into observations (entry, "right", source, accepted, created, namespace, details)'
    " values (:entry, :right, :source, :accepted, :created, :namespace, :details)"
)
_SAVE = (
    "insert into learned (namespace, number, state) values (:namespace, :number, :state) on conflict (namespace) do update"
    " set number = excluded.number, state = excluded.state where excluded.number >= learned.number"
)
_COUNTS = (
    "coalesce(sum(case when source = 'answer' then 1 else 0 end), 0) as observed,"
    " coalesce(sum(case when source = 'answer' and \"right\" then 1 else 0 end), 0) as agreed,"
    " coalesce(sum(case when source = 'answer' and accepted then 1 else 0 end), 0) as accepted,"
    " coalesce(sum(case when source = 'answer' and accepted and not \"right\" then 1 else 0 end), 0) as accepted_wrong"
)
# This row of `learned` is no namespace: it counts the deleted undecided comparisons of accepted answers.
_UNDECIDED = "(undecided)"
_SUMMARY = (
    'select kept.observed + pruned.observed as observed, kept.agreed + pruned.agreed as "right",'
    " kept.accepted + pruned.accepted as accepted, kept.accepted_wrong + pruned.accepted_wrong as accepted_wrong,"
    ' (select count(*) from observations where not "right" and number in'
    " (select max(number) from observations where source = 'user' group by entry)) as rejected,"
    " (select count(*) from observations where source = 'undecided' and accepted)"
    f" + coalesce((select pruned from learned where namespace = '{_UNDECIDED}'), 0) as accepted_undecided"
    f" from (select {_COUNTS} from observations) as kept, pruned_totals as pruned"
)
# The newest row stays, so that SQLite never reuses a number.
_PRUNABLE = (
    "source != 'user' and number < (select max(number) from observations) and (number <= (select learned.number from learned"
    " where learned.namespace = observations.namespace) or (number <= (select max(number) from observations) - :keep"
    " and not exists (select 1 from learned where learned.namespace = observations.namespace)))"
)
_PRUNE_TOTALS = "update pruned_totals set " + ", ".join(
    f"{name} = {name} + (select {name} from (select {_COUNTS} from observations where {_PRUNABLE}) as pruned)"
    for name in ("observed", "agreed", "accepted", "accepted_wrong")
)
_PRUNE_UNDECIDED = (
    f"insert into learned (namespace, number, state, pruned) select '{_UNDECIDED}', -1, '', count(*) from observations"
    f" where source = 'undecided' and accepted and {_PRUNABLE}"
    " on conflict (namespace) do update set pruned = learned.pruned + excluded.pruned"
)


class Observations:
    """Log of compared responses and of people's verdicts. Thread-safe. A power failure may lose the latest."""

    def __init__(self, database: Database) -> None:
        self._database = database

    def add(self, observations: Sequence[Observation]) -> None:
        with self._database.transaction(durable=False) as run:
            run.executemany(_INSERT, [observation.row() for observation in observations])

    def list_since(self, namespace: str, after_number: int, limit: int) -> list[Observation]:
        sql = (
            f"select {_SELECTED} from observations where namespace = :namespace and number > :number"
            " order by number limit :limit"
        )
        rows = self._database.query(sql, {"namespace": namespace, "number": after_number, "limit": limit})
        return [Observation.from_row(row) for row in rows]

    def rejected_entries(self, ids: Sequence[str]) -> set[str]:
        """Return the entries whose last verdict by a person is a rejection."""
        chosen, values = self._database.in_list("entry", ids)
        sql = (
            'select entry from observations where not "right" and number in (select max(number) from observations'
            f" where source = 'user' and {chosen} group by entry)"
        )
        return {row["entry"] for row in self._database.query(sql, values)}

    def all_rejected_entries(self) -> set[str]:
        """Return all entries whose last verdict by a person is a rejection, also removed ones."""
        sql = (
            'select entry from observations where not "right" and number in (select max(number) from observations'
            " where source = 'user' group by entry)"
        )
        return {row["entry"] for row in self._database.query(sql, {})}

    def snapshot(self, namespace: str) -> str | None:
        rows = self._database.query("select state from learned where namespace = :namespace", {"namespace": namespace})
        return str(rows[0]["state"]) if rows else None

    def save_snapshot(self, namespace: str, last_number: int, state: str) -> None:
        """Save the learned policy's state after the observation `last_number`, unless a later state is already saved."""
        with self._database.transaction(durable=False) as run:
            run(_SAVE, {"namespace": namespace, "number": last_number, "state": state})

    def summary(self) -> dict[str, int]:
        return {name: int(value) for name, value in self._database.query(_SUMMARY)[0].items()}

    def prune(self, keep: int) -> int:
        """Delete old observations, which `summary` still counts, and return their number.

        Old are those that a snapshot includes and, in namespaces without a snapshot, all except the log's newest `keep`. Verdicts
        of people and the newest observation are never deleted.
        """
        with self._database.transaction(durable=False) as run:
            run(_PRUNE_TOTALS, {"keep": keep})
            run(_PRUNE_UNDECIDED, {"keep": keep})
            run("update learned set pruned = number where pruned < number")
            return len(run(f"delete from observations where {_PRUNABLE} returning number", {"keep": keep}))

    def last_pruned_number(self, namespace: str) -> int:
        rows = self._database.query("select pruned from learned where namespace = :namespace", {"namespace": namespace})
        return int(rows[0]["pruned"]) if rows else 0

    def close(self) -> None:
        self._database.close()
