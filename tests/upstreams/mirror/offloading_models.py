"""Models of caches behind an engine's GPU, written from the public code of SGLang 0.5.23, LMCache 0.5.6, and vLLM 0.32.

Each has the lookup of its source, and publishes events in its form.
"""

import random
from typing import Any

from kvproxy.blocks.block_hash import BlockHasher, event_hash
from kvproxy.blocks.cache_request import CacheRequest
from kvproxy.blocks.manager import KVCacheManager
from kvproxy.blocks.single_type_manager import GroupSpec

SIZE = 4
SEED = BlockHasher("sha256_cbor", "0")
Page = tuple[Any, ...]
"""A page's salt, and all tokens up to its end."""


class HiCache:
    """SGLang's radix tree over pages on the GPU and in host memory. The lookup follows both from the root.

    With `write_back`, a page is copied to the host when the GPU evicts it, otherwise when it is computed.
    """

    def __init__(self, gpu_pages: int, host_pages: int, *, write_back: bool) -> None:
        self._capacity = {"GPU": gpu_pages, "CPU_PINNED": host_pages}
        self._pages: dict[str, dict[Page, None]] = {"GPU": {}, "CPU_PINNED": {}}
        self._write_back = write_back
        self.events: list[dict[str, Any]] = []

    def lookup(self, tokens: list[int], salt: str | None) -> tuple[int, int]:
        """Return the length of the prefix on the GPU, and with its continuation on the host."""
        pages = self._pages_of(tokens[:-1], salt)
        on_gpu = next((index for index, page in enumerate(pages) if page not in self._pages["GPU"]), len(pages))
        total = on_gpu
        while total < len(pages) and pages[total] in self._pages["CPU_PINNED"]:
            total += 1
        return on_gpu * SIZE, total * SIZE

    def run(self, tokens: list[int], salt: str | None, rng: random.Random) -> None:
        pages = self._pages_of(tokens, salt)
        self._make_room("GPU", len(pages), keep=pages)
        for page in pages:
            self._add("GPU", page)
        if not self._write_back and rng.random() < 0.8:
            self._make_room("CPU_PINNED", len(pages), keep=pages)
            for page in pages:
                self._add("CPU_PINNED", page)

    def take_events(self) -> list[dict[str, Any]]:
        events, self.events = self.events, []
        return events

    def _pages_of(self, tokens: list[int], salt: str | None) -> list[Page]:
        return [(salt, *tokens[:end]) for end in range(SIZE, len(tokens) + 1, SIZE)]

    def _make_room(self, medium: str, count: int, keep: list[Page]) -> None:
        pages = self._pages[medium]
        while len(pages) + count > self._capacity[medium]:
            parents = {page[:-SIZE] for other in self._pages.values() for page in other} if medium != "GPU" else set()
            parents |= {page[:-SIZE] for page in pages}
            leaf = next((page for page in pages if page not in parents and page not in keep), None)
            if leaf is None:
                return
            if medium == "GPU" and self._write_back and leaf not in self._pages["CPU_PINNED"]:
                self._make_room("CPU_PINNED", 1, keep)
                self._add("CPU_PINNED", leaf)
            del pages[leaf]
            self.events.append({"type": "BlockRemoved", "block_hashes": [hash(leaf)], "medium": medium})

    def _add(self, medium: str, page: Page) -> None:
        pages = self._pages[medium]
        if page in pages:
            pages[page] = pages.pop(page)
            return
        pages[page] = None
        parent = page[:-SIZE] if len(page) > 1 + SIZE else None
        event: dict[str, Any] = {
            "type": "BlockStored",
            "block_hashes": [hash(page)],
            "parent_block_hash": None if parent is None else hash(parent),
            "token_ids": list(page[-SIZE:]),
            "block_size": SIZE,
            "lora_id": None,
            "medium": medium,
        }
        self.events.append(event if page[0] is None else event | {"cache_salt": page[0]})


class StoreBehindVLLM:
    """vLLM's GPU, and a store that matches a prompt from its start in chunks: LMCache, or the Mooncake store."""

    def __init__(self, chunk_tokens: int, *, is_mooncake: bool) -> None:
        self._gpu = KVCacheManager(50, groups=[GroupSpec("full", SIZE)], record_events=True, hasher=SEED)
        self._chunk = chunk_tokens
        self._is_mooncake = is_mooncake
        self._chunks: dict[Page, None] = {}
        self._events: list[dict[str, Any]] = []

    def lookup(self, tokens: list[int], salt: str | None) -> tuple[int, int]:
        on_gpu = self._gpu.get_computed_blocks(CacheRequest("", tokens, cache_salt=salt)).num_tokens
        chunks = self._chunks_of(tokens, salt)
        found = next((index for index, chunk in enumerate(chunks) if chunk not in self._chunks), len(chunks))
        return on_gpu, max(on_gpu, min(found * self._chunk, len(tokens) - 1))

    def run(self, tokens: list[int], salt: str | None, rng: random.Random) -> None:
        request = CacheRequest("r", tokens, cache_salt=salt)
        computed = self._gpu.get_computed_blocks(request)
        self._gpu.allocate_slots(request, len(tokens) - computed.num_tokens, computed)
        request.num_computed_tokens = len(tokens)
        self._gpu.free(request)
        chunks = self._chunks_of(tokens, salt)
        for index, chunk in enumerate(chunks[: rng.choice([len(chunks), 2])]):
            if chunk not in self._chunks:
                self._chunks[chunk] = None
                parent = chunks[index - 1] if index else None
                self._publish(chunk, parent, tokens[index * self._chunk : (index + 1) * self._chunk])
        while len(self._chunks) > 400 // self._chunk and not self._is_mooncake:
            oldest = next(iter(self._chunks))
            del self._chunks[oldest]
            self._events.append({"type": "BlockRemoved", "block_hashes": [self._hash(oldest)], "medium": "CPU"})

    def take_events(self) -> list[dict[str, Any]]:
        events, self._events = self._events, []
        return [*(event.as_wire() for event in self._gpu.take_events()), *events]

    def _chunks_of(self, tokens: list[int], salt: str | None) -> list[Page]:
        return [(salt, *tokens[:end]) for end in range(self._chunk, len(tokens) + 1, self._chunk)]

    def _hash(self, chunk: Page) -> int | bytes:
        if not self._is_mooncake:
            return (hash(chunk) & (1 << 64) - 1).to_bytes(32, "big")
        return event_hash(CacheRequest("", chunk[1:], cache_salt=chunk[0]).update_hashes(SEED, SIZE)[-1])

    def _publish(self, chunk: Page, parent: Page | None, tokens: list[int]) -> None:
        event: dict[str, Any] = {
            "type": "BlockStored",
            "block_hashes": [self._hash(chunk)],
            "parent_block_hash": None if parent is None else self._hash(parent),
            "token_ids": tokens,
            "block_size": self._chunk,
            "lora_id": None,
            "medium": "cpu",
            "lora_name": None,
        }
        self._events.append(event | {"group_idx": 0} if self._is_mooncake else event)
