"""Time of three statements in SQLite: of an exact hit, of the journal's group commit, and of the log.

python -m tests.benchmarks.sql_stacks [--rounds 200] [--records 10000]

Each statement runs as kvproxy runs it, and by SQLAlchemy Core (`pip install sqlalchemy`), with a pool of connections, tables that
are reflected before, and statements whose compiled form is cached. Both return the same rows.
"""

import itertools
import tempfile
import time
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

from kvproxy.index.store.rows import IS_SERVABLE
from kvproxy.index.store.sqlite.database import SqliteDatabase
from kvproxy.index.store.writer import COLUMNS
from kvproxy.journal.databases.sqlite import SqliteJournalDatabase, open_file
from kvproxy.journal.schema import stored_column
from tests.benchmarks.options import read_options
from tests.benchmarks.timing import interleave, report

_REPEATS = 50
_BATCH = 16
_LISTED = 20


def main() -> None:
    options = read_options(__doc__, rounds=200, records=10_000)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        for title, works in (
            ("read of an exact hit", _hits(folder)),
            (f"commit of {_BATCH} records", _commits(folder, options.records)),
            (f"query of {_LISTED} records of the log", _logs(folder, options.records)),
        ):
            for work in works.values():
                work()
            report(title, interleave(works, options.rounds), "kvproxy", 1e6, "µs")


def _engine(path: Path) -> Any:
    from sqlalchemy import create_engine, event

    engine = create_engine(f"sqlite:///{path}")

    @event.listens_for(engine, "connect")
    def configure(connection: Any, _: object) -> None:
        connection.execute("pragma journal_mode=wal")
        connection.execute("pragma synchronous=normal")

    return engine


def _repeated(work: Callable[[], object]) -> Callable[[], float]:
    """Return a function that returns the seconds of one call."""

    def run() -> float:
        began = time.perf_counter()
        for _ in range(_REPEATS):
            work()
        return (time.perf_counter() - began) / _REPEATS

    return run


def _filled(columns: list[tuple[Any, ...]], **values: object) -> dict[str, object]:
    """Return a row of a table, given its `pragma table_info`."""
    by_type = {"integer": 1, "float": 1.0, "text": "x" * 32, "blob": b"x" * 16}
    return {name: values.get(name, by_type[kind.lower() or "blob"]) for _, name, kind, *_ in columns}


def _hits(folder: Path) -> dict[str, Callable[[], float]]:
    from sqlalchemy import MetaData, Table, bindparam, column, select, text

    path, now = folder / "cache.db", time.time()
    database = SqliteDatabase(path)
    with database.reader() as reader:
        columns = reader.execute("pragma table_info(responses)").fetchall()
    row = _filled(
        columns, key="k", created=now, expires=now + 3_600, request=b"q" * 500, response=b"r" * 2_000, tags="[]"
    )
    with database.transaction() as run:
        run(f"insert into responses ({', '.join(row)}) values ({', '.join(f':{name}' for name in row)})", row)
    engine, values = _engine(path), {"key": "k", "now": now, "soon": now + 60}
    table = Table("responses", MetaData(), autoload_with=engine)
    names = [name.strip() for name in COLUMNS.split(",")]
    query = select(*(table.c[name] for name in names)).where(column("key") == bindparam("key"), text(IS_SERVABLE))

    def by_core() -> list[dict[str, object]]:
        with engine.connect() as connection:
            return [dict(found) for found in connection.execute(query, values).mappings()]

    def by_kvproxy() -> list[dict[str, object]]:
        return database.query(f"select {COLUMNS} from responses where key = :key and {IS_SERVABLE}", values)

    assert by_core() == by_kvproxy()
    assert len(by_core()) == 1
    return {"kvproxy": _repeated(by_kvproxy), "SQLAlchemy Core": _repeated(by_core)}


def _journal(path: Path, records: int) -> tuple[SqliteJournalDatabase, list[tuple[Any, ...]]]:
    database = open_file(path)
    columns = database.rows("pragma table_info(records)")
    with database.transaction():
        database.execute("insert into names (number, name) values (1, 'name')", [])
        rows = [_record(columns, database, number) for number in range(1, records + 1)]
        database.insert("records", [stored_column(name) for name in database.stored], rows)
    return database, columns


def _record(columns: list[tuple[Any, ...]], database: SqliteJournalDatabase, number: int) -> list[object]:
    row = _filled(columns, number=number)
    return [row[stored_column(name)] for name in database.stored]


def _commits(folder: Path, records: int) -> dict[str, Callable[[], float]]:
    from sqlalchemy import MetaData, Table, insert

    database, columns = _journal(folder / "one.db", records)
    with closing(_journal(folder / "other.db", records)[0]):
        engine = _engine(folder / "other.db")
    table = Table("records", MetaData(), autoload_with=engine)
    statement, own, other = insert(table), itertools.count(records + 1), itertools.count(records + 1)
    names = [stored_column(name) for name in database.stored]

    def by_kvproxy() -> None:
        with database.transaction():
            database.insert("records", names, [_record(columns, database, next(own)) for _ in range(_BATCH)])

    def by_core() -> None:
        with engine.begin() as connection:
            rows = [_record(columns, database, next(other)) for _ in range(_BATCH)]
            connection.execute(statement, [dict(zip(names, row, strict=True)) for row in rows])

    return {"kvproxy": _repeated(by_kvproxy), "SQLAlchemy Core": _repeated(by_core)}


def _logs(folder: Path, records: int) -> dict[str, Callable[[], float]]:
    from sqlalchemy import MetaData, Table, desc, select

    path = folder / "log.db"
    database, _ = _journal(path, records)
    engine = _engine(path)
    view = Table("requests", MetaData(), autoload_with=engine)
    query = select(*(view.c[name] for name in database.columns)).order_by(desc(view.c.number)).limit(_LISTED)

    def by_core() -> list[tuple[Any, ...]]:
        with engine.connect() as connection:
            return [tuple(row) for row in connection.execute(query)]

    def by_kvproxy() -> list[tuple[Any, ...]]:
        columns = ", ".join(database.columns)
        return database.rows(f"select {columns} from requests order by number desc limit {_LISTED}")

    assert by_core() == by_kvproxy()
    assert len(by_core()) == _LISTED
    return {"kvproxy": _repeated(by_kvproxy), "SQLAlchemy Core": _repeated(by_core)}


if __name__ == "__main__":
    main()
