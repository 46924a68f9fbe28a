"""Chunks on disk, one file each: a restart finds what an earlier process wrote.

A chunk is written under a temporary name and renamed, so that a file with a chunk's name is always whole: killing the
process loses the unfinished chunk and nothing else. It is not flushed to the device first; what a power cut leaves
behind fails its checksum and is a miss. Each use sets the file's time, which is the order of eviction after a restart.
"""

import contextlib
import errno
import os
from collections import OrderedDict
from collections.abc import Callable
from pathlib import Path
from threading import Lock

from kvproxy.tiers.store import Data, StoreStats, TierError

_SUFFIX = ".chunk"
_FULL = (errno.ENOSPC, errno.EDQUOT)


class DiskStore:
    """A folder of chunks under a limit of bytes; one process a folder. A full disk counts as the limit.

    Args:
        folder: made where it is missing; readable by its owner only, since a chunk holds the tokens of its prompt.
        limit: most bytes.

    Raises:
        OSError: the folder cannot be made or read.
    """

    name = "disk"
    remote = False
    available = True

    def __init__(self, folder: Path, limit: int) -> None:
        self._folder = folder
        self._limit = limit
        self._sizes: OrderedDict[str, int] = OrderedDict()
        self._evictions = 0
        self._written = 0
        self._lock = Lock()
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        self._scan()
        self._bytes = sum(self._sizes.values())
        self._shrink(limit)

    def _scan(self) -> None:
        found = []
        for path in self._folder.glob(f"*/*{_SUFFIX}"):
            with contextlib.suppress(OSError):
                status = path.stat()
                found.append((status.st_mtime_ns, path.stem, status.st_size))
        for _, key, size in sorted(found):
            self._sizes[key] = size
        for path in self._folder.glob("*.part"):
            # Of a process that was killed while it wrote; one that still lives keeps its own.
            pid = path.name.partition("-")[0]
            if pid.isdigit() and not _alive(int(pid)):
                path.unlink(missing_ok=True)

    def _path(self, key: str) -> Path:
        return self._folder / key[-2:] / f"{key}{_SUFFIX}"

    def get(self, key: str) -> Data | None:
        if key not in self._sizes:
            return None
        path = self._path(key)
        try:
            with path.open("rb", buffering=0) as file:
                data = bytearray(os.fstat(file.fileno()).st_size)
                view, read = memoryview(data), 0
                while read < len(data) and (count := file.readinto(view[read:])):
                    read += count
            os.utime(path)
        except FileNotFoundError:
            self._forget(key)
            return None
        except OSError as error:
            raise TierError(f"cannot read {path}: {error.strerror}") from None
        with self._lock:
            if key in self._sizes:
                self._sizes.move_to_end(key)
        return data

    def put(self, key: str, data: Data) -> None:
        if len(data) > self._limit:
            return
        if key in self._sizes:
            self.delete(key)
        path = self._path(key)
        try:
            self._shrink(self._limit - len(data))
            try:
                self._write(path, data)
            except OSError as error:
                if error.errno not in _FULL or not self._shrink(self._bytes - len(data)):
                    raise
                self._write(path, data)
        except OSError as error:
            raise TierError(f"cannot write {path}: {error.strerror}") from None
        with self._lock:
            self._sizes[key] = len(data)
            self._bytes += len(data)

    def _write(self, path: Path, data: Data) -> None:
        with self._lock:
            self._written += 1
            part = self._folder / f"{os.getpid()}-{self._written}.part"
        try:
            path.parent.mkdir(mode=0o700, exist_ok=True)
            with part.open("xb", buffering=0) as file:
                view, written = memoryview(data), 0
                while written < len(view):
                    written += file.write(view[written:]) or 0
            part.replace(path)
        except OSError:
            part.unlink(missing_ok=True)
            raise

    def _shrink(self, limit: int) -> int:
        """Drop the least recently used chunks until `limit` bytes are left at the most; how many."""
        dropped = 0
        while True:
            with self._lock:
                if self._bytes <= limit or not self._sizes:
                    return dropped
                key, size = self._sizes.popitem(last=False)
                self._bytes -= size
                self._evictions += 1
            self._path(key).unlink(missing_ok=True)
            dropped += 1

    def contains(self, key: str) -> bool:
        return key in self._sizes

    def wants(self, key: str) -> bool:
        return key not in self._sizes

    def delete(self, key: str) -> None:
        self._forget(key)
        try:
            self._path(key).unlink(missing_ok=True)
        except OSError as error:
            raise TierError(f"cannot remove {self._path(key)}: {error.strerror}") from None

    def clear(self, chosen: Callable[[str], bool]) -> int:
        with self._lock:
            doomed = [key for key in self._sizes if chosen(key)]
        for key in doomed:
            self.delete(key)
        return len(doomed)

    def _forget(self, key: str) -> None:
        with self._lock:
            self._bytes -= self._sizes.pop(key, 0)

    def stats(self) -> StoreStats:
        with self._lock:
            return StoreStats(self.name, len(self._sizes), self._bytes, self._limit, self._evictions)

    def close(self) -> None:
        """Nothing is open between calls."""


def _alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return pid != os.getpid()
