"""A proxy whose pool has tens of thousands of blocks: the real manager of blocks, filled without a model to compute them."""

import asyncio
import contextlib
import random
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any, TypeVar

from kvproxy.backends.embedded import EmbeddedPrefixCache
from kvproxy.blocks.cache_request import CacheRequest
from kvproxy.blocks.manager import KVCacheManager
from kvproxy.http.serve import make_server
from kvproxy.http.services import build_services
from kvproxy.settings import load_settings
from tests.plain_upstream import run_plain_upstream
from tests.servers import run_server

WORDS = "block prefix cache token prompt answer queue evict reuse hash chain pool".split()
T = TypeVar("T")


def filled(num_blocks: int, seed: int = 1) -> KVCacheManager:
    """A pool in which chats of several tenants left their blocks, some of them still under way."""
    manager = KVCacheManager(num_blocks, 16)
    choose = random.Random(seed)
    number = 0
    while number % 50 or sum(block.hash is None for block in manager.pool.blocks) > num_blocks // 20:
        tenant = choose.randrange(12)
        system = [tenant, *range(16 * choose.choice((10, 20)))]
        tokens = [*system, *(choose.randrange(1000) for _ in range(16 * choose.randint(4, 60)))]
        request = CacheRequest(f"r{number}", tokens, salt=f"client:tenant-{tenant}:")
        computed = manager.get_computed_blocks(request)
        assert manager.allocate_slots(request, len(tokens) - computed.num_tokens, computed) is not None
        request.num_computed_tokens = len(tokens)
        manager.cache_blocks(request, len(tokens))
        if number % 20:
            manager.free(request)
        number += 1
    return manager


class Worker:
    """The part of an engine's worker that shows a pool."""

    block_bytes = 1024

    def __init__(self, manager: KVCacheManager) -> None:
        self.manager = manager
        self.async_tokenizer = self

    async def inspect(self, read: Callable[[KVCacheManager], T]) -> T:
        return await asyncio.to_thread(read, self.manager)

    async def decode_with_special_tokens(self, ids: Sequence[int]) -> str:
        return "".join(f"{WORDS[id % len(WORDS)]} " for id in ids)

    def tier_stats(self) -> list[object]:
        return []


@contextlib.contextmanager
def run_large(data: Path, num_blocks: int, **settings: Any) -> Iterator[tuple[str, KVCacheManager, Any]]:
    """Serve it; its URL, its manager of blocks and its parts."""
    manager = filled(num_blocks)
    with run_plain_upstream() as upstream:
        found = load_settings(
            data=data, upstream=upstream, cache={"semantic": False}, limits={"drain_seconds": 0.0}, **settings
        )
        services = build_services(found)
        services.prefix = EmbeddedPrefixCache(SimpleNamespace(worker=Worker(manager)))  # type: ignore[arg-type]
        with run_server(make_server(services)) as url:
            yield url, manager, services
