"""The KV tensors behind the block pool."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import torch

from kvproxy.engine.worker.transfer import Downloads, Uploads, upload
from kvproxy.errors import SettingsError


@dataclass(frozen=True, slots=True)
class KVShape:
    """What decides the size of a block: the layers whose keys and values it holds, key/value heads, and the width of a head."""

    layers: int
    kv_heads: int
    head_dim: int

    def block_bytes(self, block_size: int, dtype: torch.dtype) -> int:
        """Bytes of one block over the layers of a group, keys and values."""
        return 2 * self.layers * block_size * self.kv_heads * self.head_dim * dtype.itemsize


class KVPool:
    """Keys and values of all blocks, `[layers, 2, blocks, block_size, kv_heads, head_dim]`; each block belongs to one group.

    Zeros at the start, because padding reads block 0 and a masked probability of 0 times NaN would be NaN.
    """

    def __init__(
        self, shape: KVShape, num_blocks: int, block_size: int, dtype: torch.dtype, device: torch.device
    ) -> None:
        self.shape = shape
        self.num_blocks = num_blocks
        self.block_size = block_size
        try:
            self.data = _zeros((shape.layers, 2, num_blocks, block_size, shape.kv_heads, shape.head_dim), dtype, device)
        except (RuntimeError, MemoryError):
            size = num_blocks * shape.block_bytes(block_size, dtype) / 2**30
            raise SettingsError(
                f"a pool of {num_blocks} blocks takes {size:.1f} GiB, which {device} does not have: lower num_blocks"
            ) from None
        # Asked for in every layer of every step.
        self._layers = [(layer[0], layer[1]) for layer in self.data]
        self._downloads = Downloads(device)
        self._uploads = Uploads()

    def layer(self, slot: int) -> tuple[torch.Tensor, torch.Tensor]:
        """Keys and values of the layers in a slot, each `[blocks, block_size, kv_heads, head_dim]`."""
        return self._layers[slot]

    def copy_blocks(self, pairs: list[tuple[int, int]]) -> None:
        """Carry out pending copies, (source, destination) block ids."""
        if pairs:
            source, destination = upload(pairs, self.data.device).T
            self.data[:, :, destination] = self.data[:, :, source]

    def read_blocks(self, blocks: Sequence[int], out: torch.Tensor) -> Callable[[], None]:
        """Copy blocks as they are now to host memory, `[layers, 2, len(blocks), block_size, kv_heads, head_dim]`.

        Returns:
            What waits until `out` is filled; on CUDA `out` must be page-locked, and other work goes on meanwhile.
        """
        ids = upload(blocks, self.data.device)
        if self.data.device.type == "cpu":
            torch.index_select(self.data, 2, ids, out=out)
            return lambda: None
        return self._downloads.start(self.data.index_select(2, ids), out)

    def write_blocks(self, blocks: Sequence[int], content: torch.Tensor, first: int = 0) -> None:
        """Overwrite blocks with blocks `first` .. of what `read_blocks` gave."""
        device = self.data.device
        moved = self._uploads.start(content, device)[:, :, first : first + len(blocks)]
        self.data.index_copy_(2, upload(blocks, device), moved)


def _zeros(sizes: tuple[int, ...], dtype: torch.dtype, device: torch.device) -> torch.Tensor:
    """Zeros; on a CPU the system gives their memory when it is first written to, so that a start need not wait for all of it."""
    if device.type != "cpu":
        return torch.zeros(sizes, dtype=dtype, device=device)
    line = 64  # Bytes of a cache line, in which torch's own memory begins too.
    wanted = math.prod(sizes) * dtype.itemsize
    memory = np.zeros(wanted + line, np.uint8)
    first = -memory.ctypes.data % line
    return torch.from_numpy(memory[first : first + wanted]).view(dtype).view(sizes)
