"""Observations in PostgreSQL, shared by every proxy on the store."""

from collections.abc import Sequence
from dataclasses import astuple
from typing import Any

from kvproxy.index.observations import NEWEST, History, Observation
from kvproxy.index.store.postgres_server import PostgresServer

_NEWEST = (
    'select e.entry, o.score, o."right" from unnest(%s::text[]) as e(entry) cross join lateral'
    ' (select number, score, "right" from observations where entry = e.entry and scorer = %s and score is not null'
    " order by number desc limit %s) as o order by o.number"
)
_VERDICTS = (
    "select distinct on (entry) entry, \"right\" from observations where entry = any(%s) and source = 'user'"
    " order by entry, number desc"
)


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
            'insert into observations (entry, score, "right", scorer, source, accepted, created)'
            " values (%s, %s, %s, %s, %s, %s, %s)"
        )
        with self._server.connection() as connection, connection.transaction(), connection.cursor() as cursor:
            cursor.executemany(sql, [astuple(observation) for observation in observations])

    def histories(self, ids: Sequence[str], scorer: str) -> dict[str, History]:
        scores: dict[str, list[float]] = {id: [] for id in ids}
        rights: dict[str, list[bool]] = {id: [] for id in ids}
        for row in self._rows(_NEWEST, [list(scores), scorer, NEWEST]):
            scores[row["entry"]].append(row["score"])
            rights[row["entry"]].append(row["right"])
        rejected = {row["entry"] for row in self._rows(_VERDICTS, [list(scores)]) if not row["right"]}
        found = {id: History(tuple(scores[id]), tuple(rights[id]), id in rejected) for id in scores}
        return {id: history for id, history in found.items() if history != History()}

    def recent(self, scorer: str, limit: int) -> list[tuple[str, float, bool]]:
        sql = (
            'select entry, score, "right" from observations where scorer = %s and score is not null'
            " order by number desc limit %s"
        )
        return [(row["entry"], row["score"], row["right"]) for row in self._rows(sql, [scorer, limit])]

    def summary(self) -> dict[str, int]:
        sql = (
            "select count(*) filter (where source = 'answer') as observed,"
            ' count(*) filter (where source = \'answer\' and "right") as "right",'
            " count(*) filter (where source = 'answer' and accepted) as accepted,"
            " count(*) filter (where source = 'answer' and accepted and not \"right\") as accepted_wrong,"
            " (select count(*) from (select distinct on (entry) \"right\" from observations where source = 'user'"
            '  order by entry, number desc) as verdicts where not "right") as rejected from observations'
        )
        return {name: int(value) for name, value in self._rows(sql, [])[0].items()}

    def prune(self, keep: int) -> int:
        sql = (
            "delete from observations where source != 'user' and number <= (select max(number) from observations) - %s"
        )
        with self._server.connection() as connection:
            return connection.execute(sql, [keep]).rowcount

    def _rows(self, sql: str, values: Sequence[Any]) -> list[dict[str, Any]]:
        with self._server.connection() as connection:
            return connection.execute(sql.encode(), values).fetchall()

    def close(self) -> None:
        self._server.close()
