"""A pytest plugin that puts kvproxy's block cache under the names of vLLM's, for vLLM's own tests.

    pytest -p kvproxy_names tests/v1/core/test_prefix_caching.py

It translates names, arguments, and results only. Requests, specifications, and the structures of events are vLLM's. A test
that needs a part of vLLM that kvproxy does not have is skipped; the reason names the part. Written against vLLM 0.33.0.
"""

import functools
import sys
from collections.abc import Callable, Iterable, Iterator, MutableMapping, Sequence
from typing import Any, ClassVar, NoReturn

import msgspec
import pytest
import vllm.utils.hashing as vllm_hashing
import vllm.v1.core.block_pool as vllm_pool
import vllm.v1.core.kv_cache_manager as vllm_manager
import vllm.v1.core.kv_cache_utils as vllm_utils
import vllm.v1.core.single_type_kv_cache_manager as vllm_single
from vllm.distributed.kv_events import KVEventBatch
from vllm.v1.core.kv_cache_manager import KVCacheBlocks
from vllm.v1.kv_cache_interface import ChunkedLocalAttentionSpec, FullAttentionSpec, SlidingWindowSpec

import kvproxy.blocks.block_pool as our_pool
import kvproxy.blocks.eviction.free_queues as our_queues
from kvproxy.blocks.block import KVCacheBlock
from kvproxy.blocks.block_hash import BlockHasher, HashAlgorithm
from kvproxy.blocks.cache_request import CacheRequest, MMItem
from kvproxy.blocks.events import KVEvent
from kvproxy.blocks.manager import ComputedBlocks, KVCacheManager
from kvproxy.blocks.single_type_manager import MANAGERS, GroupSpec, SingleTypeKVCacheManager

Key = bytes
"""vLLM's key of a cached block: its hash and four bytes of the group's index."""
EventBatch = msgspec.msgpack.Decoder(KVEventBatch)


class Use:
    """Whether the running test uses a name of this plugin."""

    seen = False


def marks_use(function: Any) -> Any:
    @functools.wraps(function)
    def marked(*arguments: Any, **named: Any) -> Any:
        Use.seen = True
        return function(*arguments, **named)

    return marked


def not_covered(part: str) -> NoReturn:
    pytest.skip(f"not covered: {part}")


def require(condition: object, part: str) -> None:
    if not condition:
        not_covered(part)


class NamedBlock(KVCacheBlock):
    __slots__ = ("is_null",)

    @marks_use
    def __init__(self, block_id: int, is_null: bool = False) -> None:
        super().__init__(block_id)
        self.is_null = is_null

    @property
    def block_id(self) -> int:
        return self.id

    @property
    def ref_cnt(self) -> int:
        return self.ref_count

    @ref_cnt.setter
    def ref_cnt(self, count: int) -> None:
        self.ref_count = count

    @property
    def block_hash(self) -> Key | None:
        return None if self.hash is None else vllm_utils.make_block_hash_with_group_id(self.hash, self.group or 0)

    def set_block_hash(self, key: Key, num_tokens: int | None = None) -> None:
        self.hash, self.group = vllm_utils.get_block_hash(key), vllm_utils.get_group_id(key)

    def reset_hash(self) -> None:
        self.hash = None

    @property
    def prev_free_block(self) -> KVCacheBlock | None:
        return self.prev

    @prev_free_block.setter
    def prev_free_block(self, block: KVCacheBlock | None) -> None:
        self.prev = block

    @property
    def next_free_block(self) -> KVCacheBlock | None:
        return self.next

    @next_free_block.setter
    def next_free_block(self, block: KVCacheBlock | None) -> None:
        self.next = block


class NamedQueue(our_queues.FreeKVCacheBlockQueue):
    @property
    def fake_free_list_head(self) -> KVCacheBlock:
        return self._head

    @property
    def fake_free_list_tail(self) -> KVCacheBlock:
        return self._tail

    def get_all_free_blocks(self) -> list[KVCacheBlock]:
        return list(self)

    def popleft(self) -> KVCacheBlock:
        if not self.num_free_blocks:
            raise ValueError("No free blocks available")
        return self.popleft_n(1)[0]

    def remove(self, block: KVCacheBlock) -> None:
        self.remove_blocks([block])

    def append(self, block: KVCacheBlock) -> None:
        self.append_n([block])


