"""A journal in an SQLite file, which one proxy writes."""

import contextlib
import logging
import sqlite3
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from kvproxy.errors import KvproxyError, NotFound
from kvproxy.index.sqlite_files import DatabaseFiles, check_file, connect, create_schema, file_uri, make_files_private
from kvproxy.journal.databases.database import InvalidQuery, JournalFailed
from kvproxy.journal.schema import (
    ADDED_COLUMNS,
    COLUMNS,
    TABLES,
    TABLES_OF_TEAMS,
    VERSION,
    entry_blob,
    short_key,
    stored_fields,
    unused_names_condition,
    view_sql,
)

_PRUNE_BATCH = 5_000
_MAX_INSERTED = 64  # Records of one statement.
_MAX_NUMBER = 2**62
_log = logging.getLogger("kvproxy")


class SqliteJournalDatabase:
    def __init__(self, path: Path, connection: sqlite3.Connection, *, writable: bool) -> None:
        self.name = str(path)
        self.columns: Sequence[str] = [name for name in COLUMNS if name != "proxy"]
        self.stored: Sequence[str] = stored_fields(self.columns)
        self._connection = connection
        self._files = DatabaseFiles(path, connection) if writable else None

    def rows(self, sql: str, values: Sequence[object] = ()) -> list[tuple[Any, ...]]:
        with _journal_errors:
            return self._connection.execute(sql, values).fetchall()

    def execute(self, sql: str, values: Sequence[object]) -> None:
        with _journal_errors:
            self._connection.execute(sql, values)

    def executemany(self, sql: str, rows: Sequence[Sequence[object]]) -> None:
        with _journal_errors:
            self._connection.executemany(sql, rows)

    def insert(self, table: str, columns: Sequence[str], rows: Sequence[Sequence[object]]) -> None:
        # One statement takes the GIL once; with one per row, the event loop and this thread would alternate.
        start = 0
        while start < len(rows):
            # The connection keeps prepared statements, of 2 KiB per row. Powers of two bound their number.
            count = min(_MAX_INSERTED, 1 << (len(rows) - start).bit_length() - 1)
            self._insert(table, columns, rows[start : start + count])
            start += count

    def _insert(self, table: str, columns: Sequence[str], rows: Sequence[Sequence[object]]) -> None:
        # Python takes longer to pass a null than SQLite to store the row, and many columns are null in most rows.
        used = [place for place, column in enumerate(zip(*rows, strict=True)) if column.count(None) < len(column)]
        names, marks = ", ".join(columns[place] for place in used), f"({', '.join('?' * len(used))})"
        values = [row[place] for row in rows for place in used]
        self.execute(f"insert into {table} ({names}) values {', '.join([marks] * len(rows))}", values)

    @contextlib.contextmanager
    def transaction(self) -> Iterator[int]:
        if self._files is not None and self._files.were_replaced():
            self._files.checkpoint()
            raise JournalFailed("it was deleted or replaced: restart to use what is there now")
        with _journal_errors, self._connection:
            self._connection.execute("begin immediate")
            yield int(self._connection.execute("pragma data_version").fetchone()[0])

    def reserve_numbers(self, times: Sequence[float]) -> int:
        return int(self.rows("select coalesce(max(number), 0) + 1 from records")[0][0])

    def delete_oldest(self, before: float, max_rows: int) -> int:
        # Only the oldest are read, since a scan would block new records.
        sql = (
            "delete from records where number in (select number from (select number, time from records order by number"
            " limit ?) where number <= (select max(number) from records) - ? or time < ?) returning prompt, near"
        )
        rows = self.rows(sql, [_PRUNE_BATCH, max_rows, before])
        least = self.rows("select coalesce(min(number), ?) from records", [_MAX_NUMBER])[0][0]
        prompts = {prompt for prompt, _ in rows if prompt is not None}
        self.executemany("delete from prompts where number = ? and last < ?", [(prompt, least) for prompt in prompts])
        matched = {short_key(near if isinstance(near, str) else near.hex()) for _, near in rows if near is not None}
        self.executemany("delete from prompts where key = ? and last < ?", [(key, least) for key in matched])
        return len(rows)

    def delete_unused_names(self) -> None:
        self.execute(f"delete from names where {unused_names_condition(self.stored)}", [])

    def stored_id(self, id: str) -> bytes | str:
        return entry_blob(id)

    def integer_part_sql(self, expression: str) -> str:
        return f"cast({expression} as integer)"

    def utc_day_sql(self) -> str:
        return "date(time, 'unixepoch')"

    def tag_rows_sql(self) -> str:
        return "requests join json_each('[\"' || replace(tags, ',', '\",\"') || '\"]')"

    def close(self) -> None:
        self._connection.close()


