"""Loads chunks from the tiers into the block pool, and saves complete chunks.

Threads read the chunks, and the engine's thread writes them to the pool.
"""

import hashlib
import json
import logging
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field

import torch
import xxhash

from kvproxy.blocks.block_hash import BlockHasher
from kvproxy.blocks.cache_request import CacheRequest
from kvproxy.blocks.manager import KVCacheManager
from kvproxy.engine.chunk_transfer import ChunkTransfer, PinnedBufferPool
from kvproxy.engine.models.loader import LoadedModel
from kvproxy.engine.scheduler.scheduler_output import ChunkedPrefill
from kvproxy.engine.scheduler.sequence import SequenceState
from kvproxy.engine.step_errors import is_device_error
from kvproxy.engine.worker.kv_pool import KVPool
from kvproxy.privacy.encryption import Cipher
from kvproxy.settings import EngineSettings, TierSettings
from kvproxy.tiers.checks import check_host_memory
from kvproxy.tiers.chunk_format import ChunkName, read_payload, write_header
from kvproxy.tiers.tier_chain import TierChain, build_chain

_ARITHMETIC_VERSION = 5  # increase it with every change of the code that may alter the last bits of keys or values
_IGNORED_CONFIG = ("_name_or_path", "transformers_version", "architectures", "torch_dtype", "dtype")
_NUM_READERS = 2
_log = logging.getLogger("kvproxy")


def create_tier_connector(
    loaded: LoadedModel,
    pool: KVPool,
    manager: KVCacheManager,
    chunked_prefill: ChunkedPrefill,
    settings: EngineSettings,
    tiers: TierSettings,
    cipher: Cipher | None = None,
) -> "TierConnector | None":
    if any(group.kind != "full" for group in loaded.groups):
        if tiers.enabled:
            _log.warning(
                "tiers are disabled for %s: its windows or chunks free blocks before a chunk of keys and values is complete",
                loaded.name,
            )
        return None
    buffers = PinnedBufferPool() if loaded.device.type == "cuda" else None
    if buffers is not None and tiers.host:
        # Pinned memory cannot be swapped out.
        check_host_memory(tiers.host)
    chain = build_chain(
        tiers,
        manager.block_size,
        buffers.copy_to_pinned_memory if buffers is not None else None,
        kv_bytes_per_token=loaded.shape.block_bytes(1, loaded.dtype),
        max_step_tokens=settings.max_num_batched_tokens,
        cipher=cipher,
    )
    if chain is None:
        return None
    fingerprint = model_fingerprint(loaded, settings, manager.hasher)
    transfer = ChunkTransfer(pool, manager.hasher, tiers.chunk_tokens, fingerprint, buffers)
    if buffers is not None and tiers.host:
        any_name = ChunkName(fingerprint, manager.hasher.none_hash, range(tiers.chunk_tokens))
        buffers.reserve(transfer.buffer_bytes(any_name), tiers.host)
    return TierConnector(chain, transfer, manager, chunked_prefill, tiers.load_timeout)


@dataclass(slots=True)
class TierLoad:
    """Loads the tokens of a sequence from position `start` to `end` from the tiers."""

    sequence: SequenceState
    names: list[ChunkName]
    start: int
    end: int
    loaded_until: int  # position up to which tokens were written to the pool
    deadline: float  # each new chunk postpones it
    count_as_cached: bool
    payloads: deque[memoryview] = field(default_factory=deque)  # read, but not yet written to the pool
    is_done: bool = False
    is_cancelled: bool = False


