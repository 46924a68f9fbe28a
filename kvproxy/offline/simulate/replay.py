"""Replays a conformance trace through the block cache, and returns a result line for each request."""

import hashlib
import json
import struct
import zlib
from collections.abc import Iterable, Iterator
from pathlib import Path

from kvproxy.blocks.manager import KVCacheManager
from kvproxy.blocks.request import CacheRequest
from kvproxy.offline.simulate.conformance import TraceHeader, TraceOperation, TraceRequest, read_header, read_operations
from kvproxy.offline.simulate.errors import TraceError


def replay(path: Path) -> Iterator[str]:
    """Yield the result lines of a conformance trace.

    Raises:
        TraceError: a line is invalid, or exceeds the declared output.
    """
    header = read_header(path)
    trace_replay = TraceReplay(header)
    digest = hashlib.sha256()
    first = True
    for step in read_operations(path, header):
        line = trace_replay.apply(step)
        if line is not None:
            digest.update((line if first else "\n" + line).encode())
            first = False
            yield line
    yield trace_replay.end(digest.hexdigest())


class TraceReplay:
    """Runs trace operations on a block cache.

    A refused `start` rejects the request; a refused `extend` or `decode` preempts it.
    """

    def __init__(self, header: TraceHeader) -> None:
        self.manager = KVCacheManager(header.num_blocks, header.block_size)
        self._declared: dict[str, TraceRequest] = {}
        self._live: dict[str, _LiveRequest] = {}

    def apply(self, step: TraceRequest | TraceOperation) -> str | None:
        """Run an operation; return the result line if a request ended."""
        if isinstance(step, TraceRequest):
            self._declared[step.id] = step
            return None
        if step.op == "reset":
            self.manager.reset_prefix_cache()
            return None
        if step.op == "start":
            return self._start(self._declared.pop(step.id), step.count) if step.id in self._declared else None
        live = self._live.get(step.id)
        if live is None:
            return None
        if step.op == "extend":
            return self._extend(live, step.count)
        if step.op == "decode":
            return self._decode(live, step.count)
        if step.op == "finish":
            live.append_output()
        return self._end(live, "ok" if step.op == "finish" else "abort")

    def _start(self, declared: TraceRequest, count: int) -> str | None:
        request = CacheRequest(declared.id, declared.prompt, salt=declared.salt, lora=declared.lora, mm=declared.mm)
        computed = self.manager.get_computed_blocks(request)
        live = _LiveRequest(request, declared, computed.num_tokens)
        new = min(count, request.num_tokens - computed.num_tokens)
        if self.manager.allocate_slots(request, new, computed) is None:
            return live.result("rejected", [], 0)
        request.num_computed_tokens = computed.num_tokens + new
        live.first_ids = _crc(self.manager.get_block_ids(request.id)[0])
        self._live[request.id] = live
        return None

    def _extend(self, live: "_LiveRequest", count: int) -> str | None:
        request = live.request
        new = min(count, len(live.declared.prompt) - request.num_computed_tokens)
        if new <= 0:
            return None
        if self.manager.allocate_slots(request, new) is None:
            return self._end(live, "preempted")
        request.num_computed_tokens += new
        return None

    def _decode(self, live: "_LiveRequest", count: int) -> str | None:
        for _ in range(count):
            live.append_output()
            if self.manager.allocate_slots(live.request, 1) is None:
                return self._end(live, "preempted")
            live.request.num_computed_tokens += 1
        return None

    def _end(self, live: "_LiveRequest", status: str) -> str:
        request = live.request
        request.update_hashes(self.manager.hasher, self.manager.hash_block_size)
        line = live.result(status, self.manager.get_block_ids(request.id)[0], live.first_ids)
        self.manager.free(request)
        del self._live[request.id]
        return line

    def end(self, digest: str) -> str:
        """Return the last line: the free queue and the totals."""
        pool = self.manager.pool
        return _dump(
            {
                "op": "end",
                "free": _crc(block.id for block in pool.free_queue),
                "nfree": pool.num_free_blocks,
                "cached_keys": len(pool.cached_blocks),
                "queries": self.manager.num_queried_tokens,
                "hits": self.manager.num_hit_tokens,
                "stored": pool.num_stored,
                "removed": pool.num_evictions,
                "cleared": pool.num_resets,
                "sha": digest,
            }
        )


class _LiveRequest:
    """A started request."""

    def __init__(self, request: CacheRequest, declared: TraceRequest, hit: int) -> None:
        self.request = request
        self.declared = declared
        self.hit = hit
        self.first_ids = 0
        self._produced = 0

    def append_output(self) -> None:
        if self._produced == len(self.declared.output):
            raise TraceError(
                f"request {self.declared.id!r} exceeds its declared output of {self._produced} tokens: declare more"
            )
        self.request.append(self.declared.output[self._produced])
        self._produced += 1

    def result(self, status: str, table: list[int], first_ids: int) -> str:
        hashes = self.request.block_hashes
        return _dump(
            {
                "id": self.request.id,
                "st": status,
                "prompt": len(self.declared.prompt),
                "hit": self.hit,
                "ids0": first_ids,
                "ids": _crc(table) if table else 0,
                "nblk": len(table),
                "hash": hashes[-1].hex() if hashes else "",
            }
        )


def _crc(ids: Iterable[int]) -> int:
    values = list(ids)
    return zlib.crc32(struct.pack(f"<{len(values)}I", *values))


def _dump(line: dict[str, object]) -> str:
    return json.dumps(line, separators=(",", ":"))
