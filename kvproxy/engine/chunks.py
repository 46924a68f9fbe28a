"""Chunks of sequences: their names, and their content on its way between the pool and host memory."""

from collections.abc import Callable

import torch

from kvproxy.blocks.digest import BlockHasher
from kvproxy.blocks.request import CacheRequest
from kvproxy.engine.arena import Arena
from kvproxy.engine.pool import KVPool
from kvproxy.tiers.codec import ChunkName, header_bytes, key_prefix


class Chunks:
    """The tokens of sequences in chunks of `size`.

    Args:
        pool: where blocks are.
        hasher: names them.
        size: tokens in a chunk, a multiple of the pool's block size.
        fingerprint: of the model, see `fingerprint`.
        arena: page-locked memory for the chunks of a CUDA pool; None for a pool on a CPU.
    """

    def __init__(
        self, pool: KVPool, hasher: BlockHasher, size: int, fingerprint: bytes, arena: Arena | None = None
    ) -> None:
        self.size = size
        self.prefix = key_prefix(fingerprint)
        self._pool = pool
        self._hasher = hasher
        self._fingerprint = fingerprint
        self._blocks = size // pool.block_size
        self._arena = arena

    def names(self, cache: CacheRequest, first: int, last: int) -> list[ChunkName]:
        """Names of a request's full chunks `first` to `last - 1`."""
        tokens, size = cache.tokens, self.size
        hashes = cache.update_hashes(self._hasher, self._pool.block_size)
        return [
            ChunkName(self._fingerprint, hashes[(at + 1) * self._blocks - 1], tokens[at * size : (at + 1) * size])
            for at in range(first, last)
        ]

    def read(self, blocks: list[int], name: ChunkName) -> tuple[memoryview, Callable[[], None]]:
        """A chunk's buffer whose payload comes from blocks, without a header; and what waits until it has come.

        The buffer is page-locked where the pool is CUDA's, and is filled while the engine goes on.
        """
        size = self.num_bytes(name)
        buffer = memoryview(bytearray(size)) if self._arena is None else self._arena.take(size)
        flat = torch.frombuffer(buffer, dtype=torch.uint8)
        return buffer, self._pool.read_blocks(blocks, self._tensor(flat[header_bytes(name) :], len(blocks)))

    def num_bytes(self, name: ChunkName) -> int:
        """Bytes of a chunk with its header."""
        pool = self._pool
        return header_bytes(name) + self._blocks * pool.shape.block_bytes(pool.block_size, pool.data.dtype)

    def write(self, payload: memoryview, blocks: list[int], first: int) -> None:
        """Put blocks `first` .. of a chunk's payload into blocks of the pool."""
        content = self._tensor(torch.frombuffer(payload, dtype=torch.uint8), self._blocks)
        self._pool.write_blocks(blocks, content, first)

    def _tensor(self, flat: torch.Tensor, blocks: int) -> torch.Tensor:
        data = self._pool.data
        return flat.view(data.dtype).view(*data.shape[:2], blocks, *data.shape[3:])