class CachedBlocks(MutableMapping[Key, Any]):
    """The pool's map of cached blocks with vLLM's keys, and dictionaries of copies in place of lists."""

    def __init__(self, pool: "NamedPool") -> None:
        self._pool = pool

    @property
    def _cache(self) -> "CachedBlocks":
        return self

    def _ours(self, key: Key) -> our_pool.BlockKey:
        digest: bytes = vllm_utils.get_block_hash(key)
        return digest if self._pool.has_one_group else (vllm_utils.get_group_id(key), digest)

    def __getitem__(self, key: Key) -> Any:
        found = self._pool.cached_blocks[self._ours(key)]
        return {block.id: block for block in found} if isinstance(found, list) else found

    def __setitem__(self, key: Key, value: Any) -> None:
        self._pool.cached_blocks[self._ours(key)] = list(value.values()) if isinstance(value, dict) else value

    def __delitem__(self, key: Key) -> None:
        del self._pool.cached_blocks[self._ours(key)]

    def __iter__(self) -> Iterator[Key]:
        for key in self._pool.cached_blocks:
            group, digest = (0, key) if isinstance(key, bytes) else key
            yield vllm_utils.make_block_hash_with_group_id(digest, group)

    def __len__(self) -> int:
        return len(self._pool.cached_blocks)

    def __eq__(self, other: object) -> bool:
        # The pool keeps a list of one block after a copy's eviction.
        return dict(self) == other

    __hash__ = None

    def __copy__(self) -> dict[Key, Any]:
        return dict(self)

    def insert(self, key: Key, block: KVCacheBlock) -> None:
        copies = self._pool.cached_blocks.get(self._ours(key))
        copies = copies if isinstance(copies, list) else [copies] if copies else []
        self._pool.cached_blocks[self._ours(key)] = [*copies, block] if copies else block

    def pop(self, key: Key, block_id: Any = None) -> Any:
        """Remove the block with an id; without an id, all blocks of a key, as a dictionary does."""
        if block_id is not None and key not in self:
            return None
        found = self[key]
        if block_id is None or not isinstance(found, dict):
            del self[key]
            return found
        self._pool.cached_blocks[self._ours(key)] = [block for id, block in found.items() if id != block_id]
        return found[block_id]


class NamedPool(our_pool.BlockPool):
    @marks_use
    def __init__(
        self,
        num_gpu_blocks: int = 0,
        enable_caching: bool = True,
        hash_block_size: int = 0,
        enable_kv_cache_events: bool = False,
        metrics_collector: object = None,
        *,
        num_blocks: int = 0,
        record_events: bool = False,
        **options: Any,
    ) -> None:
        require(enable_caching, "a disabled cache")
        options["make_queue"] = NamedQueue
        super().__init__(num_gpu_blocks or num_blocks, record_events=record_events or enable_kv_cache_events, **options)
        self.null_block.is_null = True
        self.hash_block_size = hash_block_size
        self.has_one_group = False
        self.managers: tuple[SingleTypeKVCacheManager, ...] = ()
        self.cached_block_hash_to_block = CachedBlocks(self)

    @property
    def free_block_queue(self) -> our_queues.FreeQueue:
        return self.free_queue

    @property
    def kv_event_queue(self) -> list[KVEvent]:
        return self.events

    def get_num_free_blocks(self) -> int:
        return self.num_free_blocks

    def get_cached_block(self, key: our_pool.BlockKey, kv_cache_group_ids: Sequence[int] = ()) -> Any:
        if not kv_cache_group_ids:
            return super().get_cached_block(key)
        assert isinstance(key, bytes)
        keys = [key if self.has_one_group else (group, key) for group in kv_cache_group_ids]
        found = [super(NamedPool, self).get_cached_block(each) for each in keys]
        return None if None in found else found

    def cache_full_blocks(self, request: Any, *arguments: Any, **named: Any) -> None:
        if not named:
            return super().cache_full_blocks(request, *arguments)
        first, end, size = named["num_cached_blocks"], named["num_full_blocks"], named["block_size"]
        group, blocks = named["kv_cache_group_id"], list(named["blocks"][first:end])
        manager = (
            self.managers[group]
            if self.managers
            else MANAGERS["full"](
                GroupSpec("full", size), self, group_id=group, hash_block_size=size, alignment_tokens=size
            )
        )
        ours = our_request(request)
        hashes = manager.select_hashes(ours.update_hashes(BlockHasher("sha256"), self.hash_block_size))
        # The blocks of these tests are in no block table.
        for block in blocks:
            block.ref_count += 1
        super().cache_full_blocks(ours, hashes, blocks, first, size, None if self.has_one_group else group)
        for block in blocks:
            block.ref_count -= 1
        if self.record_events:
            manager._record_stored(ours, hashes, blocks, first)
        return None

    def free_blocks(self, blocks: Iterable[KVCacheBlock]) -> None:
        super().free_blocks(list(blocks))

    def _maybe_evict_cached_block(self, block: KVCacheBlock) -> None:
        self.evict_blocks([block])

    def emit_cached_block_events(self, **named: Any) -> NoReturn:
        not_covered("kv_cache_report_mode: full")

    def take_events(self) -> list[Any]:
        return vllm_events(super().take_events())


