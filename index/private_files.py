"""Creates files that only their owner can read."""

import contextlib
import errno
import os
import stat
from pathlib import Path

_OTHERS = 0o077


def make_private_file(path: Path) -> None:
    try:
        os.close(os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600))
    except FileExistsError:
        # Do not open an existing file: closing it would release SQLite's POSIX locks of this process.
        if path.is_dir():
            raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), str(path)) from None
    restrict_to_owner(path)


def make_private_folder(path: Path) -> None:
    path.mkdir(mode=0o700, parents=True, exist_ok=True)
    restrict_to_owner(path)


def is_accessible_to_others(path: Path) -> bool:
    try:
        return bool(path.stat().st_mode & _OTHERS)
    except OSError:
        return False


def can_restrict(path: Path) -> bool:
    """Whether the path belongs to this user, and has no sticky bit (such as /tmp)."""
    status = path.stat()
    return status.st_uid == os.geteuid() and not status.st_mode & stat.S_ISVTX


def restrict_to_owner(path: Path) -> None:
    """Remove the permissions of other users, if `can_restrict`."""
    mode = path.stat().st_mode
    if mode & _OTHERS and can_restrict(path):
        with contextlib.suppress(OSError):
            path.chmod(stat.S_IMODE(mode) & ~_OTHERS)
