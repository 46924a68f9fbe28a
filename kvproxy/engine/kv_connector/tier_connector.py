"""The tiers as the scheduler sees them: what they may hold of a prompt, loads under way, chunks to save.

Reader threads fetch chunks; only the engine's thread touches the pool. A sequence that waits for its load holds its
blocks, unnamed until the load is over, so that nobody can hit content that has not come. What does not come is computed.
"""

import logging
import threading
import time
from collections import deque
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Literal

from kvproxy.blocks.manager import KVCacheManager
from kvproxy.blocks.request import CacheRequest
from kvproxy.encryption import Cipher
from kvproxy.engine.kv_connector.chunk_saver import ChunkLayout, ChunkSaver
from kvproxy.engine.kv_connector.fingerprint import fingerprint
from kvproxy.engine.kv_connector.pinned_buffers import PinnedBufferPool
from kvproxy.engine.models.loader import LoadedModel
from kvproxy.engine.scheduler.chunked_prefill import ChunkedPrefill
from kvproxy.engine.scheduler.sequence import SequenceState
from kvproxy.engine.worker.kv_pool import KVPool
from kvproxy.settings import EngineSettings, TierSettings
from kvproxy.tiers.build import build_chain
from kvproxy.tiers.chain import TierChain
from kvproxy.tiers.codec import ChunkName, read_payload

_READERS = 2
_log = logging.getLogger("kvproxy")
ModelScope = Literal["own", "others", "all"]


def create_tier_connector(
    loaded: LoadedModel,
    pool: KVPool,
    manager: KVCacheManager,
    pieces: ChunkedPrefill,
    settings: EngineSettings,
    tiers: TierSettings,
    cipher: Cipher | None = None,
) -> "TierConnector | None":
    """The tiers that the settings ask for, with this model's chunks; None where there are none.

    A chunk holds all layers of its tokens, which a model gives back where its attention is limited: none for such a model.

    Raises:
        SettingsError: a tier cannot be used as it is set.
    """
    if any(group.kind != "full" for group in loaded.groups):
        if tiers.enabled:
            _log.warning(
                "%s runs without tiers: its attention is limited to windows or chunks, so blocks of old tokens are given back"
                " before they could be kept",
                loaded.name,
            )
        return None
    arena = PinnedBufferPool() if loaded.device.type == "cuda" else None
    chain = build_chain(
        tiers,
        manager.block_size,
        arena.keep if arena is not None else None,
        token_bytes=loaded.shape.block_bytes(1, loaded.dtype),
        batch_tokens=settings.max_batch_tokens,
        cipher=cipher,
    )
    if chain is None:
        return None
    name = fingerprint(loaded, settings, manager.hasher)
    chunks = ChunkLayout(pool, manager.hasher, tiers.chunk_tokens, name, arena)
    return TierConnector(chain, chunks, manager, pieces, timeout=tiers.load_timeout)


@dataclass(slots=True)
class TierLoad:
    """Chunks on their way to a sequence.

    Attributes:
        sequence: who waits.
        names: the chunks, in order.
        start, end: tokens of the sequence that are to come.
        reached: tokens up to which they have come.
        deadline: when to stop waiting, unless something comes.
        counts: whether the tokens count as cached in the sequence's usage.
        arrived: payloads that are not in the pool yet.
        over: nothing more will come.
        cancelled: nobody waits any more.
    """

    sequence: SequenceState
    names: list[ChunkName]
    start: int
    end: int
    reached: int
    deadline: float
    counts: bool
    arrived: deque[memoryview] = field(default_factory=deque)
    over: bool = False
    cancelled: bool = False


