"""Observations in the database of the responses."""

from collections.abc import Sequence

from kvproxy.index.store.database import Database
from kvproxy.index.store.observations import Observation

_COLUMNS = 'number, entry, "right", source, accepted, created, namespace, details'
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
_SUMMARY = (
    'select kept.observed + pruned.observed as observed, kept.agreed + pruned.agreed as "right",'
    " kept.accepted + pruned.accepted as accepted, kept.accepted_wrong + pruned.accepted_wrong as accepted_wrong,"
    ' (select count(*) from observations where not "right" and number in'
    " (select max(number) from observations where source = 'user' group by entry)) as rejected"
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


class SqlObservations:
    """Observations in a database; see `Observations`. Thread-safe.

    A commit survives a killed process. A power failure may lose the last observations.
    """

    def __init__(self, database: Database) -> None:
        self._database = database

    def add(self, observations: Sequence[Observation]) -> None:
        with self._database.transaction(durable=False) as run:
            run.executemany(_INSERT, [each.row() for each in observations])

    def since(self, namespace: str, number: int, limit: int) -> list[Observation]:
        sql = (
            f"select {_COLUMNS} from observations where namespace = :namespace and number > :number"
            " order by number limit :limit"
        )
        rows = self._database.query(sql, {"namespace": namespace, "number": number, "limit": limit})
        return [Observation.from_row(row) for row in rows]

    def rejected(self, ids: Sequence[str]) -> set[str]:
        sql = (
            'select entry from observations where not "right" and number in (select max(number) from observations'
            f" where source = 'user' and {self._database.is_in('entry', 'ids')} group by entry)"
        )
        return {row["entry"] for row in self._database.query(sql, {"ids": self._database.array(ids)})}

    def snapshot(self, namespace: str) -> str | None:
        rows = self._database.query("select state from learned where namespace = :namespace", {"namespace": namespace})
        return str(rows[0]["state"]) if rows else None

    def save(self, namespace: str, number: int, state: str) -> None:
        with self._database.transaction(durable=False) as run:
            run(_SAVE, {"namespace": namespace, "number": number, "state": state})

    def summary(self) -> dict[str, int]:
        return {name: int(value) for name, value in self._database.query(_SUMMARY)[0].items()}

    def prune(self, keep: int) -> int:
        with self._database.transaction(durable=False) as run:
            run(_PRUNE_TOTALS, {"keep": keep})
            run("update learned set pruned = number where pruned < number")
            return len(run(f"delete from observations where {_PRUNABLE} returning number", {"keep": keep}))

    def pruned(self, namespace: str) -> int:
        rows = self._database.query("select pruned from learned where namespace = :namespace", {"namespace": namespace})
        return int(rows[0]["pruned"]) if rows else 0

    def close(self) -> None:
        self._database.close()