class TierConnector:
    """Connects an engine to its tiers. A load ends after `timeout` seconds without a new chunk."""

    def __init__(
        self,
        chain: TierChain,
        transfer: ChunkTransfer,
        manager: KVCacheManager,
        chunked_prefill: ChunkedPrefill,
        timeout: float,
    ) -> None:
        self.chain = chain
        self.num_hit_tokens = 0  # Prompt tokens that were loaded, as the pool's `hits`.
        self._transfer = transfer
        self._chunk_tokens = transfer.chunk_tokens
        self._manager = manager
        self._chunked_prefill = chunked_prefill
        self._alignment = chunked_prefill.alignment
        self._timeout = timeout
        self._loads: dict[str, TierLoad] = {}
        self._loading_keys: set[str] = set()
        self._timed_out: list[TierLoad] = []
        self._readers = ThreadPoolExecutor(_NUM_READERS, "kvproxy-load")
        # Readers call it after each chunk, so that the engine's thread writes the chunk to the pool.
        self.wake: Callable[[], None] = lambda: None

    def max_matched_tokens(self, sequence: SequenceState, num_pool_tokens: int) -> int:
        """Return an upper bound of the prompt tokens in pool and tiers.

        It assumes that the tiers contain all further chunks if they may contain the next one.
        """
        end = self._max_loaded_tokens(sequence.cache_request)
        self._timed_out = [load for load in self._timed_out if not load.is_done]
        all_readers_hang = len(self._timed_out) >= _NUM_READERS
        if sequence.cache_request.skip_read or end <= num_pool_tokens or all_readers_hang:
            return num_pool_tokens
        at = num_pool_tokens // self._chunk_tokens
        (first,) = self._transfer.chunk_names(sequence.cache_request, at, at + 1)
        return end if self.chain.may_contain(first.key) else num_pool_tokens

    def _max_loaded_tokens(self, cache_request: CacheRequest) -> int:
        size, num_tokens = self._chunk_tokens, cache_request.num_tokens
        return min(num_tokens // size * size, num_tokens - 1) // self._alignment * self._alignment

    def missing_chunks(self, cache_request: CacheRequest, num_pool_tokens: int) -> list[tuple[str, int]]:
        """Return the key of each chunk after the prefix in the pool, and how many of its tokens the pool lacks."""
        size, end = self._chunk_tokens, self._max_loaded_tokens(cache_request)
        first = num_pool_tokens // size
        names = self._transfer.chunk_names(cache_request, first, max(first, -(-end // size)))
        return [(name.key, self._needed_tokens(at, num_pool_tokens, end)) for at, name in enumerate(names, first)]

    def _needed_tokens(self, chunk: int, start: int, end: int) -> int:
        """Return how many of the tokens from `start` to `end` are in the chunk with this number."""
        return min((chunk + 1) * self._chunk_tokens, end) - max(chunk * self._chunk_tokens, start)

    def is_loading_prefix(self, sequence: SequenceState, num_pool_tokens: int) -> bool:
        """Whether another sequence is loading this sequence's first chunk after the prefix in the pool."""
        at, size = num_pool_tokens // self._chunk_tokens, self._chunk_tokens
        cache_request = sequence.cache_request
        if not self._loading_keys or cache_request.skip_read or cache_request.num_tokens < (at + 1) * size:
            return False
        return self._transfer.chunk_names(cache_request, at, at + 1)[0].key in self._loading_keys

    def start_load(self, sequence: SequenceState, start: int, end: int, *, count_as_cached: bool) -> None:
        size = self._chunk_tokens
        names = self._transfer.chunk_names(sequence.cache_request, start // size, -(-end // size))
        load = TierLoad(sequence, names, start, end, start, time.monotonic() + self._timeout, count_as_cached)
        self._loads[sequence.cache_request.id] = load
        self._loading_keys |= {name.key for name in names}
        self._readers.submit(self._read_chunks, load)

    def _read_chunks(self, load: TierLoad) -> None:
        try:
            first = load.start // self._chunk_tokens
            for at, name in enumerate(load.names, first):
                if load.is_cancelled:
                    break
                num_tokens = self._needed_tokens(at, load.start, load.end)
                payload = self.chain.load(name.key, lambda data, name=name: read_payload(data, name), num_tokens)  # type: ignore[misc]
                if payload is None:
                    break
                load.payloads.append(payload)
                self.wake()
        except Exception:
            _log.exception("a load from the tiers failed; the missing tokens are computed")
        finally:
            load.is_done = True
            self.wake()

    def finish_loads(self) -> list[SequenceState]:
        """Write loaded chunks to the pool. Return the sequences whose loads ended, complete or not."""
        finished = []
        for load in list(self._loads.values()):
            # Read before the payloads: the reader sets the flag last.
            is_done = load.is_done
            while load.payloads:
                self._write_chunk(load, load.payloads.popleft())
                load.deadline = time.monotonic() + self._timeout
            if is_done or time.monotonic() > load.deadline:
                self._remove_load(load)
                if not load.is_done:
                    self._timed_out.append(load)
                self._cache_loaded(load)
                finished.append(load.sequence)
        return finished

    def _write_chunk(self, load: TierLoad, payload: memoryview) -> None:
        size, block_size = self._chunk_tokens, self._manager.block_size
        chunk_start = load.loaded_until // size * size
        end = min(chunk_start + size, load.end)
        table = self._manager.get_block_ids(load.sequence.cache_request.id)[0]
        blocks = table[load.loaded_until // block_size : end // block_size]
        self._transfer.copy_to_pool(payload, blocks, (load.loaded_until - chunk_start) // block_size)
        load.loaded_until = end

    def _cache_loaded(self, load: TierLoad) -> None:
        sequence = load.sequence
        end = max(load.start, load.loaded_until // self._alignment * self._alignment)
        sequence.cache_request.num_computed_tokens = end
        self._manager.cache_blocks(sequence.cache_request, end)
        if load.count_as_cached:
            sequence.num_tier_tokens = end - load.start
            sequence.num_cached_tokens = end
            self.num_hit_tokens += end - load.start

    def cancel(self, sequence: SequenceState) -> None:
        load = self._loads.get(sequence.cache_request.id)
        if load is not None:
            self._remove_load(load)

    def _remove_load(self, load: TierLoad) -> None:
        load.is_cancelled = True
        del self._loads[load.sequence.cache_request.id]
        self._loading_keys = {name.key for other in self._loads.values() for name in other.names}

    @property
    def is_idle(self) -> bool:
        now = time.monotonic()
        return not any(load.payloads or load.is_done or now > load.deadline for load in self._loads.values())

    def save(self, sequences: Iterable[SequenceState]) -> None:
        """Save the chunks that the last step completed, until too many writes are pending.

        A sequence's later chunks wait for the next step, because a load ends at the first missing chunk.
        """
        for sequence in sequences:
            for name, blocks in self._unsaved_chunks(sequence):
                if self.chain.should_save(name.key) and not self._save_chunk(name, blocks):
                    break
                sequence.num_saved_chunks += 1

    def count_dropped_chunks(self, sequence: SequenceState) -> None:
        for name, _ in self._unsaved_chunks(sequence):
            self.chain.count_dropped(name.key)

    def _unsaved_chunks(self, sequence: SequenceState) -> Iterator[tuple[ChunkName, list[int]]]:
        first = sequence.num_saved_chunks
        request = sequence.cache_request
        cacheable = self._chunked_prefill.num_cacheable_tokens(sequence, request.num_computed_tokens)
        num_complete = cacheable // self._chunk_tokens
        if num_complete <= first:
            return
        table = self._manager.get_block_ids(request.id)[0]
        width = self._chunk_tokens // self._manager.block_size
        for at, name in enumerate(self._transfer.chunk_names(request, first, num_complete), first):
            yield name, table[at * width : (at + 1) * width]

    def _save_chunk(self, name: ChunkName, blocks: list[int]) -> bool:
        if not self.chain.has_room(self._transfer.buffer_bytes(name)):
            return False
        try:
            buffer, wait = self._transfer.copy_from_pool(blocks, name)
        except (RuntimeError, MemoryError) as error:
            if is_device_error(error):
                raise
            # A lack of host memory does not fail the step's requests.
            _log.warning("a chunk was not saved: %s", error)
            return False

        def finish() -> None:
            wait()
            write_header(buffer, name)

        accepted = self.chain.save(name.key, buffer, finish)
        if not accepted:
            # The buffer may be reused, so the copy must end first.
            wait()
        return accepted

    def close(self) -> None:
        for load in self._loads.values():
            load.is_cancelled = True
        self._readers.shutdown(cancel_futures=True)
        self.chain.close()


def model_fingerprint(loaded: LoadedModel, settings: EngineSettings, hasher: BlockHasher) -> bytes:
    """Return a 32-byte digest of the model and of the settings that change keys and values.

    In strict mode, it also covers everything that changes their last bits.
    """
    config = {name: value for name, value in loaded.model.config.to_dict().items() if name not in _IGNORED_CONFIG}
    shape = loaded.shape
    parts: dict[str, object] = {
        "config": config,
        "weights": _hash_weights(loaded.model),
        "dtype": str(loaded.dtype),
        "device": loaded.device.type,
        "shape": [shape.layers, shape.kv_heads, shape.head_dim, settings.block_size],
        "hashing": [hasher.algorithm, hasher.none_hash.hex()],
    }
    if settings.batch_invariant:
        processor: object = [torch.backends.cpu.get_cpu_capability(), settings.threads or torch.get_num_threads()]
        if loaded.device.type == "cuda":
            processor = torch.cuda.get_device_name(loaded.device)
        kernels = [settings.prefill_attention, settings.decode_attention, settings.cuda_graphs]
        parts["strict"] = [settings.max_num_batched_tokens, torch.__version__, processor, kernels, _ARITHMETIC_VERSION]
    return hashlib.sha256(json.dumps(parts, sort_keys=True, default=str).encode()).digest()


@torch.inference_mode()
def _hash_weights(model: torch.nn.Module) -> str:
    digest = xxhash.xxh3_128()
    for name, tensor in [*model.named_parameters(), *model.named_buffers()]:
        digest.update(f"{name} {tuple(tensor.shape)} {tensor.dtype}".encode())
        digest.update(tensor.detach().contiguous().flatten().view(torch.uint8).cpu().numpy().data)
    return digest.hexdigest()
