"""Detects that the files of an open SQLite database were deleted or replaced.

Writes to a deleted file succeed as long as it is open, and are lost with the process.
"""

import contextlib
import os
import sqlite3
import time
from pathlib import Path

_READ_SECONDS = 0.1
"""Time for which a check is valid for reads. Each write is checked."""


class DatabaseFiles:
    """The files of a database in WAL mode.

    Args:
        path: of the database; its log has the suffix `-wal`.
        writer: a connection that has read or written, so that the log exists.
    """

    def __init__(self, path: Path, writer: sqlite3.Connection) -> None:
        self._path = path
        self._writer = writer
        self._is_checkpointed = False
        self._inodes = self._read_inodes()
        self._next_check = 0.0

    def were_replaced(self, *, write: bool = True) -> bool:
        """Return whether the database or its log was deleted or replaced."""
        now = time.monotonic()
        if not write and now < self._next_check:
            return False
        if self._read_inodes() != self._inodes:
            return True
        self._next_check = now + _READ_SECONDS
        return False

    def checkpoint(self) -> None:
        """Move the log into the open database. SQLite would later write it over the new file at this path."""
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
