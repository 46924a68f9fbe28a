"""Chunks on disk, one file each. The files' modification times store the LRU order.

A chunk is written to a temporary file and renamed, without fsync. Checksums detect chunks that a power failure damaged.
"""

import contextlib
import errno
import itertools
import os
from pathlib import Path

from kvproxy.tiers.chunk_store import ChunkData, LocalStore, TierError

_SUFFIX = ".chunk"
_DISK_FULL = (errno.ENOSPC, errno.EDQUOT)


class DiskStore(LocalStore):
    """A folder of chunks, for one process. Only the user of the process can read it, because chunks contain prompts."""

    name = "disk"

    def __init__(self, folder: Path, limit: int) -> None:
        super().__init__(limit)
        self._folder = folder
        self._numbers = itertools.count()
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        self._scan()
        self._evict_to(limit)

    def _scan(self) -> None:
        found = []
        for path in self._folder.glob(f"*/*{_SUFFIX}"):
            with contextlib.suppress(OSError):
                status = path.stat()
                found.append((status.st_mtime_ns, path.stem, status.st_size))
        for _, key, size in sorted(found):
            self._add(key, size)
        for path in self._folder.glob("*.part"):
            # Left by a killed process; running processes keep theirs.
            pid = path.name.partition("-")[0]
            if pid.isdigit() and not _is_running(int(pid)):
                path.unlink(missing_ok=True)

    def _path(self, key: str) -> Path:
        return self._folder / key[-2:] / f"{key}{_SUFFIX}"

    def get(self, key: str) -> ChunkData | None:
        if key not in self._sizes:
            return None
        path = self._path(key)
        try:
            with path.open("rb") as file:
                data = bytearray(os.fstat(file.fileno()).st_size)
                file.readinto(data)
            os.utime(path)
        except FileNotFoundError:
            self.delete(key)
            return None
        except OSError as error:
            raise TierError(f"cannot read {path}: {error.strerror}") from None
        self._touch(key)
        return data

    def put(self, key: str, data: ChunkData) -> None:
        if len(data) > self._limit:
            return
        if key in self._sizes:
            self.delete(key)
        path = self._path(key)
        try:
            self._evict_to(self._limit - len(data))
            try:
                self._write(path, data)
            except OSError as error:
                if error.errno not in _DISK_FULL or not self._evict_to(self._bytes - len(data)):
                    raise
                self._write(path, data)
        except OSError as error:
            raise TierError(f"cannot write {path}: {error.strerror}") from None
        self._add(key, len(data))

    def _write(self, path: Path, data: ChunkData) -> None:
        part = self._folder / f"{os.getpid()}-{next(self._numbers)}.part"
        try:
            path.parent.mkdir(mode=0o700, exist_ok=True)
            with part.open("xb") as file:
                file.write(data)
            part.replace(path)
        except OSError:
            part.unlink(missing_ok=True)
            raise

    def delete(self, key: str) -> None:
        try:
            super().delete(key)
        except OSError as error:
            raise TierError(f"cannot remove {self._path(key)}: {error.strerror}") from None

    def _remove(self, key: str) -> None:
        self._path(key).unlink(missing_ok=True)


def _is_running(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return pid != os.getpid()
