"""Replays a conformance trace through the block cache, and returns the result lines of vLLM's block manager."""

import hashlib
import json
from collections.abc import Iterable
from typing import Any

import numpy as np

from kvproxy.blocks.manager import KVCacheManager
from kvproxy.blocks.request import CacheRequest, MMItem
from tests.reference.naive_trace import crc

_GOLDEN = np.uint64(0x9E3779B97F4A7C15)


def replay(steps: Iterable[dict[str, Any]]) -> list[str]:
    """Return a line for each request that ended, and a line with totals; the first step is the header."""
    header, *operations = steps
    trace_replay = _TraceReplay(header)
    for step in operations:
        trace_replay.apply(step)
    return trace_replay.results()


class _TraceReplay:
    """A refused `start` rejects its request; a refused `extend` or `decode` preempts it."""

    def __init__(self, header: dict[str, Any]) -> None:
        self.manager = KVCacheManager(header["num_blocks"], header["block_size"])
        self.vocab = header["vocab"]
        self.declared: dict[str, dict[str, Any]] = {}
        self.live: dict[str, _LiveRequest] = {}
        self.lines: list[str] = []

    def apply(self, step: dict[str, Any]) -> None:
        op = step["op"]
        if op == "req":
            self.declared[step["id"]] = step
        elif op == "reset":
            self.manager.reset_prefix_cache()
        elif op == "start":
            if step["id"] in self.declared:
                self._start(self.declared.pop(step["id"]), step["n"])
        elif step["id"] in self.live:
            live = self.live[step["id"]]
            if op == "extend":
                count = min(step["n"], live.prompt - live.request.num_computed_tokens)
                if count > 0 and not self._grow(live, count):
                    self._end(live, "preempted")
            elif op == "decode":
                for _ in range(step["n"]):
                    live.append_output()
                    if not self._grow(live, 1):
                        self._end(live, "preempted")
                        break
            else:
                if op == "finish":
                    live.append_output()
                self._end(live, "ok" if op == "finish" else "abort")

    def _start(self, declared: dict[str, Any], count: int) -> None:
        live = _LiveRequest(declared, self.vocab)
        request = live.request
        computed = self.manager.get_computed_blocks(request)
        live.hit = computed.num_tokens
        new = min(count, request.num_tokens - live.hit)
        if self.manager.allocate_slots(request, new, computed) is None:
            self.lines.append(live.line("rejected", []))
            return
        request.num_computed_tokens = live.hit + new
        live.first_ids = crc(self.manager.get_block_ids(request.id)[0])
        self.live[request.id] = live

    def _grow(self, live: "_LiveRequest", count: int) -> bool:
        if self.manager.allocate_slots(live.request, count) is None:
            return False
        live.request.num_computed_tokens += count
        return True

    def _end(self, live: "_LiveRequest", status: str) -> None:
        request = live.request
        request.update_hashes(self.manager.hasher, self.manager.hash_block_size)
        self.lines.append(live.line(status, self.manager.get_block_ids(request.id)[0]))
        self.manager.free(request)
        del self.live[request.id]

    def results(self) -> list[str]:
        pool, stats = self.manager.pool, self.manager.stats()
        end = {"op": "end", "free": crc(block.id for block in pool.free_queue), "nfree": pool.num_free_blocks}
        end |= {"cached_keys": len(pool.cached_blocks), "queries": stats.queries, "hits": stats.hits}
        end |= {"stored": pool.num_stored, "removed": pool.num_evictions, "cleared": pool.num_resets}
        end |= {"sha": hashlib.sha256("\n".join(self.lines).encode()).hexdigest()}
        return [*self.lines, json.dumps(end, separators=(",", ":"))]


class _LiveRequest:
    """A started request."""

    def __init__(self, declared: dict[str, Any], vocab: int) -> None:
        prompt = [token for seed, length in declared["segs"] for token in _segment(seed, length, vocab)]
        lora, mm = declared.get("lora"), declared.get("mm") or ()
        self.request = CacheRequest(
            declared["id"],
            prompt,
            salt=declared.get("salt"),
            lora=tuple(lora) if lora else None,
            mm=tuple(MMItem(*item) for item in mm),
        )
        self.prompt = len(prompt)
        self.hit = self.first_ids = 0
        self._output = iter(_segment(*declared["out"], vocab))

    def append_output(self) -> None:
        self.request.append(next(self._output))

    def line(self, status: str, table: list[int]) -> str:
        hashes = self.request.block_hashes
        line = {"id": self.request.id, "st": status, "prompt": self.prompt, "hit": self.hit, "ids0": self.first_ids}
        line |= {"ids": crc(table) if table else 0, "nblk": len(table), "hash": hashes[-1].hex() if hashes else ""}
        return json.dumps(line, separators=(",", ":"))


def _segment(seed: int, length: int, vocab: int) -> list[int]:
    """Return token ids from splitmix64."""
    with np.errstate(over="ignore"):
        z = np.uint64(seed % 2**64) + np.arange(1, length + 1, dtype=np.uint64) * _GOLDEN
        z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
        z ^= z >> np.uint64(31)
    tokens: list[int] = (z % np.uint64(vocab)).tolist()
    return tokens
