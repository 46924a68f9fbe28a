"""Opens SQLite files, creates the schema, and notices files that are replaced."""

import contextlib
import os
import sqlite3
import time
from collections.abc import Sequence
from pathlib import Path

from kvproxy.index.errors import ForeignDatabase, SchemaVersionError
from kvproxy.index.private_files import make_private_file, restrict_to_owner

_BUSY_TIMEOUT = 10.0  # Seconds.


def check_file(path: Path, database_name: str, version: int) -> None:
    """Raise an error if a file is no database of this schema version, and leave it unchanged.

    The errors are SchemaVersionError, and sqlite3.DatabaseError for a file that is no database.
    """
    if not path.is_file() or not path.stat().st_size:
        return
    # A connection that only reads cannot open every file with a WAL. `connect` reports other causes.
    with (
        contextlib.suppress(sqlite3.OperationalError),
        contextlib.closing(sqlite3.connect(file_uri(path), uri=True, timeout=_BUSY_TIMEOUT)) as connection,
    ):
        _needs_schema(connection, database_name, version)


def make_files_private(path: Path) -> None:
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    make_private_file(path)
    for suffix in ("-wal", "-shm"):
        with contextlib.suppress(OSError):
            restrict_to_owner(path.with_name(path.name + suffix))


def cannot_change(path: Path) -> bool:
    """Return whether a file is on a read-only file system, and no process has written to it since it was closed."""
    wal = path.with_name(f"{path.name}-wal")
    return path.is_file() and bool(os.statvfs(path).f_flag & os.ST_RDONLY) and not wal.exists()


def file_uri(path: Path) -> str:
    """Return the URI from which SQLite reads a file, also on a read-only file system, where it can create no index of a WAL."""
    return f"{path.absolute().as_uri()}?{'immutable=1' if cannot_change(path) else 'mode=ro'}"


def connect(path: Path, *, accepts_constant: bool = False) -> sqlite3.Connection:
    """Open a connection with durable commits, for use by any thread; raises a sqlite3.DatabaseError.

    With `accepts_constant`, a file that `cannot_change` is opened, too, and writes to it fail.
    """
    is_constant = accepts_constant and cannot_change(path)
    place = file_uri(path) if is_constant else path
    connection = sqlite3.connect(place, uri=is_constant, check_same_thread=False, timeout=_BUSY_TIMEOUT)
    # A damaged character must not fail the whole query. A `partial` takes twice the time.
    connection.text_factory = lambda text: text.decode("utf-8", "replace")
    if is_constant:
        return connection
    try:
        end = time.monotonic() + _BUSY_TIMEOUT
        while True:
            try:
                connection.execute("pragma journal_mode=wal")
                break
            except sqlite3.OperationalError as error:
                # For this statement, SQLite does not apply the timeout.
                if "locked" not in str(error) or time.monotonic() > end:
                    raise
                time.sleep(0.01)
        connection.execute("pragma synchronous=full")
    except BaseException:
        connection.close()
        raise
    return connection


def create_schema(connection: sqlite3.Connection, database_name: str, version: int, statements: Sequence[str]) -> None:
    """Create the schema if the file is empty; raises a SchemaVersionError if it has another version. Process-safe."""
    if not _needs_schema(connection, database_name, version):
        return
    with connection:
        connection.execute("begin immediate")
        if not _needs_schema(connection, database_name, version):
            return
        for statement in statements:
            connection.execute(statement)
        connection.execute(f"pragma user_version = {version}")


def _needs_schema(connection: sqlite3.Connection, database_name: str, version: int) -> bool:
    """Return whether a database is empty. Raises a SchemaVersionError if it has another version, or is a ForeignDatabase."""
    # One statement reads one state: another process may create the schema meanwhile.
    sql = "select user_version, exists (select 1 from sqlite_master) from pragma_user_version"
    stored_version, has_tables = connection.execute(sql).fetchone()
    if stored_version == version:
        return False
    if has_tables and stored_version == 0:
        raise ForeignDatabase(database_name)
    if has_tables:
        raise SchemaVersionError(database_name, stored_version, version)
    return True


_CHECK_INTERVAL = 0.1  # Seconds between two checks before reads; each write is checked.


class DatabaseFiles:
    """Detects that the files of an open database were deleted or replaced."""

    def __init__(self, path: Path, writer: sqlite3.Connection) -> None:
        self._path = path
        self._writer = writer
        self._is_checkpointed = False
        self._inodes = self._read_inodes()
        self._next_check = 0.0

    def were_replaced(self, *, check_now: bool = True) -> bool:
        """Return whether a file was deleted or replaced. Without `check_now`, a result may be 0.1 seconds old."""
        if not check_now and time.monotonic() < self._next_check:
            return False
        if self._read_inodes() != self._inodes:
            return True
        self._next_check = time.monotonic() + _CHECK_INTERVAL
        return False

    def checkpoint(self) -> None:
        """Write the WAL to the open, deleted file. Otherwise, SQLite could write it to the file that has replaced this one."""
        with contextlib.suppress(sqlite3.Error):
            if not self._is_checkpointed:
                self._is_checkpointed = True
                self._writer.execute("pragma wal_checkpoint(truncate)")

    def _read_inodes(self) -> tuple[int, ...]:
        return tuple(_inode(f"{self._path}{suffix}") for suffix in ("", "-wal"))


def _inode(path: str) -> int:
    try:
        return os.stat(path).st_ino
    except OSError:
        return 0
