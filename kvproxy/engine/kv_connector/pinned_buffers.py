"""Buffers of pinned host memory, cut from a few large allocations (slabs).

torch rounds a pinned allocation up to a power of two. A slab of several buffers wastes less than one buffer.
"""

import threading
import weakref
from collections.abc import Callable
from typing import Any

import numpy as np
import torch

from kvproxy.tiers.chunk_store import ChunkData

_MIN_BUFFERS, _MAX_BUFFERS = 4, 16


def allocate_pinned(size: int) -> torch.Tensor:
    return torch.empty(size, dtype=torch.uint8, pin_memory=True)


class PinnedBufferPool:
    """A thread-safe pool of buffers. A buffer returns to the pool when it is garbage-collected.

    Slabs are never freed, because pinning memory is slow.
    """

    def __init__(self, allocate: Callable[[int], torch.Tensor] = allocate_pinned) -> None:
        self._allocate = allocate
        self._lock = threading.Lock()
        self._free: dict[int, list[Any]] = {}
        self._slabs: list[tuple[int, int]] = []
        self.allocated = 0

    def take(self, size: int) -> memoryview:
        """Return an uninitialized buffer of `size` bytes. Raises RuntimeError if no memory can be pinned."""
        with self._lock:
            free = self._free.setdefault(size, [])
            if not free:
                free += self._allocate_slab(size)
            base = free.pop()
        # A new view: its finalizer runs when no object shares its memory.
        buffer = base[:]
        weakref.finalize(buffer, free.append, base).atexit = False
        return memoryview(buffer)

    def pin(self, data: ChunkData) -> ChunkData:
        """Return a copy of `data` in pinned memory, or `data` if it is a buffer of this pool."""
        source = np.frombuffer(data, np.uint8)
        with self._lock:
            if any(start <= source.ctypes.data < end for start, end in self._slabs):
                return data
        copy = self.take(len(source))
        np.copyto(np.frombuffer(copy, np.uint8), source)
        return copy

    def _allocate_slab(self, size: int) -> list[Any]:
        num_bytes = size * min(_MAX_BUFFERS, max(_MIN_BUFFERS, self.allocated // size))
        slab_bytes = 1 << (num_bytes - 1).bit_length()
        memory = self._allocate(slab_bytes).numpy()
        self.allocated += slab_bytes
        self._slabs.append((memory.ctypes.data, memory.ctypes.data + slab_bytes))
        return [memory[start : start + size] for start in range(0, slab_bytes - size + 1, size)]
