"""Chunks on their way from the pool to the tiers, as sequences complete them."""

import logging
from collections.abc import Iterable, Iterator

from kvproxy.blocks.manager import KVCacheManager
from kvproxy.engine.chunks import Chunks
from kvproxy.engine.failure import is_device_error
from kvproxy.engine.pieces import Pieces
from kvproxy.engine.sequence import RunningSequence
from kvproxy.tiers.chain import TierChain
from kvproxy.tiers.codec import ChunkName, seal

_log = logging.getLogger("kvproxy")


class Saving:
    """Copies complete chunks out of the pool, on the engine's thread, between steps.

    Args:
        chain: the tiers.
        chunks: sequences in chunks.
        manager: the block cache.
        pieces: what of a sequence may be used again.
    """

    def __init__(self, chain: TierChain, chunks: Chunks, manager: KVCacheManager, pieces: Pieces) -> None:
        self._chain = chain
        self._chunks = chunks
        self._manager = manager
        self._pieces = pieces

    def save(self, sequences: Iterable[RunningSequence]) -> None:
        """Copy the chunks that were completed by the last step out of the pool, for the tiers to keep.

        A chunk that finds no room is offered again after the next step, and those behind it with it: a chain is read up to
        its first hole, so what lies behind one is worth nothing.
        """
        for sequence in sequences:
            for name, blocks in self._unsaved(sequence):
                if self._chain.wants(name.key) and not self._save(name, blocks):
                    break
                sequence.saved_chunks += 1

    def finish(self, sequence: RunningSequence) -> None:
        """Count the chunks of a complete sequence that found no room until now: nobody will offer them again."""
        for name, _ in self._unsaved(sequence):
            self._chain.drop(name.key)

    def _unsaved(self, sequence: RunningSequence) -> Iterator[tuple[ChunkName, list[int]]]:
        """Complete chunks that were not offered with success yet, with their blocks."""
        first = sequence.saved_chunks
        full = self._pieces.reusable(sequence, sequence.cache.num_computed_tokens) // self._chunks.size
        if full <= first:
            return
        table = self._manager.block_ids(sequence.cache.id)
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
            seal(buffer, name)

        taken = self._chain.save(name.key, buffer, finish)
        if not taken:
            # Another thread was faster. The copy must not go on in a buffer that is somebody else's by then.
            wait()
        return taken
