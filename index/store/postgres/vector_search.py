"""Vector search in PostgreSQL: exact in small namespaces, with an HNSW graph for each large namespace."""

import contextlib
import hashlib
import logging
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import psycopg
from psycopg import sql

from kvproxy.index.search.vector_search import VectorSearch
from kvproxy.index.store.database import Row
from kvproxy.index.store.postgres.database import PostgresDatabase
from kvproxy.index.store.rows import QUESTION, read_questions
from kvproxy.index.store.store import Store
from kvproxy.index.store.store_types import StoredQuestion

MIN_GRAPH = 5_000  # Comparing fewer vectors takes some milliseconds.
_BUILD_BYTES = 2_500  # Memory per entry of a graph that is built.
_MAX_BUILD_BYTES = 4 * 2**30
# Steps from namespace to namespace in the index: counting all vectors would take minutes in a store of 100 million.
_COUNTS = """
with recursive names (namespace) as (
    (select namespace from vectors where embedder = %(embedder)s order by namespace limit 1)
    union all
    select (
        select namespace from vectors where embedder = %(embedder)s and namespace > names.namespace order by namespace limit 1
    ) from names where namespace is not null
), counts as (
    select namespace, (
        select count(*) from (
            select 1 from vectors where embedder = %(embedder)s and namespace = names.namespace limit %(limit)s
        ) as counted
    ) as there from names where namespace is not null
)
select namespace, there from counts where there > %(least)s"""
_log = logging.getLogger("kvproxy")


class PostgresSearch(VectorSearch):
    def __init__(self, store: Store, embedder: str, dim: int, *, min_graph: int = MIN_GRAPH) -> None:
        assert isinstance(store.database, PostgresDatabase)
        self._store = store
        self._database = store.database
        self._embedder = embedder
        self._dim = int(dim)
        self._min_graph = min_graph
        # pgvector 0.7 and later has graphs of 16-bit numbers, which need half of the memory.
        has_halves = self._rows("select to_regtype('halfvec') is not null as there")[0]["there"]
        self._graph_type = "halfvec" if has_halves else "vector"

    def stored_dim(self) -> int | None:
        rows = self._rows("select vector_dims(vector) as dim from vectors where embedder = %(embedder)s limit 1")
        return int(rows[0]["dim"]) if rows else None

    def has_vectors(self, namespace: str) -> bool:
        condition = "where embedder = %(embedder)s and namespace = %(namespace)s limit 1"
        return bool(self._rows(f"select 1 as there from vectors {condition}", namespace=namespace))

    def search(
        self, namespace: str, vector: np.ndarray, limit: int, floor: float = -1.0
    ) -> list[tuple[StoredQuestion, float]]:
        # The planner uses the graph only if the index has an equal expression.
        type = f"{self._graph_type}({self._dim})"
        nearest = (
            "select id, vector, -(vector <#> :near::vector) as score from vectors where embedder = :embedder"
            f" and namespace = :namespace order by (vector::{type}) <#> :near::{type} limit :limit"
        )
        near = self._database.as_vector_parameter(vector)
        values = {"embedder": self._embedder, "namespace": namespace, "near": near, "limit": limit}
        sql = (
            f"select n.score, vector_send(n.vector) as vector, {QUESTION} from ({nearest}) as n"
            " join responses r on r.id = n.id order by n.score desc"
        )
        # Only a plan for the value of the namespace uses the graph of that namespace; a prepared statement may lose it.
        rows = self._database.query(sql, values | self._store.time_parameters(), prepare=False)
        neighbours = [
            (replace(question, vector=_read_vector(row["vector"])), float(row["score"]))
            for row, question in read_questions(rows, self._store.codec)
        ]
        return neighbours[:1] if neighbours and neighbours[0][1] < floor else neighbours

    def _rows(self, statement: str, **values: Any) -> list[dict[str, Any]]:
        with self._database.connection() as connection:
            return connection.execute(statement.encode(), values | {"embedder": self._embedder}).fetchall()

    def maintain(self) -> None:
        with self._database.patient_connection() as connection:
            values = {"embedder": self._embedder, "least": self._min_graph // 2, "limit": self._min_graph + 1}
            rows = connection.execute(_COUNTS.encode(), values).fetchall()
        self._drop_graphs({self._index_name(row["namespace"]) for row in rows})
        for row in rows:
            if row["there"] > self._min_graph:
                self._create_graph(row["namespace"])

    def _index_name(self, namespace: str) -> str:
        key = f"{self._graph_type}\n{self._embedder}\n{namespace}"
        return "near_" + hashlib.sha256(key.encode()).hexdigest()[:32]

    def _drop_graphs(self, kept_names: set[str]) -> None:
        # Every graph slows down every write.
        graphs = self._rows(
            "select c.relname as name from pg_index i join pg_class c on c.oid = i.indexrelid"
            " where i.indrelid = 'vectors'::regclass and c.relname like 'near\\_%%' and i.indisvalid"
            " and position(quote_literal(%(embedder)s) in pg_get_expr(i.indpred, i.indrelid)) > 0"
        )
        for graph in graphs:
            if graph["name"] not in kept_names:
                with self._locked_connection(graph["name"]) as connection:
                    if connection is not None:
                        connection.execute(
                            sql.SQL("drop index concurrently if exists {}").format(sql.Identifier(graph["name"]))
                        )

    @contextlib.contextmanager
    def _locked_connection(self, name: str) -> Iterator[psycopg.Connection[Row] | None]:
        with self._database.patient_connection() as connection:
            mine = connection.execute("select pg_try_advisory_lock(hashtext(%s)) as mine", [name]).fetchone()
            if not mine or not mine["mine"]:
                yield None
                return
            try:
                yield connection
            finally:
                connection.execute("reset maintenance_work_mem")
                connection.execute("select pg_advisory_unlock(hashtext(%s))", [name])

    def _create_graph(self, namespace: str) -> None:
        name = self._index_name(namespace)
        is_valid = (
            "select 1 as there from pg_index i join pg_class c on c.oid = i.indexrelid"
            " where c.relname = %(name)s and i.indisvalid"
        )
        if self._rows(is_valid, name=name):
            return
        with self._locked_connection(name) as connection:
            if connection is None:
                return
            # An interrupted attempt leaves an invalid index.
            connection.execute(sql.SQL("drop index concurrently if exists {}").format(sql.Identifier(name)))
            # With less memory than the graph needs, building takes many times as long.
            connection.execute(
                "select set_config('maintenance_work_mem', kb || 'kB', false) from ("
                "select least(count(*) * %s, %s) / 1024 as kb from vectors where embedder = %s and namespace = %s) as need"
                " where kb > pg_size_bytes(current_setting('maintenance_work_mem')) / 1024",
                [_BUILD_BYTES, _MAX_BUILD_BYTES, self._embedder, namespace],
            )
            connection.execute(
                sql.SQL(
                    "create index concurrently {} on vectors using hnsw ((vector::{}({})) {})"
                    " where embedder = {} and namespace = {}"
                ).format(
                    sql.Identifier(name),
                    sql.SQL(self._graph_type),
                    sql.Literal(self._dim),
                    sql.SQL(f"{self._graph_type}_ip_ops"),
                    self._embedder,
                    namespace,
                )
            )
            _log.info("created a graph for namespace %s", namespace[:12])


def _read_vector(sent: bytes) -> np.ndarray:
    """Return a vector from pgvector's binary format: 4 bytes, and big-endian numbers of 32 bits."""
    return np.frombuffer(sent, ">f4", offset=4).astype(np.float32)
