"""Page-locked host memory in buffers of equal sizes, cut from a few large slabs.

CUDA's page-locked memory is handed out by torch in powers of two, so a buffer for each chunk would take up to twice the
memory that was asked for (32 MiB and a header become 64). A slab is a power of two itself, and wastes one buffer at most.
"""

import threading
import weakref
from collections.abc import Callable
from typing import Any

import numpy as np
import torch

from kvproxy.tiers.store import Data

_FEWEST, _MOST = 4, 16


def allocate_pinned(size: int) -> torch.Tensor:
    """Bytes that a CUDA device reads and writes without the host."""
    return torch.empty(size, dtype=torch.uint8, pin_memory=True)


class PinnedBufferPool:
    """Buffers, safe to take from several threads. A buffer comes back by itself when nothing refers to it any more.

    Slabs are never given back: page-locking memory takes long, and the tiers need as much again.

    Args:
        allocate: gives a slab of so many bytes.

    Attributes:
        allocated: bytes of all slabs.
    """

    def __init__(self, allocate: Callable[[int], torch.Tensor] = allocate_pinned) -> None:
        self._allocate = allocate
        self._lock = threading.Lock()
        self._free: dict[int, list[Any]] = {}
        self._slabs: list[tuple[int, int]] = []
        self.allocated = 0

    def take(self, size: int) -> memoryview:
        """A buffer of so many bytes, with anything in it.

        Raises:
            RuntimeError: there is no memory left to page-lock.
        """
        with self._lock:
            free = self._free.setdefault(size, [])
            if not free:
                free += self._cut(size)
            place = free.pop()
        # A view of its own, so that its end is the end of everything laid over it.
        buffer = place[:]
        # Nobody waits for buffers when Python ends.
        weakref.finalize(buffer, free.append, place).atexit = False
        return memoryview(buffer)

    def keep(self, data: Data) -> Data:
        """A copy of a buffer in the arena, or the buffer itself where it lies there already."""
        source = np.frombuffer(data, np.uint8)
        with self._lock:
            if any(start <= source.ctypes.data < end for start, end in self._slabs):
                return data
        copy = self.take(len(source))
        np.copyto(np.frombuffer(copy, np.uint8), source)
        return copy

    def _cut(self, size: int) -> list[Any]:
        """The buffers of a new slab. While there are few, a slab holds no more than there are already."""
        wanted = size * min(_MOST, max(_FEWEST, self.allocated // size))
        slab = 1 << (wanted - 1).bit_length()
        memory = self._allocate(slab).numpy()
        self.allocated += slab
        self._slabs.append((memory.ctypes.data, memory.ctypes.data + slab))
        return [memory[start : start + size] for start in range(0, slab - size + 1, size)]
