"""Chunks on their way from the pool to the tiers, as sequences complete them."""

import logging
from collections.abc import Callable, Iterable, Iterator

import torch

from kvproxy.blocks.block_hash import BlockHasher
from kvproxy.blocks.manager import KVCacheManager
from kvproxy.blocks.request import CacheRequest
from kvproxy.engine.health import is_device_error
from kvproxy.engine.kv_connector.pinned_buffers import PinnedBufferPool
from kvproxy.engine.scheduler.chunked_prefill import ChunkedPrefill
from kvproxy.engine.scheduler.sequence import SequenceState
from kvproxy.engine.worker.kv_pool import KVPool
from kvproxy.tiers.chain import TierChain
from kvproxy.tiers.codec import ChunkName, header_bytes, key_prefix, write_header


class ChunkLayout:
    """The tokens of sequences in chunks of `size`.

    Args:
        pool: where blocks are.
        hasher: names them.
        size: tokens in a chunk, a multiple of the pool's block size.
        fingerprint: of the model, see `fingerprint`.
        arena: page-locked memory for the chunks of a CUDA pool; None for a pool on a CPU.
    """

    def __init__(
        self, pool: KVPool, hasher: BlockHasher, size: int, fingerprint: bytes, arena: PinnedBufferPool | None = None
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


_log = logging.getLogger("kvproxy")


class ChunkSaver:
    """Copies complete chunks out of the pool, on the engine's thread, between steps.

    Args:
        chain: the tiers.
        chunks: sequences in chunks.
        manager: the block cache.
        pieces: what of a sequence may be used again.
    """

    def __init__(self, chain: TierChain, chunks: ChunkLayout, manager: KVCacheManager, pieces: ChunkedPrefill) -> None:
        self._chain = chain
        self._chunks = chunks
        self._manager = manager
        self._pieces = pieces

    def save(self, sequences: Iterable[SequenceState]) -> None:
        """Copy the chunks that were completed by the last step out of the pool, for the tiers to keep.

        A chunk that finds no room is offered again after the next step, and those behind it with it: a chain is read up to
        its first hole, so what lies behind one is worth nothing.
        """
        for sequence in sequences:
            for name, blocks in self._unsaved(sequence):
                if self._chain.should_save(name.key) and not self._save(name, blocks):
                    break
                sequence.saved_chunks += 1

    def finish(self, sequence: SequenceState) -> None:
        """Count the chunks of a complete sequence that found no room until now: nobody will offer them again."""
        for name, _ in self._unsaved(sequence):
            self._chain.count_dropped(name.key)

    def _unsaved(self, sequence: SequenceState) -> Iterator[tuple[ChunkName, list[int]]]:
        """Complete chunks that were not offered with success yet, with their blocks."""
        first = sequence.saved_chunks
        full = self._pieces.reusable(sequence, sequence.cache.num_computed_tokens) // self._chunks.size
        if full <= first:
            return
        table = self._manager.get_block_ids(sequence.cache.id)[0]
        width = self._chunks.size // self._manager.block_size
        for at, name in enumerate(self._chunks.names(sequence.cache, first, full), first):
            yield name, table[at * width : (at + 1) * width]

    def _save(self, name: ChunkName, blocks: list[int]) -> bool:
        if not self._chain.has_room(self._chunks.num_bytes(name)):
            return False
        try:
            buffer, wait = self._chunks.read(blocks, name)
        except (RuntimeError, MemoryError) as error:
            if is_device_error(error):
                raise
            # Host memory is short: a chunk less is no reason to fail the requests of this step.
            _log.warning("a chunk was not saved: %s", error)
            return False

        def finish() -> None:
            wait()
            write_header(buffer, name)

        taken = self._chain.save(name.key, buffer, finish)
        if not taken:
            # Another thread was faster. The copy must not go on in a buffer that is somebody else's by then.
            wait()
        return taken
