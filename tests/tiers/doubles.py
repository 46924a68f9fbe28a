"""A store of chunks that fails on demand."""

from collections import Counter

from kvproxy.tiers.chunk_store import ChunkData, TierError, TierStats


class DictStore:
    def __init__(self, name: str = "dict", *, remote: bool = False) -> None:
        self.name = name
        self.remote = remote
        self.chunks: dict[str, ChunkData] = {}
        self.failing = False
        self.calls: Counter[str] = Counter()

    @property
    def available(self) -> bool:
        return not self.failing

    def _call(self, method: str) -> None:
        self.calls[method] += 1
        if self.failing:
            raise TierError(f"{self.name} fails")

    def get(self, key: str) -> ChunkData | None:
        self._call("get")
        found = self.chunks.get(key)
        return bytearray(found) if found is not None else None

    def put(self, key: str, data: ChunkData) -> None:
        self._call("put")
        self.chunks[key] = bytes(data)

    def contains(self, key: str) -> bool:
        self._call("contains")
        return key in self.chunks

    def should_put(self, key: str) -> bool:
        return key not in self.chunks

    def delete(self, key: str) -> None:
        self._call("delete")
        self.chunks.pop(key, None)

    def clear(self) -> int:
        self._call("clear")
        count = len(self.chunks)
        self.chunks.clear()
        return count

    def stats(self) -> TierStats:
        return TierStats(self.name, len(self.chunks), sum(map(len, self.chunks.values())), None, 0, self.available)

    def close(self) -> None:
        self.calls["close"] += 1