class TierConnector:
    """Loads for one engine, and what it saves (`saving`).

    Args:
        chain: the tiers.
        chunks: sequences in chunks.
        manager: the block cache.
        pieces: what of a sequence may be used again.
        timeout: seconds without progress after which a load is given up.
    """

    def __init__(
        self, chain: TierChain, chunks: ChunkLayout, manager: KVCacheManager, pieces: ChunkedPrefill, *, timeout: float
    ) -> None:
        self.chain = chain
        self._chunks = chunks
        self._manager = manager
        self._pieces = pieces
        self._timeout = timeout
        self.saving = ChunkSaver(chain, chunks, manager, pieces)
        self._loads: dict[str, TierLoad] = {}
        self._coming: set[str] = set()
        self._abandoned: list[TierLoad] = []
        self._arrived = threading.Event()
        self._readers = ThreadPoolExecutor(_READERS, "kvproxy-load")
        self.wake: Callable[[], None] = self._arrived.set

    def reach(self, sequence: SequenceState, found: int) -> int:
        """Tokens of a sequence that the pool (`found`) and the tiers may hold together; `found` if no tier adds any."""
        end = self._limit(sequence.cache)
        if sequence.cache.skip_read or end <= found or self._is_stuck():
            return found
        at = found // self._chunks.size
        (first,) = self._chunks.names(sequence.cache, at, at + 1)
        return end if self.chain.may_hold(first.key) else found

    def _limit(self, cache: CacheRequest) -> int:
        """Tokens of a request that could ever come from chunks: one at least must be computed, for its logits."""
        size = self._chunks.size
        multiple = self._pieces.multiple
        return min(cache.num_tokens // size * size, cache.num_tokens - 1) // multiple * multiple

    def candidates(self, cache: CacheRequest, found: int) -> list[tuple[str, int]]:
        """Chunks that would be looked for beyond the pool's `found` tokens: their keys, and the tokens each would add."""
        size, end = self._chunks.size, self._limit(cache)
        first = found // size
        names = self._chunks.names(cache, first, max(first, -(-end // size)))
        return [(name.key, min((at + 1) * size, end) - max(at * size, found)) for at, name in enumerate(names, first)]

    def _is_stuck(self) -> bool:
        """Whether every reader still hangs in a load that was given up."""
        self._abandoned = [load for load in self._abandoned if not load.over]
        return len(self._abandoned) >= _READERS

    def is_coming(self, sequence: SequenceState, found: int) -> bool:
        """Whether another sequence loads what this one needs next."""
        at, size = found // self._chunks.size, self._chunks.size
        if not self._coming or sequence.cache.skip_read or sequence.cache.num_tokens < (at + 1) * size:
            return False
        return self._chunks.names(sequence.cache, at, at + 1)[0].key in self._coming

    def begin(self, sequence: SequenceState, start: int, end: int, *, counts: bool) -> None:
        """Load tokens `start` to `end` into the sequence's blocks, which it holds already."""
        size = self._chunks.size
        names = self._chunks.names(sequence.cache, start // size, -(-end // size))
        load = TierLoad(sequence, names, start, end, start, time.monotonic() + self._timeout, counts)
        self._loads[sequence.cache.id] = load
        self._coming |= {name.key for name in names}
        self._readers.submit(self._read, load)

    def _read(self, load: TierLoad) -> None:
        try:
            for name in load.names:
                if load.cancelled:
                    break
                payload = self.chain.load(name.key, lambda data, name=name: read_payload(data, name))  # type: ignore[misc]
                if payload is None:
                    break
                load.arrived.append(payload)
                self.wake()
        except Exception:
            _log.exception("a load from the tiers failed; what is missing is computed")
        finally:
            load.over = True
            self.wake()

    def finished(self) -> list[SequenceState]:
        """Put what has come into the pool; the sequences whose loads are over, and how far is noted in them."""
        self._arrived.clear()
        done = []
        for load in list(self._loads.values()):
            over = load.over
            while load.arrived:
                self._place(load, load.arrived.popleft())
                load.deadline = time.monotonic() + self._timeout
            if over or time.monotonic() > load.deadline:
                self._end(load)
                if not load.over:
                    self._abandoned.append(load)
                self._complete(load)
                done.append(load.sequence)
        return done

    def _place(self, load: TierLoad, payload: memoryview) -> None:
        size, block_size = self._chunks.size, self._manager.block_size
        begin = load.reached // size * size
        end = min(begin + size, load.end)
        table = self._manager.get_block_ids(load.sequence.cache.id)[0]
        blocks = table[load.reached // block_size : end // block_size]
        self._chunks.write(payload, blocks, (load.reached - begin) // block_size)
        load.reached = end

    def _complete(self, load: TierLoad) -> None:
        sequence = load.sequence
        multiple = self._pieces.multiple
        reached = max(load.start, load.reached // multiple * multiple)
        sequence.cache.num_computed_tokens = reached
        self._manager.cache_blocks(sequence.cache, reached)
        if load.counts:
            sequence.tier_tokens = reached - load.start
            sequence.cached_tokens = reached

    def cancel(self, sequence: SequenceState) -> None:
        """Stop a load; what is still read is thrown away."""
        load = self._loads.get(sequence.cache.id)
        if load is not None:
            self._end(load)

    def _end(self, load: TierLoad) -> None:
        load.cancelled = True
        del self._loads[load.sequence.cache.id]
        self._coming = {name.key for other in self._loads.values() for name in other.names}

    @property
    def idle(self) -> bool:
        """Whether nothing has come that `finished` has not seen."""
        now = time.monotonic()
        return not any(load.arrived or load.over or now > load.deadline for load in self._loads.values())

    def wait(self, seconds: float) -> None:
        """Until something comes; only where `wake` was not set to something else."""
        self._arrived.wait(seconds)

    def clear(self, name: str, models: ModelScope) -> int | None:
        """Drop the chunks of a tier that were made by this model, by others, or by all; how many, None without that tier.

        Raises:
            TierError: the tier failed.
        """
        own = self._chunks.prefix
        chosen = {"own": lambda key: key.startswith(own), "others": lambda key: not key.startswith(own)}
        return self.chain.clear(name, chosen.get(models, lambda key: True))

    def close(self) -> None:
        """Stop loading and put away what waits."""
        for load in self._loads.values():
            load.cancelled = True
        self._readers.shutdown(cancel_futures=True)
        self.chain.close()
