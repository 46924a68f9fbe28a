"""Conformance traces carried out by the block cache."""

from collections.abc import Iterable
from typing import Any

from kvproxy.blocks.cache_request import CacheRequest, MMItem
from kvproxy.blocks.events import AllBlocksCleared, BlockRemoved, BlockStored
from kvproxy.blocks.manager import KVCacheManager
from tests.reference.naive_trace import NaiveTrace, crc, segment


def replay(steps: Iterable[dict[str, Any]]) -> list[str]:
    """Return a line for each request that ended, and a line with totals; the first step is the header."""
    header, *operations = steps
    trace = _TraceReplay(header, "0")
    for step in operations:
        trace.apply(step)
    return trace.results()


class _TraceReplay(NaiveTrace):
    """The naive model's reading of a trace, with the real manager in place of its lists."""

    def __init__(self, header: dict[str, Any], seed: str) -> None:
        super().__init__(header, seed)
        self.manager = KVCacheManager(self.num_blocks, self.size, record_events=True)

    def start(self, declared: dict[str, Any], count: int) -> None:
        tokens = [token for seed, length in declared["segs"] for token in segment(seed, length, self.vocab)]
        lora, mm = declared.get("lora"), declared.get("mm") or ()
        real = CacheRequest(
            declared["id"],
            tokens,
            cache_salt=declared.get("salt"),
            lora=tuple(lora) if lora else None,
            mm=tuple(MMItem(*item) for item in mm),
        )
        computed = self.manager.get_computed_blocks(real)
        hit = computed.num_tokens
        request = declared | {"real": real, "tokens": tokens, "prompt": len(tokens), "hit": hit}
        new = min(count, len(tokens) - hit)
        if self.manager.allocate_slots(real, new, computed) is None:
            self.report(request, "rejected", hit, 0)
            return
        real.num_computed_tokens = hit + new
        request |= {"out": segment(*declared["out"], self.vocab), "computed": hit + new}
        self.live[real.id] = request | {"ids0": crc(self.table(request))}

    def grow(self, request: dict[str, Any], count: int) -> bool:
        real = self._with_new_tokens(request)
        if self.manager.allocate_slots(real, count) is None:
            return False
        real.num_computed_tokens += count
        request["computed"] += count
        return True

    def end(self, request: dict[str, Any], status: str) -> None:
        real = self._with_new_tokens(request)
        real.update_hashes(self.manager.hasher, self.manager.hash_block_size)
        self.report(request, status, request["hit"], request["ids0"])
        self.manager.free(real)
        del self.live[real.id]

    def _with_new_tokens(self, request: dict[str, Any]) -> CacheRequest:
        real: CacheRequest = request["real"]
        for token in request["tokens"][real.num_tokens :]:
            real.append(token)
        return real

    def table(self, request: dict[str, Any]) -> list[int]:
        return self.manager.get_block_ids(request["id"])[0]

    def hashes(self, request: dict[str, Any]) -> list[bytes]:
        hashes: list[bytes] = request["real"].block_hashes
        return hashes

    def reset(self) -> None:
        self.manager.reset_prefix_cache()

    def results(self) -> list[str]:
        pool, stats = self.manager.pool, self.manager.stats()
        self.free = [block.id for block in pool.free_queue]
        self.copies = {key: [] for key in pool.cached_blocks}
        self.queries, self.hits = stats.queries, stats.hits
        events = self.manager.take_events()
        self.stored = sum(len(event.hashes) for event in events if isinstance(event, BlockStored))
        self.removed = sum(len(event.hashes) for event in events if isinstance(event, BlockRemoved))
        self.cleared = sum(isinstance(event, AllBlocksCleared) for event in events)
        return super().results()