def vllm_events(events: Iterable[Any]) -> list[Any]:
    """Decode the published bytes of events with vLLM's own decoder."""
    require(all(hasattr(event, "as_wire") for event in events), "events that a test puts into the pool")
    return EventBatch.decode(msgspec.msgpack.encode([0.0, [event.as_wire() for event in events]])).events


def our_request(request: Any) -> CacheRequest:
    """Return the request's double, with today's tokens and counts."""
    ours = getattr(request, "of_kvproxy", None)
    if ours is None:
        require(request.prompt_embeds is None, "prompt embeddings")
        require(getattr(request, "kv_cache_report_mode", "incremental") != "full", "kv_cache_report_mode: full")
        ours = request.of_kvproxy = CacheRequest(request.request_id, request.prompt_token_ids)
    lora = request.lora_request
    ours.tokens = list(request.all_token_ids)
    ours.num_prompt_tokens = request.num_prompt_tokens
    ours.cache_salt, ours.session_id = request.cache_salt, request.session_id
    # A request hashes its prompt before it has this attribute.
    ours.skip_read = getattr(request, "skip_reading_prefix_cache", False)
    ours.lora = (lora.lora_name, lora.lora_path) if lora else None
    ours.lora_id = lora.adapter_id if lora else None
    ours.mm = tuple(
        MMItem(item.identifier, item.mm_position.offset, item.mm_position.length) for item in request.mm_features or ()
    )
    ours.num_computed_tokens = request.num_computed_tokens
    ours.block_hashes = list(request.block_hashes)
    return ours


ALGORITHMS: dict[Callable[[Any], bytes], HashAlgorithm] = {
    vllm_hashing.sha256: "sha256",
    vllm_hashing.sha256_cbor: "sha256_cbor",
    vllm_hashing.xxhash: "xxhash",
    vllm_hashing.xxhash_cbor: "xxhash_cbor",
    # The default of tests that compare no digests.
    hash: "sha256",
}


@marks_use
def init_none_hash(hash_fn: Callable[[Any], bytes]) -> None:
    vllm_utils.NONE_HASH = BlockHasher(ALGORITHMS[hash_fn]).none_hash


@marks_use
def hash_block_tokens(
    hash_fn: Callable[[Any], bytes], parent: bytes | None, tokens: Sequence[int], extra_keys: Any = None
) -> bytes:
    hasher, keys = BlockHasher(ALGORITHMS[hash_fn]), None if extra_keys is None else lambda start: extra_keys
    return hasher.hash_blocks(list(tokens), len(tokens), parent=parent or None, extra_keys=keys)[0]


@marks_use
def get_request_block_hasher(
    size: int, hash_fn: Callable[[Any], bytes], num_hash_lookahead_tokens: int = 0
) -> Callable[[Any], list[bytes]]:
    require(num_hash_lookahead_tokens == 0, "lookahead hashes of speculative decoding")
    hasher = BlockHasher(ALGORITHMS[hash_fn])

    def new_hashes(request: Any) -> list[bytes]:
        ours = our_request(request)
        done = len(ours.block_hashes)
        return ours.update_hashes(hasher, size)[done:]

    return new_hashes


@marks_use
def generate_block_hash_extra_keys(request: Any, start: int, end: int, start_mm_idx: int) -> tuple[Any, int]:
    items = our_request(request).mm
    # vLLM resumes its search at this item; kvproxy searches all items.
    following = next((i for i, item in enumerate(items) if item.offset + item.length > end), len(items))
    following = min(following, next((i for i, item in enumerate(items) if item.offset >= end), len(items)))
    return our_request(request).extra_keys(start, end), following


