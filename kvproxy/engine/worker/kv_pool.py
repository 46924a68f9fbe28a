"""The tensors that hold the keys and values of all blocks."""

import math
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import torch

from kvproxy.engine.worker.host_device_copies import upload
from kvproxy.errors import SettingsError

_CACHE_LINE = 64


@dataclass(frozen=True, slots=True)
class KVShape:
    layers: int  # number of slots per block: the size of the largest layer group
    kv_heads: int
    head_dim: int

    def block_bytes(self, block_size: int, dtype: torch.dtype) -> int:
        return 2 * self.layers * block_size * self.kv_heads * self.head_dim * dtype.itemsize


class KVPool:
    """Keys and values of all blocks, `[layers, 2, blocks, block_size, kv_heads, head_dim]`.

    The memory is zeroed: padding reads block 0, and 0 * NaN would be NaN.
    """

    def __init__(
        self, shape: KVShape, num_blocks: int, block_size: int, dtype: torch.dtype, device: torch.device
    ) -> None:
        self.shape = shape
        self.block_size = block_size
        try:
            self.data = _zeros((shape.layers, 2, num_blocks, block_size, shape.kv_heads, shape.head_dim), dtype, device)
        except (RuntimeError, MemoryError):
            size = num_blocks * shape.block_bytes(block_size, dtype) / 2**30
            raise SettingsError(
                f"a pool of {num_blocks} blocks needs {size:.1f} GiB, more than {device} has: lower num_blocks"
            ) from None
        self.layers = [(layer[0], layer[1]) for layer in self.data]
        self._read_stream = torch.cuda.Stream(device) if device.type == "cuda" else None
        self._uploads: deque[tuple[torch.cuda.Event, torch.Tensor]] = deque()

    def copy_blocks(self, pairs: list[tuple[int, int]]) -> None:
        if pairs:
            source, destination = upload(pairs, self.data.device).T
            self.data[:, :, destination] = self.data[:, :, source]

    def read_blocks(self, blocks: Sequence[int], out: torch.Tensor) -> Callable[[], None]:
        """Copy blocks to `out` on the host, which must be pinned for a pool on CUDA; return a function that waits for the copy.

        `out` is `[layers, 2, len(blocks), block_size, kv_heads, head_dim]`.
        """
        ids, stream = upload(blocks, self.data.device), self._read_stream
        if stream is None:
            torch.index_select(self.data, 2, ids, out=out)
            return lambda: None
        source = self.data.index_select(2, ids)
        stream.wait_stream(torch.cuda.current_stream(source.device))
        with torch.cuda.stream(stream):
            out.copy_(source, non_blocking=True)
            source.record_stream(stream)
            done = torch.cuda.Event()
            done.record(stream)
        return done.synchronize

    def write_blocks(self, blocks: Sequence[int], content: torch.Tensor, skipped_blocks: int = 0) -> None:
        """Copy `content` (layout: see `read_blocks`), without its first `skipped_blocks` blocks, to the pool's `blocks`."""
        device = self.data.device
        moved = content.to(device, non_blocking=True)
        if device.type == "cuda":
            # torch does not keep pinned memory alive that it did not allocate.
            while self._uploads and self._uploads[0][0].query():
                self._uploads.popleft()
            read = torch.cuda.Event()
            read.record(torch.cuda.current_stream(device))
            self._uploads.append((read, content))
        self.data.index_copy_(2, upload(blocks, device), moved[:, :, skipped_blocks : skipped_blocks + len(blocks)])


def _zeros(sizes: tuple[int, ...], dtype: torch.dtype, device: torch.device) -> torch.Tensor:
    # The operating system commits numpy's pages on their first write, so startup is fast.
    if device.type != "cpu":
        return torch.zeros(sizes, dtype=dtype, device=device)
    num_bytes = math.prod(sizes) * dtype.itemsize
    memory = np.zeros(num_bytes + _CACHE_LINE, np.uint8)
    first = -memory.ctypes.data % _CACHE_LINE
    return torch.from_numpy(memory[first : first + num_bytes]).view(dtype).view(sizes)
