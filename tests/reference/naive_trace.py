"""Conformance traces carried out as plainly as possible: lists, one CBOR library call a block, no code of ours.

It gives the recorded results of vLLM's manager (see `tests/blocks/test_traces.py`), so that it can stand in for vLLM
on traces that nobody recorded.
"""

import hashlib
import json
import struct
import zlib
from collections.abc import Iterable
from typing import Any

import cbor2


class NaiveTrace:
    """The pool as four lists and dictionaries, driven by a trace's operations."""

    def __init__(self, header: dict[str, Any], seed: str) -> None:
        self.size, self.vocab = header["block_size"], header["vocab"]
        self.num_blocks = header["num_blocks"]
        self.none = _digest(seed)
        self.free = list(range(1, self.num_blocks))
        self.holders = [0] * self.num_blocks
        self.names: list[bytes | None] = [None] * self.num_blocks
        self.copies: dict[bytes, list[int]] = {}  # ids under each name, oldest first
        self.declared: dict[str, dict[str, Any]] = {}
        self.live: dict[str, dict[str, Any]] = {}
        self.queries = self.hits = self.stored = self.removed = self.cleared = 0
        self.lines: list[str] = []

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

    def start(self, declared: dict[str, Any], count: int) -> None:
        tokens = [token for seed, length in declared["segs"] for token in segment(seed, length, self.vocab)]
        request = declared | {
            "tokens": tokens,
            "out": segment(*declared["out"], self.vocab),
            "prompt": len(tokens),
            "computed": 0,
            "table": [],
            "named": 0,
        }
        found: list[int] = []
        for name in self.hashes(request)[: (len(tokens) - 1) // self.size]:
            if name not in self.copies:
                break
            found.append(self.copies[name][0])
        hit = len(found) * self.size
        count = min(count, len(tokens) - hit)
        idle = [block for block in found if self.holders[block] == 0]
        if -(-(hit + count) // self.size) - len(found) + len(idle) > len(self.free):
            self.report(request, "rejected", hit, 0)
            return
        for block in found:
            if block in self.free:
                self.free.remove(block)
            self.holders[block] += 1
        request |= {"table": found, "named": len(found), "computed": hit}
        self.queries += len(tokens)
        self.hits += hit
        assert self.grow(request, count)
        self.live[request["id"]] = request | {"hit": hit, "ids0": crc(request["table"])}

    def grow(self, request: dict[str, Any], count: int) -> bool:
        new = -(-(request["computed"] + count) // self.size) - len(request["table"])
        if new > len(self.free):
            return False
        for _ in range(new):
            block = self.free.pop(0)
            name = self.names[block]
            if name is not None:
                self.copies[name].remove(block)
                if not self.copies[name]:
                    del self.copies[name]
                self.names[block] = None
                self.removed += 1
            self.holders[block] = 1
            request["table"].append(block)
        request["computed"] += count
        chain = self.hashes(request)
        while request["named"] < min(request["computed"], len(request["tokens"])) // self.size:
            block, name = request["table"][request["named"]], chain[request["named"]]
            self.names[block] = name
            self.copies.setdefault(name, []).append(block)
            self.stored += 1
            request["named"] += 1
        return True

    def hashes(self, request: dict[str, Any]) -> list[bytes]:
        names, parent = [], self.none
        for start in range(0, len(request["tokens"]) - self.size + 1, self.size):
            end = start + self.size
            extra: list[tuple[Any, ...]] = []
            if request.get("lora"):
                extra.append(("lora", request["lora"][0], request["lora"][1]))
            for identifier, offset, length in request.get("mm") or []:
                if any(start <= position < end for position in range(offset, offset + length)):
                    extra.append(("mm", identifier, offset - start))
            if request.get("salt") and start == 0:
                extra.append(("cache_salt", request["salt"]))
            parent = _digest((parent, tuple(request["tokens"][start:end]), tuple(extra) if extra else None))
            names.append(parent)
        return names

    def end(self, request: dict[str, Any], status: str) -> None:
        self.report(request, status, request["hit"], request["ids0"])
        empty = []
        for block in reversed(request["table"]):
            self.holders[block] -= 1
            if self.holders[block] == 0:
                (empty if self.names[block] is None else self.free).append(block)
        self.free[:0] = empty
        del self.live[request["id"]]

    def report(self, request: dict[str, Any], status: str, hit: int, first: int) -> None:
        table, hashes = [] if status == "rejected" else self.table(request), self.hashes(request)
        line = {"id": request["id"], "st": status, "prompt": request["prompt"], "hit": hit, "ids0": first}
        line |= {"ids": crc(table) if table else 0, "nblk": len(table), "hash": hashes[-1].hex() if hashes else ""}
        self.lines.append(json.dumps(line, separators=(",", ":")))

    def table(self, request: dict[str, Any]) -> list[int]:
        ids: list[int] = request["table"]
        return ids

    def reset(self) -> None:
        if len(self.free) == self.num_blocks - 1:
            self.names = [None] * self.num_blocks
            self.copies.clear()
            self.cleared += 1

    def results(self) -> list[str]:
        """All result lines, the closing one included."""
        end = {"op": "end", "free": crc(self.free), "nfree": len(self.free), "cached_keys": len(self.copies)}
        end |= {"queries": self.queries, "hits": self.hits, "stored": self.stored, "removed": self.removed}
        end |= {"cleared": self.cleared, "sha": hashlib.sha256("\n".join(self.lines).encode()).hexdigest()}
        return [*self.lines, json.dumps(end, separators=(",", ":"))]


def segment(seed: int, length: int, vocab: int) -> list[int]:
    """Tokens of a segment by splitmix64, in Python's own integers."""
    mask, tokens = 2**64 - 1, []
    for index in range(length):
        z = (seed + (index + 1) * 0x9E3779B97F4A7C15) & mask
        z = ((z ^ (z >> 30)) * 0xBF58476D1CE4E5B9) & mask
        z = ((z ^ (z >> 27)) * 0x94D049BB133111EB) & mask
        tokens.append((z ^ (z >> 31)) % vocab)
    return tokens


def _digest(value: object) -> bytes:
    return hashlib.sha256(cbor2.dumps(value, canonical=True)).digest()


def crc(ids: Iterable[int]) -> int:
    return zlib.crc32(b"".join(struct.pack("<I", block) for block in ids))
