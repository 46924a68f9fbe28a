"""Files and folders that only their owner can read: what is stored are other people's texts."""

import contextlib
import errno
import os
import stat
from pathlib import Path

_OTHERS = 0o077


def make_private_file(path: Path) -> None:
    """Make an empty file that only its owner can read; of one that is there, take what rights others have.

    Raises:
        OSError: it cannot be made, or is a folder.
    """
    try:
        os.close(os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600))
    except FileExistsError:
        # It is not opened: to close it would take away the locks that SQLite has on it in this process (POSIX), and another
        # process that closes the file would then take it for unused, and delete its log.
        if path.is_dir():
            raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), str(path)) from None
    restrict(path)


def make_private_folder(path: Path) -> None:
    """The same for a folder that is used for nothing else.

    Raises:
        OSError: it cannot be made.
    """
    path.mkdir(mode=0o700, parents=True, exist_ok=True)
    restrict(path)


def is_accessible_to_others(path: Path) -> bool:
    """Whether others than the owner have any right."""
    try:
        return bool(path.stat().st_mode & _OTHERS)
    except OSError:
        return False


def restrict(path: Path) -> None:
    """Take what rights others have, where the path is ours; raises OSError where it is not there."""
    status = path.stat()
    # A sticky folder, as /tmp, is everybody's on purpose.
    if status.st_mode & _OTHERS and status.st_uid == os.geteuid() and not status.st_mode & stat.S_ISVTX:
        with contextlib.suppress(OSError):
            # Some file systems know no rights.
            path.chmod(stat.S_IMODE(status.st_mode) & ~_OTHERS)