class _JournalErrors:
    """Converts errors of SQLite. A generator would take as long as a statement."""

    def __enter__(self) -> None: ...

    def __exit__(self, kind: object, error: BaseException | None, traceback: object) -> None:
        if isinstance(error, sqlite3.OperationalError | sqlite3.ProgrammingError | sqlite3.Warning):
            raise InvalidQuery(str(error)) from error
        if isinstance(error, sqlite3.Error):
            raise JournalFailed(str(error)) from error


_journal_errors = _JournalErrors()


def open_file(path: Path) -> SqliteJournalDatabase:
    """Open the file for writing, and create it if it is missing. Raises sqlite3.Error or SchemaVersionError."""
    check_file(path, f"the journal {path}", VERSION)
    make_files_private(path)
    connection = connect(path)
    try:
        # A killed process loses no commit. A power failure may lose the last ones.
        connection.execute("pragma synchronous=normal")
        create_schema(connection, f"the journal {path}", VERSION, (*TABLES, view_sql()))
        _add_columns(connection)
        for table in ("records", "prompts", "totals", "turns"):
            connection.execute(f"select * from {table} limit 1").fetchone()
    except BaseException:
        connection.close()
        raise
    return SqliteJournalDatabase(path, connection, writable=True)


def _add_columns(connection: sqlite3.Connection) -> None:
    if not _missing_columns(connection):
        return
    with connection:
        connection.execute("begin immediate")
        for table, column in _missing_columns(connection):
            connection.execute(f"alter table {table} add column {column}")
        for statement in TABLES_OF_TEAMS:
            connection.execute(statement)
        connection.execute("drop view requests")
        connection.execute(view_sql())


def _missing_columns(connection: sqlite3.Connection) -> list[tuple[str, str]]:
    """Return each of `ADDED_COLUMNS` that the journal lacks."""
    tables = "(select name from sqlite_master where type = 'table')"
    sql = f"select found.name, info.name from {tables} as found join pragma_table_info(found.name) as info"
    present = set(connection.execute(sql))
    return [(table, column) for table, column in ADDED_COLUMNS if (table, column.partition(" ")[0]) not in present]


def open_or_replace(path: Path, clock: Callable[[], float]) -> SqliteJournalDatabase:
    """Open the file for writing. A damaged file is renamed to `journal.db.damaged-TIME`, and replaced with an empty one."""
    try:
        return open_file(path)
    except sqlite3.DatabaseError as error:
        if isinstance(error, sqlite3.OperationalError) and "malformed" not in str(error):
            # The file may be intact: the disk is full, or the file is locked.
            raise
        aside = path.with_name(f"{path.name}.damaged-{int(clock())}")
        path.rename(aside)
        for suffix in ("-wal", "-shm"):
            with contextlib.suppress(FileNotFoundError):
                path.with_name(path.name + suffix).rename(aside.with_name(aside.name + suffix))
        _log.warning("the journal is damaged (%s): set aside as %s, and a new one begins", error, aside)
        return open_file(path)


def open_to_read(path: Path) -> SqliteJournalDatabase:
    if not path.is_file():
        raise NotFound(f"no journal at {path}: kvproxy serve writes one; --data names its folder")
    with contextlib.ExitStack() as opened, _cannot_read(path):
        # The garbage collector may close the connection on another thread.
        connection = sqlite3.connect(file_uri(path), uri=True, timeout=10.0, check_same_thread=False)
        opened.callback(connection.close)
        connection.execute("pragma query_only=on")
        connection.execute("select 1 from requests limit 1").fetchone()
        if _missing_columns(connection):
            raise KvproxyError(
                f"an older version wrote the journal {path}: start kvproxy serve once to add its new columns"
            )
        # A condition of a user may read this file, and nothing else.
        connection.set_authorizer(_authorize_read)
        opened.pop_all()
    return SqliteJournalDatabase(path, connection, writable=False)


@contextlib.contextmanager
def _cannot_read(path: Path) -> Iterator[None]:
    try:
        yield
    except sqlite3.Error as error:
        advice = "; check the disk, and its free space" if isinstance(error, sqlite3.OperationalError) else ""
        raise KvproxyError(f"cannot read the journal {path}: {error}{advice}") from None


def _authorize_read(action: int, table: str | None, *_: str | None) -> int:
    allowed = {sqlite3.SQLITE_SELECT, sqlite3.SQLITE_READ, sqlite3.SQLITE_FUNCTION, sqlite3.SQLITE_RECURSIVE}
    # json_each declares its columns in this way; the connection cannot write.
    is_declaration = action == sqlite3.SQLITE_UPDATE and table == "sqlite_master"
    return sqlite3.SQLITE_OK if action in allowed or is_declaration else sqlite3.SQLITE_DENY
