"""Whether the files of an open database still stand where they were opened.

A file that was deleted can be written to as long as it is open, and what is written is gone with the process.
"""

import contextlib
import os
import sqlite3
from pathlib import Path


class DatabaseFiles:
    """The files of a database in SQLite's WAL mode.

    Args:
        path: of the database; its log stands beside it.
        writer: a connection to it that has read or written, so that the log is there.
    """

    def __init__(self, path: Path, writer: sqlite3.Connection) -> None:
        self._path = path
        self._writer = writer
        self._left = False
        self._opened = self._found()

    @property
    def gone(self) -> bool:
        """Whether the database or its log was deleted or replaced."""
        return self._found() != self._opened

    def leave(self) -> None:
        """Move what stands in the log into the file that was moved away: SQLite would write it over the new one."""
        with contextlib.suppress(sqlite3.Error):
            if not self._left:
                self._left = True
                self._writer.execute("pragma wal_checkpoint(truncate)")

    def _found(self) -> tuple[int, ...]:
        """Which files stand at the database's path and at its log's: 0 for none."""
        return tuple(_inode(f"{self._path}{suffix}") for suffix in ("", "-wal"))


def _inode(path: str) -> int:
    try:
        return os.stat(path).st_ino
    except OSError:
        return 0
