"""Observations in PostgreSQL, shared by every proxy on the store."""

from collections.abc import Sequence
from typing import Any

from kvproxy.index.store.observations import COLUMNS, COUNTS, Observation, pruning, values
from kvproxy.index.store.postgres.server import PostgresServer

_REJECTED = (
    'select entry from (select distinct on (entry) entry, "right" from observations where entry = any(%s)'
    " and source = 'user' order by entry, number desc) as verdicts where not \"right\""
)
_ADDING = 0x6B766F6273  # "kvobs"


class PostgresObservations:
    """The `Observations` of a store in PostgreSQL. Safe to use from several threads.

    Args:
        url: see `PostgresServer`.

    Raises:
        CacheStoreError: the server cannot be used.
    """

    def __init__(self, url: str) -> None:
        self._server = PostgresServer(url, connections=2)

    def add(self, observations: Sequence[Observation]) -> None:
        sql = (
            'insert into observations (entry, "right", source, accepted, created, namespace, details)'
            " values (%s, %s, %s, %s, %s, %s, %s)"
        )
        with self._server.connection() as connection, connection.transaction(), connection.cursor() as cursor:
            # One writer at a time, so that numbers become visible in their order and nobody reads past one that is to come.
            cursor.execute("select pg_advisory_xact_lock(%s)", [_ADDING])
            cursor.executemany(sql, list(map(values, observations)))

    def since(self, namespace: str, number: int, limit: int) -> list[Observation]:
        sql = f"select {COLUMNS} from observations where namespace = %s and number > %s order by number limit %s"
        return [Observation.from_row(list(row.values())) for row in self._rows(sql, [namespace, number, limit])]

    def rejected(self, ids: Sequence[str]) -> set[str]:
        return {row["entry"] for row in self._rows(_REJECTED, [list(ids)])}

    def snapshot(self, namespace: str) -> str | None:
        rows = self._rows("select state from learned where namespace = %s", [namespace])
        return str(rows[0]["state"]) if rows else None

    def save(self, namespace: str, number: int, state: str) -> None:
        sql = (
            "insert into learned (namespace, number, state) values (%s, %s, %s) on conflict (namespace) do update"
            " set number = excluded.number, state = excluded.state where excluded.number >= learned.number"
        )
        with self._server.connection() as connection:
            connection.execute(sql, [namespace, number, state])

    def summary(self) -> dict[str, int]:
        sql = (
            'select kept.observed + pruned.observed as observed, kept.agreed + pruned.agreed as "right",'
            " kept.accepted + pruned.accepted as accepted,"
            " kept.accepted_wrong + pruned.accepted_wrong as accepted_wrong,"
            " (select count(*) from (select distinct on (entry) \"right\" from observations where source = 'user'"
            '  order by entry, number desc) as verdicts where not "right") as rejected'
            f" from (select {COUNTS} from observations) as kept, pruned_totals as pruned"
        )
        return {name: int(value) for name, value in self._rows(sql, [])[0].items()}

    def prune(self, keep: int) -> int:
        with self._server.connection() as connection, connection.transaction():
            # Nobody adds or saves meanwhile, so that all statements speak of the same rows and snapshots.
            connection.execute("select pg_advisory_xact_lock(%s)", [_ADDING])
            connection.execute("lock table learned in share row exclusive mode")
            return [connection.execute(sql.encode()) for sql in pruning(keep)][-1].rowcount

    def pruned(self, namespace: str) -> int:
        rows = self._rows("select pruned from learned where namespace = %s", [namespace])
        return int(rows[0]["pruned"]) if rows else 0

    def _rows(self, sql: str, values: Sequence[Any]) -> list[dict[str, Any]]:
        with self._server.connection() as connection:
            return connection.execute(sql.encode(), values).fetchall()

    def close(self) -> None:
        self._server.close()
