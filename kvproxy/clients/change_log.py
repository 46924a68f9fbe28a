"""Records operators' changes in a file of the data folder, for proxies without PostgreSQL."""

import fcntl
import getpass
import os
import socket
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any, BinaryIO

import orjson

from kvproxy.clients.private_file import replace_private_file
from kvproxy.errors import OTHER_FOLDER, file_error

MAX_CHANGES = 10_000
"""Changes that the file keeps; with twice as many, the oldest are deleted."""
_MAX_BYTES = 400 * MAX_CHANGES


def changes_file(data: Path) -> Path:
    return data / "changes.jsonl"


def operator_name() -> str:
    try:
        name = getpass.getuser()
    except (KeyError, OSError):
        # A container may run with the number of a user who does not exist there.
        name = str(os.getuid())
    return f"{name}@{socket.gethostname()}"


class ChangeLog:
    """The locked file of changes."""

    def __init__(self, file: Path, out: BinaryIO) -> None:
        self._file, self._out = file, out

    def record(self, operator: str, change: str) -> None:
        """Append a change, such as `remove client a`. Raises SettingsError."""
        line = orjson.dumps({"changed": time.time(), "operator": operator, "change": change[:1_000]}) + b"\n"
        with _explained(self._file):
            # A crash, or a full disk, may have cut the last line.
            self._out.write(line if self._is_complete() else b"\n" + line)
            self._out.flush()

    def _is_complete(self) -> bool:
        size = self._file.stat().st_size
        return size == 0 or os.pread(self._out.fileno(), 1, size - 1) == b"\n"

    def delete_oldest(self) -> None:
        """Delete the oldest changes of a large file. If the disk is full, a later change tries it again."""
        with suppress(OSError):
            if self._file.stat().st_size > _MAX_BYTES:
                newest = self._file.read_bytes().splitlines()[-MAX_CHANGES:]
                replace_private_file(self._file, b"\n".join(newest) + b"\n")


def record_change(data: Path, operator: str, change: str) -> None:
    """Append a change, such as `remove client a`, to the file of a data folder. Raises SettingsError."""
    with locked_changes(data) as log:
        log.record(operator, change)


@contextmanager
def locked_changes(data: Path) -> Iterator[ChangeLog]:
    """Lock the changes of a data folder, so that no other process or thread changes the clients.

    The lock belongs to the open file, and ends with the process. Raises SettingsError.
    """
    file = changes_file(data)
    with ExitStack() as opened:
        with _explained(file):
            log = ChangeLog(file, opened.enter_context(_locked(file)))
        yield log
        log.delete_oldest()


@contextmanager
def _explained(file: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise file_error("write", file, error, OTHER_FOLDER) from None


@contextmanager
def _locked(file: Path) -> Iterator[BinaryIO]:
    """Open a file to append to it. Nobody else appends, or replaces the file, until the end."""
    while True:
        with open(os.open(file, os.O_RDWR | os.O_CREAT | os.O_APPEND, 0o600), "ab") as out:
            fcntl.flock(out, fcntl.LOCK_EX)
            # While this process waited for the lock, another one may have replaced the file.
            if os.path.samestat(os.fstat(out.fileno()), file.stat()):
                yield out
                return


def recorded_changes(data: Path, limit: int | None) -> list[dict[str, Any]]:
    """Return the last changes, the newest first: `changed` (seconds since the epoch), `operator`, `change`."""
    try:
        lines = changes_file(data).read_bytes().splitlines()
    except FileNotFoundError:
        return []
    except OSError as error:
        raise file_error("read", changes_file(data), error, OTHER_FOLDER) from None
    newest = lines[::-1] if limit is None else lines[: -limit - 1 : -1]
    return [change for line in newest if (change := _parse(line)) is not None]


def _parse(line: bytes) -> dict[str, Any] | None:
    # A crash may have cut the last line.
    try:
        change = orjson.loads(line)
    except ValueError:
        return None
    return change if isinstance(change, dict) and change.keys() == {"changed", "operator", "change"} else None
