"""Chunks on disk, one file each; they survive restarts.

A chunk is written to a temporary file and renamed, so a killed process loses only the unfinished chunk. It is not synced:
after a power failure, incomplete chunks fail their checksum. The files' modification times keep the LRU order.
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
_DISK_FULL = (errno.ENOSPC, errno.EDQUOT)


class DiskStore:
    """A folder of chunks, used by one process. A full disk acts as the limit.

    Args:
        folder: created if missing; only its owner may read it, because chunks contain prompts.
        limit: maximum bytes.

    Raises:
        OSError: the folder cannot be created or read.
    """

    name = "disk"
    remote = False
    available = True

    def __init__(self, folder: Path, limit: int) -> None:
        self._folder = folder
        self._limit = limit
        self._sizes: OrderedDict[str, int] = OrderedDict()
        self._evictions = 0
        self._num_written = 0
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
            # Left by a killed process; running processes keep theirs.
            pid = path.name.partition("-")[0]
            if pid.isdigit() and not _is_running(int(pid)):
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
                if error.errno not in _DISK_FULL or not self._shrink(self._bytes - len(data)):
                    raise
                self._write(path, data)
        except OSError as error:
            raise TierError(f"cannot write {path}: {error.strerror}") from None
        with self._lock:
            self._sizes[key] = len(data)
            self._bytes += len(data)

    def _write(self, path: Path, data: Data) -> None:
        with self._lock:
            self._num_written += 1
            part = self._folder / f"{os.getpid()}-{self._num_written}.part"
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
        """Evict the least recently used chunks down to `limit` bytes; return their number."""
        evicted = 0
        while True:
            with self._lock:
                if self._bytes <= limit or not self._sizes:
                    return evicted
                key, size = self._sizes.popitem(last=False)
                self._bytes -= size
                self._evictions += 1
            self._path(key).unlink(missing_ok=True)
            evicted += 1

    def contains(self, key: str) -> bool:
        return key in self._sizes

    def should_put(self, key: str) -> bool:
        return key not in self._sizes

    def delete(self, key: str) -> None:
        self._forget(key)
        try:
            self._path(key).unlink(missing_ok=True)
        except OSError as error:
            raise TierError(f"cannot remove {self._path(key)}: {error.strerror}") from None

    def clear(self, matches: Callable[[str], bool]) -> int:
        with self._lock:
            keys = [key for key in self._sizes if matches(key)]
        for key in keys:
            self.delete(key)
        return len(keys)

    def _forget(self, key: str) -> None:
        with self._lock:
            self._bytes -= self._sizes.pop(key, 0)

    def stats(self) -> StoreStats:
        with self._lock:
            return StoreStats(self.name, len(self._sizes), self._bytes, self._limit, self._evictions)

    def close(self) -> None:
        """No file is open between calls."""


def _is_running(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return pid != os.getpid()
