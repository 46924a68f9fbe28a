"""Semantic search in PostgreSQL with pgvector: recall, latency, build time, and size of one namespace's graph.

python -m tests.benchmarks.postgres_vectors [--sizes 10000 100000] [--queries 500] [--folder FOLDER] [--url URL]

The server runs without fsync on the same machine; `--url` selects another one, whose schema `kvproxy` is dropped.
`recall@5` compares with all vectors, which numpy searches.
"""

import contextlib
import struct
import time
from pathlib import Path

import numpy as np
import psycopg

from kvproxy.index.store import open_store
from kvproxy.index.store.postgres.vector_search import PostgresSearch
from tests.benchmarks.options import read_options
from tests.benchmarks.stored_questions import DIM, EMBEDDER, FOLDER, NAMESPACE, QuestionVectors
from tests.index.entries import make_entry
from tests.postgres_server import empty, run_postgres

NEAREST = 5


def _fill(url: str, vectors: np.ndarray) -> list[str]:
    """Copy the store's only entry for each vector; return the ids."""
    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute("set search_path = kvproxy, public")
        sql = "select column_name from information_schema.columns where table_name = 'responses' and table_schema = 'kvproxy'"
        columns = [row[0] for row in connection.execute(sql)]
        values = [{"id": "lpad(n::text, 32, '0')", "key": "'key ' || n"}.get(name, name) for name in columns]
        numbers = f"generate_series(1, {len(vectors)}) n"
        select = f"select {', '.join(values)} from responses, {numbers}"
        connection.execute(f"insert into responses ({', '.join(columns)}) {select}".encode())
        ids = [f"{number:032}" for number in range(1, len(vectors) + 1)]
        sql = "copy vectors (id, embedder, namespace, vector) from stdin with (format binary)"
        with connection.cursor().copy(sql) as copy:
            # The binary form of a vector: its dimension, a reserved number, and its numbers.
            copy.set_types(["text", "text", "text", "bytea"])
            head = struct.pack(">hh", DIM, 0)
            for id, vector in zip(ids, vectors.astype(">f4"), strict=True):
                copy.write_row((id, EMBEDDER, NAMESPACE, head + vector.tobytes()))
    return ids


def measure(url: str, folder: Path, size: int, count: int) -> None:
    """Print the row of one size."""
    empty(url)
    generator = QuestionVectors(folder, size)
    vectors = generator.rows(size)
    queries = generator.moved(vectors[:: max(1, size // count)][:count])
    with contextlib.closing(open_store(url)) as store:
        store.put(make_entry())
        names = np.array(_fill(url, vectors), object)
        neighbours = PostgresSearch(store, EMBEDDER, DIM)
        began = time.perf_counter()
        neighbours.maintain()
        built = time.perf_counter() - began
        store.database.query("analyze vectors")
        found, times = 0, []
        for query in queries:
            nearest = set(names[np.argpartition(-(vectors @ query), NEAREST)[:NEAREST]])
            began = time.perf_counter()
            rows = neighbours.search(NAMESPACE, query, NEAREST)
            times.append(time.perf_counter() - began)
            found += len(nearest & {question.id for question, _ in rows})
        sql = (
            "select pg_table_size('vectors') as rows, (select coalesce(sum(pg_relation_size(indexrelid)), 0) from pg_index"
            " where indrelid = 'vectors'::regclass and pg_get_indexdef(indexrelid) like '%%hnsw%%') as graph"
        )
        bytes = store.database.query(sql)[0]
    p50, p99 = np.percentile(times, (50, 99)) * 1e3
    print(
        f"| {size:,} | {found / (NEAREST * len(queries)):.3f} | {p50:.1f} | {p99:.1f} | {built:.0f} |"
        f" {bytes['rows'] / size:,.0f} + {bytes['graph'] / size:,.0f} |",
        flush=True,
    )


def main() -> None:
    options = read_options(__doc__, sizes=[10_000, 100_000], queries=500, folder=FOLDER, url="")
    print("| entries | recall@5 | p50, ms | p99, ms | build, s | bytes per entry: row + graph |")
    print("|---|---|---|---|---|---|")
    with contextlib.ExitStack() as stack:
        url = options.url or stack.enter_context(run_postgres()).url
        for size in options.sizes:
            measure(url, options.folder, size, options.queries)


if __name__ == "__main__":
    main()
