"""Stores KV chunks in host memory and on disk."""

import contextlib
import errno
import itertools
import os
import stat
from collections import OrderedDict
from collections.abc import Callable
from pathlib import Path
from threading import Lock

from kvproxy.errors import SettingsError
from kvproxy.settings import TierSettings
from kvproxy.tiers.chunk_store import ChunkData, TierError, TierStats

_SUFFIX = ".chunk"
# Follow no link, and do not wait for the writer of a pipe.
_READ_FLAGS = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
_DISK_FULL = (errno.ENOSPC, errno.EDQUOT)


class LocalStore:
    """Base class of stores on this machine, with LRU eviction and a limit in bytes."""

    name: str
    remote = False
    available = True

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._sizes: OrderedDict[str, int] = OrderedDict()
        self._bytes = 0
        self._evictions = 0
        self._lock = Lock()

    def contains(self, key: str) -> bool:
        return key in self._sizes

    def should_put(self, key: str) -> bool:
        return key not in self._sizes

    def delete(self, key: str) -> None:
        with self._lock:
            self._bytes -= self._sizes.pop(key, 0)
        self._remove(key)

    def _remove(self, key: str) -> None:
        raise NotImplementedError

    def clear(self) -> int:
        with self._lock:
            keys = list(self._sizes)
        for key in keys:
            self.delete(key)
        return len(keys)

    def _add(self, key: str, size: int) -> None:
        with self._lock:
            self._sizes[key] = size
            self._bytes += size

    def _touch(self, key: str) -> None:
        with self._lock:
            if key in self._sizes:
                self._sizes.move_to_end(key)

    def _evict_to(self, limit: int) -> int:
        evicted = 0
        while self._bytes > limit:
            with self._lock:
                if not self._sizes:
                    break
                key, size = self._sizes.popitem(last=False)
                self._bytes -= size
                self._evictions += 1
            self._remove(key)
            evicted += 1
        return evicted

    def stats(self) -> TierStats:
        with self._lock:
            return TierStats(self.name, len(self._sizes), self._bytes, self._limit, self._evictions)

    def close(self) -> None: ...


class HostStore(LocalStore):
    """Chunks in host memory. `pin_memory` copies a buffer to page-locked memory, which a GPU reads faster."""

    name = "host"

    def __init__(self, limit: int, pin_memory: Callable[[ChunkData], ChunkData] | None = None) -> None:
        super().__init__(limit)
        self._pin_memory = pin_memory
        self._chunks: dict[str, ChunkData] = {}

    def get(self, key: str) -> ChunkData | None:
        self._touch(key)
        return self._chunks.get(key)

    def put(self, key: str, data: ChunkData) -> None:
        if len(data) > self._limit:
            return
        self.delete(key)
        self._evict_to(self._limit - len(data))
        self._chunks[key] = data if self._pin_memory is None else self._pin_memory(data)
        self._add(key, len(data))

    def _remove(self, key: str) -> None:
        self._chunks.pop(key, None)

    def close(self) -> None:
        self.clear()


class DiskStore(LocalStore):
    """A folder with one file per chunk, for one process. The files' modification times store the LRU order.

    Only the user of the process can read the folder, because chunks contain prompts. A chunk is written to a temporary file
    and renamed, without fsync. Checksums detect chunks that a power failure damaged.
    """

    name = "disk"

    def __init__(self, folder: Path, limit: int) -> None:
        super().__init__(limit)
        self._folder = folder
        self._numbers = itertools.count()
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        self._scan()
        self._evict_to(limit)

    def _scan(self) -> None:
        chunks = []
        for path in self._folder.glob(f"*/*{_SUFFIX}"):
            with contextlib.suppress(OSError):
                status = path.lstat()
                # A link, a pipe, or a folder is no chunk of ours.
                if stat.S_ISREG(status.st_mode):
                    chunks.append((status.st_mtime_ns, path.stem, status.st_size))
        for _, key, size in sorted(chunks):
            self._add(key, size)
        for path in self._folder.glob("[0-9]*.part"):
            # Left by a killed process.
            path.unlink(missing_ok=True)

    def _path(self, key: str) -> Path:
        return self._folder / key[-2:] / f"{key}{_SUFFIX}"

    def get(self, key: str) -> ChunkData | None:
        if key not in self._sizes:
            return None
        path = self._path(key)
        try:
            with open(os.open(path, _READ_FLAGS), "rb") as file:
                status = os.fstat(file.fileno())
                if not stat.S_ISREG(status.st_mode) or status.st_size != self._sizes.get(key):
                    # Another program changed it. It may be larger than the memory.
                    self.delete(key)
                    return None
                data = bytearray(status.st_size)
                file.readinto(data)
                os.utime(file.fileno())
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


def open_host_store(settings: TierSettings, pin_memory: Callable[[ChunkData], ChunkData] | None) -> HostStore | None:
    return None if settings.host is None else HostStore(settings.host, pin_memory)


def open_disk_store(settings: TierSettings, pin_memory: Callable[[ChunkData], ChunkData] | None) -> DiskStore | None:
    if settings.disk is None:
        return None
    try:
        return DiskStore(settings.disk, settings.disk_size)
    except OSError as error:
        raise SettingsError(
            f"cannot use tiers.disk {settings.disk} ({error.strerror}): name a writable folder", param="tiers.disk"
        ) from None
