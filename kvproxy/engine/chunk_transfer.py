"""Copies of chunks of keys and values between the block pool and host buffers."""

import logging
import threading
import weakref
from collections.abc import Callable
from typing import Any

import numpy as np
import torch

from kvproxy.blocks.block_hash import BlockHasher
from kvproxy.blocks.cache_request import CacheRequest
from kvproxy.engine.step_errors import first_line
from kvproxy.engine.worker.kv_pool import KVPool
from kvproxy.tiers.chunk_format import ChunkName, payload_offset
from kvproxy.tiers.chunk_store import ChunkData

_log = logging.getLogger("kvproxy")
_MIN_BUFFERS, _MAX_BUFFERS = 4, 16


def allocate_pinned(size: int) -> torch.Tensor:
    try:
        return torch.empty(size, dtype=torch.uint8, pin_memory=True)
    except RuntimeError as error:
        # CUDA reports a lack of host memory like a failure of the device.
        raise MemoryError(f"cannot pin {size:,} bytes of host memory ({first_line(error)})") from error


class PinnedBufferPool:
    """A thread-safe pool of pinned host memory. A buffer returns to the pool when it is garbage-collected.

    Buffers are cut from large slabs, because torch rounds a pinned allocation up to a power of two. Slabs are never freed,
    because pinning memory is slow.
    """

    def __init__(self, allocate: Callable[[int], torch.Tensor] = allocate_pinned) -> None:
        self._allocate = allocate
        self._lock = threading.Lock()
        self._free: dict[int, list[Any]] = {}
        self._slabs: list[tuple[int, int]] = []
        self.allocated = 0

    def take_buffer(self, size: int) -> memoryview:
        with self._lock:
            free = self._free.setdefault(size, [])
            if not free:
                self._add_slab(self._slab_bytes(size), size)
            base = free.pop()
        # A new view: its finalizer runs when no object shares its memory.
        buffer = base[:]
        weakref.finalize(buffer, free.append, base).atexit = False
        return memoryview(buffer)

    def copy_to_pinned_memory(self, data: ChunkData) -> ChunkData:
        """Return a copy of `data` in pinned memory, or `data` if it is a buffer of this pool."""
        source = np.frombuffer(data, np.uint8)
        with self._lock:
            if any(start <= source.ctypes.data < end for start, end in self._slabs):
                return data
        copy = self.take_buffer(len(source))
        np.copyto(np.frombuffer(copy, np.uint8), source)
        return copy

    def reserve(self, size: int, total: int) -> None:
        """Allocate nearly `total` bytes of slabs for buffers of `size` bytes, or as many as the host can pin."""
        while (left := total - self.allocated) >= 2 * size:
            try:
                with self._lock:
                    self._add_slab(min(self._slab_bytes(size), 1 << (left.bit_length() - 1)), size)
            except MemoryError as error:
                _log.warning("only %.1f of %.1f GiB were pinned: %s", self.allocated / 2**30, total / 2**30, error)
                return

    def _slab_bytes(self, size: int) -> int:
        num_bytes = size * min(_MAX_BUFFERS, max(_MIN_BUFFERS, self.allocated // size))
        return 1 << (num_bytes - 1).bit_length()

    def _add_slab(self, slab_bytes: int, size: int) -> None:
        memory = self._allocate(slab_bytes).numpy()
        self.allocated += len(memory)
        self._slabs.append((memory.ctypes.data, memory.ctypes.data + len(memory)))
        free = self._free.setdefault(size, [])
        free += [memory[start : start + size] for start in range(0, len(memory) - size + 1, size)]


class ChunkTransfer:
    """Copies chunks between the block pool and host buffers. A pool on CUDA requires `buffers`, which are pinned."""

    def __init__(
        self,
        pool: KVPool,
        hasher: BlockHasher,
        chunk_tokens: int,
        fingerprint: bytes,
        buffers: PinnedBufferPool | None = None,
    ) -> None:
        self.chunk_tokens = chunk_tokens
        self._pool = pool
        self._hasher = hasher
        self._fingerprint = fingerprint
        self._chunk_blocks = chunk_tokens // pool.block_size
        self._buffers = buffers

    def chunk_names(self, cache_request: CacheRequest, start: int, end: int) -> list[ChunkName]:
        tokens, size = cache_request.tokens, self.chunk_tokens
        hashes = cache_request.update_hashes(self._hasher, self._pool.block_size)
        return [
            ChunkName(self._fingerprint, hashes[(at + 1) * self._chunk_blocks - 1], tokens[at * size : (at + 1) * size])
            for at in range(start, end)
        ]

    def copy_from_pool(self, blocks: list[int], name: ChunkName) -> tuple[memoryview, Callable[[], None]]:
        """Copy blocks to a buffer with space for a chunk header; return it, and a function that waits for the copy."""
        size = self.buffer_bytes(name)
        buffer = memoryview(bytearray(size)) if self._buffers is None else self._buffers.take_buffer(size)
        flat = torch.frombuffer(buffer, dtype=torch.uint8)
        return buffer, self._pool.read_blocks(blocks, self._view_as_blocks(flat[payload_offset(name) :], len(blocks)))

    def buffer_bytes(self, name: ChunkName) -> int:
        pool = self._pool
        return payload_offset(name) + self._chunk_blocks * pool.shape.block_bytes(pool.block_size, pool.data.dtype)

    def copy_to_pool(self, payload: memoryview, blocks: list[int], skipped_blocks: int) -> None:
        """Copy a chunk to the pool's `blocks`, except the first `skipped_blocks` of its blocks."""
        content = self._view_as_blocks(torch.frombuffer(payload, dtype=torch.uint8), self._chunk_blocks)
        self._pool.write_blocks(blocks, content, skipped_blocks)

    def _view_as_blocks(self, flat: torch.Tensor, num_blocks: int) -> torch.Tensor:
        data = self._pool.data
        return flat.view(data.dtype).view(*data.shape[:2], num_blocks, *data.shape[3:])
