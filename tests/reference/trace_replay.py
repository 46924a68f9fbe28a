"""Traces of block operations, carried out by the block cache."""

import hashlib
import json
import struct
import zlib
from collections.abc import Iterable
from typing import Any

from kvproxy.blocks.cache_request import CacheRequest, MMItem
from kvproxy.blocks.events import AllBlocksCleared, BlockRemoved, BlockStored
from kvproxy.blocks.manager import KVCacheManager


def replay(steps: Iterable[dict[str, Any]]) -> list[str]:
    """Return a line for each request that ended, and a line with totals; the first step is the header."""
    header, *operations = steps
    trace = _TraceReplay(header)
    for step in operations:
        trace.apply(step)
    return trace.results()


class Trace:
    """Reads the operations of a trace; a subclass carries them out by a block cache."""

    def __init__(self, header: dict[str, Any]) -> None:
        self.size, self.vocab, self.num_blocks = header["block_size"], header["vocab"], header["num_blocks"]
        self.declared: dict[str, dict[str, Any]] = {}
        self.live: dict[str, dict[str, Any]] = {}
        self.lines: list[str] = []

    def start(self, declared: dict[str, Any], count: int) -> None:
        """Look up a request, and compute a number of its tokens."""
        raise NotImplementedError

    def grow(self, request: dict[str, Any], count: int) -> bool:
        """Compute tokens of a live request; return False if the pool has too few blocks."""
        raise NotImplementedError

    def end(self, request: dict[str, Any], status: str) -> None:
        raise NotImplementedError

    def table(self, request: dict[str, Any]) -> list[int]:
        raise NotImplementedError

    def hashes(self, request: dict[str, Any]) -> list[bytes]:
        raise NotImplementedError

    def reset(self) -> None:
        raise NotImplementedError

    def apply(self, step: dict[str, Any]) -> None:
        op = step["op"]
        if op == "req":
            self.declared[step["id"]] = step
        elif op == "reset":
            self.reset()
        elif op == "start":
            if step["id"] in self.declared:
                self.start(self.declared.pop(step["id"]), step["n"])
        elif step["id"] in self.live:
            request = self.live[step["id"]]
            if op == "extend":
                count = min(step["n"], request["prompt"] - request["computed"])
                if count > 0 and not self.grow(request, count):
                    self.end(request, "preempted")
            elif op == "decode":
                for _ in range(step["n"]):
                    request["tokens"].append(request["out"].pop(0))
                    if not self.grow(request, 1):
                        self.end(request, "preempted")
                        break
            else:
                if op == "finish":
                    request["tokens"].append(request["out"].pop(0))
                self.end(request, "ok" if op == "finish" else "abort")

    def report(self, request: dict[str, Any], status: str, hit: int, first: int) -> None:
        table, hashes = [] if status == "rejected" else self.table(request), self.hashes(request)
        line = {"id": request["id"], "st": status, "prompt": request["prompt"], "hit": hit, "ids0": first}
        line |= {"ids": crc(table) if table else 0, "nblk": len(table), "hash": hashes[-1].hex() if hashes else ""}
        self.lines.append(json.dumps(line, separators=(",", ":")))

    def finish(self, free: list[int], cached_keys: int, **counts: int) -> list[str]:
        """Return all result lines, with the closing one."""
        end: dict[str, Any] = {"op": "end", "free": crc(free), "nfree": len(free), "cached_keys": cached_keys, **counts}
        end["sha"] = hashlib.sha256("\n".join(self.lines).encode()).hexdigest()
        return [*self.lines, json.dumps(end, separators=(",", ":"))]


def segment(seed: int, length: int, vocab: int) -> list[int]:
    """Return the tokens of a segment, by splitmix64."""
    mask, tokens = 2**64 - 1, []
    for index in range(length):
        z = (seed + (index + 1) * 0x9E3779B97F4A7C15) & mask
        z = ((z ^ (z >> 30)) * 0xBF58476D1CE4E5B9) & mask
        z = ((z ^ (z >> 27)) * 0x94D049BB133111EB) & mask
        tokens.append((z ^ (z >> 31)) % vocab)
    return tokens


def crc(ids: Iterable[int]) -> int:
    return zlib.crc32(b"".join(struct.pack("<I", block) for block in ids))


class _TraceReplay(Trace):
    def __init__(self, header: dict[str, Any]) -> None:
        super().__init__(header)
        self.manager = KVCacheManager(self.num_blocks, self.size, record_events=True)

    def start(self, declared: dict[str, Any], count: int) -> None:
        tokens = [token for seed, length in declared["segs"] for token in segment(seed, length, self.vocab)]
        lora, mm = declared.get("lora"), declared.get("mm") or ()
        real = CacheRequest(
            declared["id"],
            tokens,
            salt=declared.get("salt"),
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
        pool, stats, events = self.manager.pool, self.manager.stats(), self.manager.take_events()
        return self.finish(
            [block.id for block in pool.free_queue],
            len(pool.cached_blocks),
            queries=stats.queries,
            hits=stats.hits,
            stored=sum(len(event.hashes) for event in events if isinstance(event, BlockStored)),
            removed=sum(len(event.hashes) for event in events if isinstance(event, BlockRemoved)),
            cleared=sum(isinstance(event, AllBlocksCleared) for event in events),
        )
