"""Detects that the files of an open SQLite database were deleted or replaced.

Writes to a deleted file succeed as long as it is open, and are lost with the process.
"""

import contextlib
import os
import sqlite3
from pathlib import Path


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

    @property
    def were_replaced(self) -> bool:
        """Whether the database or its log was deleted or replaced."""
        return self._read_inodes() != self._inodes

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