def group_spec(spec: Any, retention_interval: int | None, only_kind: bool = False) -> GroupSpec:
    if isinstance(spec, SlidingWindowSpec):
        return GroupSpec("sliding_window", spec.block_size, spec.sliding_window, retention_interval)
    if isinstance(spec, ChunkedLocalAttentionSpec):
        return GroupSpec("chunked_local", spec.block_size, spec.attention_chunk_size)
    require(isinstance(spec, FullAttentionSpec), f"groups of {type(spec).__name__}")
    # vLLM has one interval for all groups, and refuses it if no group can obey it.
    return GroupSpec("full", spec.block_size, retention_interval=retention_interval if only_kind else None)


class NamedGroup:
    """vLLM's `SingleTypeKVCacheManager` around a group of kvproxy."""

    # Tests read tables after their request is freed, which reverses kvproxy's lists.
    _copies_tables = False

    @marks_use
    def __init__(self, spec: Any, block_pool: NamedPool, **options: Any) -> None:
        require(options.get("dcp_world_size", 1) == options.get("pcp_world_size", 1) == 1, "context parallelism")
        require(not options.get("needs_kv_cache_zeroing"), "zeroing of new blocks")
        ours = group_spec(spec, None)
        self.ours = MANAGERS[ours.kind](
            ours,
            block_pool,
            group_id=options["kv_cache_group_id"],
            hash_block_size=block_pool.hash_block_size,
            alignment_tokens=options.get("scheduler_block_size", ours.block_size),
        )

    @classmethod
    def around(cls, group: SingleTypeKVCacheManager) -> "NamedGroup":
        made = cls.__new__(cls)
        made.ours, made._copies_tables = group, True
        return made

    def __getattr__(self, name: str) -> NoReturn:
        not_covered(f"SingleTypeKVCacheManager.{name}")

    @property
    def req_to_blocks(self) -> dict[str, list[KVCacheBlock]]:
        tables = self.ours.tables
        return {id: list(table) for id, table in tables.items()} if self._copies_tables else tables

    @property
    def block_size(self) -> int:
        return self.ours.block_size

    def find_longest_cache_hit(
        self, block_hashes: Sequence[bytes], max_length: int, drop_eagle_block: bool = False, **options: Any
    ) -> tuple[tuple[list[KVCacheBlock], ...], int]:
        require(not drop_eagle_block, "EAGLE")
        size = self.ours.block_size
        found = self.ours.find_longest_cache_hit(self.ours.select_hashes(block_hashes), max_length // size)
        return (found,), len(found) * size

    def get_num_blocks_to_allocate(
        self, request_id: str, num_tokens: int, new_computed_blocks: Sequence[KVCacheBlock], *counts: int, **named: int
    ) -> int:
        return self.ours.get_num_blocks_to_allocate(request_id, num_tokens, new_computed_blocks)

    def add_local_computed_blocks(self, request_id: str, blocks: Sequence[KVCacheBlock], **counts: int) -> None:
        self.ours.pool.touch(blocks)
        self.ours.allocate_new_computed_blocks(request_id, blocks)

    def allocate_new_blocks(self, request_id: str, num_tokens: int, num_tokens_main_model: int) -> list[KVCacheBlock]:
        return self.ours.allocate_new_blocks(CacheRequest(request_id, ()), num_tokens)

    def remove_skipped_blocks(self, request_id: str, num_computed_tokens: int) -> None:
        self.ours.remove_skipped_blocks(request_id, num_computed_tokens)

    def pop_blocks_for_free(self, request_id: str) -> NoReturn:
        not_covered("frees in two steps, for asynchronous scheduling")

    @classmethod
    @marks_use
    def reachable_block_mask(
        cls,
        start_block: int,
        end_block: int,
        alignment_tokens: int,
        kv_cache_spec: Any,
        use_eagle: bool,
        retention_interval: int | None = None,
        reachable_boundaries: Sequence[int] = (),
        dcp_world_size: int = 1,
        final_segment_end_block: int | None = None,
    ) -> list[bool] | None:
        require(not use_eagle, "EAGLE")
        require(dcp_world_size == 1, "context parallelism")
        require(final_segment_end_block is None, "the last segment of a connector's chunks")
        require(alignment_tokens % kv_cache_spec.block_size == 0, "an alignment within blocks, of connectors")
        pool = NamedPool(end_block + 1, hash_block_size=kv_cache_spec.block_size)
        spec = group_spec(kv_cache_spec, retention_interval)
        group = MANAGERS[spec.kind](
            spec, pool, group_id=0, hash_block_size=spec.block_size, alignment_tokens=alignment_tokens
        )
        last, shared = [*reachable_boundaries, 0, 0][:2]
        request = CacheRequest("mask", [0] * (last + 1))
        request.shared_prefix_end = shared
        blocks = group._cacheable_blocks(request, pool.blocks[1:], start_block, end_block)
        mask = [block is not pool.null_block for block in blocks]
        return None if all(mask) else mask


class SlidingWindowManager(NamedGroup):
    pass


class Coordinator:
    def __init__(self, groups: Sequence[SingleTypeKVCacheManager], retention_interval: int | None) -> None:
        self.single_type_managers = [NamedGroup.around(group) for group in groups]
        self.retention_interval = retention_interval


class UnitaryKVCacheCoordinator(Coordinator):
    pass


class NamedManager:
    logger: ClassVar[Any] = vllm_manager.logger

    @marks_use
    def __init__(
        self,
        kv_cache_config: Any,
        max_model_len: int,
        scheduler_block_size: int,
        hash_block_size: int,
        max_in_flight_tokens: int | None = None,
        enable_caching: bool = True,
        use_eagle: bool = False,
        num_hash_lookahead_tokens: int = 0,
        num_prefill_lookahead: int = 0,
        log_stats: bool = False,
        enable_kv_cache_events: bool = False,
        dcp_world_size: int = 1,
        pcp_world_size: int = 1,
        metrics_collector: object = None,
        watermark: float = 0.0,
        enable_mamba_shared_prefix_checkpoint: bool = False,
    ) -> None:
        require(kv_cache_config.hisparse_host_num_blocks is None, "HiSparse")
        require(dcp_world_size == pcp_world_size == 1, "context parallelism")
        require(not (use_eagle or num_hash_lookahead_tokens or num_prefill_lookahead), "EAGLE")
        require(enable_caching, "a disabled cache")
        require(metrics_collector is None, "vLLM's sampled metrics of blocks")
        require(watermark == 0.0, "a watermark of free blocks")
        interval = kv_cache_config.prefix_cache_retention_interval
        try:
            groups = kv_cache_config.kv_cache_groups
            specs = [group_spec(group.kv_cache_spec, interval, len(groups) == 1) for group in groups]
            self.ours = KVCacheManager(
                kv_cache_config.num_blocks,
                groups=specs,
                record_events=enable_kv_cache_events,
                hash_block_size=hash_block_size,
            )
        except ValueError as error:
            # The tests compare vLLM's words.
            words = "multiple of scheduler_block_size, non-negative, no sliding-window or Mamba"
            raise ValueError(f"{error} ({words})") from error
        pool = self.ours.pool
        assert isinstance(pool, NamedPool)
        pool.has_one_group, pool.managers = len(specs) == 1, self.ours.groups
        pool.hash_block_size = self.ours.hash_block_size
        self.block_pool = pool
        kind = UnitaryKVCacheCoordinator if len(specs) == 1 else Coordinator
        self.coordinator = kind(self.ours.groups, interval)
        self._logs_stats = log_stats
        self.empty_kv_cache_blocks = KVCacheBlocks(tuple(() for _ in specs))
        self._max_step_tokens = max_in_flight_tokens or max_model_len

    @property
    def prefix_cache_stats(self) -> None:
        require(not self._logs_stats, "vLLM's statistics of prefix caching")

    def get_computed_blocks(self, request: Any) -> tuple[KVCacheBlocks, int, int]:
        computed = self.ours.get_computed_blocks(our_request(request))
        return KVCacheBlocks(computed.groups), computed.num_tokens, computed.shared_prefix_end

    def allocate_slots(
        self,
        request: Any,
        num_new_tokens: int,
        num_new_computed_tokens: int = 0,
        new_computed_blocks: KVCacheBlocks | None = None,
        num_lookahead_tokens: int = 0,
        num_external_computed_tokens: int = 0,
        delay_cache_blocks: bool = False,
        full_sequence_must_fit: bool = False,
        reserved_blocks: int = 0,
    ) -> KVCacheBlocks | None:
        require(num_external_computed_tokens == 0, "tokens of a connector")
        require(reserved_blocks == 0, "reserved blocks")
        ours = our_request(request)
        computed = None
        if ours.id not in self.ours.requests:
            blocks = new_computed_blocks or self.empty_kv_cache_blocks
            boundary = getattr(request, "shared_prefix_boundary", 0)
            computed = ComputedBlocks(tuple(list(group) for group in blocks.blocks), num_new_computed_tokens, boundary)
            if full_sequence_must_fit and not self.ours.can_fit_full_sequence(ours, computed, self._max_step_tokens):
                return None
        before = [
            len(group.tables.get(ours.id, ())) if computed is None else len(hit)
            for group, hit in zip(self.ours.groups, computed.groups if computed else self.ours.groups, strict=True)
        ]
        done = self.ours.allocate_slots(
            ours,
            num_new_tokens,
            computed,
            num_lookahead_tokens=num_lookahead_tokens,
            delay_cache_blocks=delay_cache_blocks,
        )
        if done is None:
            return None
        tables = [group.tables[ours.id] for group in self.ours.groups]
        return KVCacheBlocks(tuple(table[count:] for table, count in zip(tables, before, strict=True)))

    def free(self, request: Any) -> None:
        self.ours.free(our_request(request))

    def cache_blocks(self, request: Any, num_computed_tokens: int) -> None:
        self.ours.cache_blocks(our_request(request), num_computed_tokens)

    def evict_blocks(self, block_ids: set[int]) -> None:
        self.ours.evict_blocks(block_ids)

    def reset_prefix_cache(self) -> bool:
        return self.ours.reset_prefix_cache()

    def take_events(self) -> list[Any]:
        return self.ours.take_events()

    def get_block_ids(self, request_id: str) -> tuple[list[int], ...]:
        return self.ours.get_block_ids(request_id)

    def get_blocks(self, request_id: str) -> KVCacheBlocks:
        return KVCacheBlocks(tuple(group.tables.get(request_id, []) for group in self.ours.groups))

    def new_step_starts(self) -> None:
        """vLLM resets the partial hits of Mamba layers here."""

    @property
    def usage(self) -> float:
        return self.ours.stats().usage

    def __getattr__(self, name: str) -> NoReturn:
        not_covered(f"KVCacheManager.{name}")


def _not_covered_class(name: str) -> type:
    def refuse(self: object, *arguments: object, **named: object) -> NoReturn:
        not_covered(name)

    return type(name, (), {"__init__": refuse, "reachable_block_mask": classmethod(refuse)})


NAMES: dict[Any, dict[str, Any]] = {
    vllm_utils: {
        "KVCacheBlock": NamedBlock,
        "FreeKVCacheBlockQueue": NamedQueue,
        "init_none_hash": init_none_hash,
        "hash_block_tokens": hash_block_tokens,
        "get_request_block_hasher": get_request_block_hasher,
        "generate_block_hash_extra_keys": generate_block_hash_extra_keys,
    },
    vllm_pool: {"BlockPool": NamedPool, "BlockHashToBlockMap": _not_covered_class("BlockHashToBlockMap")},
    vllm_manager: {"KVCacheManager": NamedManager},
    vllm_single: {
        "SlidingWindowManager": SlidingWindowManager,
        "FullAttentionManager": NamedGroup,
        "ChunkedLocalAttentionManager": NamedGroup,
        **{name: _not_covered_class(name) for name in ("MambaManager", "RSWAManager", "CircularBufferManager")},
    },
}


def pytest_configure() -> None:
    # The pool and the queue make blocks by these names.
    our_pool.KVCacheBlock = our_queues.KVCacheBlock = NamedBlock
    manager_module = sys.modules[KVCacheManager.__module__]
    manager_module.BlockPool = NamedPool
    for module, names in NAMES.items():
        for name, ours in names.items():
            setattr(module, name, ours)


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_call() -> None:
    Use.seen = False


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(call: Any) -> Any:
    report = yield
    reason = None
    if report.when == "call" and report.outcome != "skipped" and not Use.seen:
        reason = "about other parts of vLLM"
    elif report.when == "setup" and report.failed:
        reason = "a fixture of vLLM's conftest.py"
    if reason is not None:
        report.outcome, report.longrepr = "skipped", (*report.location[:2], f"Skipped: {reason}")
    return report
