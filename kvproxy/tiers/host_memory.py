from collections.abc import Callable

from kvproxy.tiers.chunk_store import ChunkData, LocalStore


class HostStore(LocalStore):
    """Chunks in host memory. `pin_memory` copies a buffer to page-locked memory, which a GPU reads faster."""

    name = "host"

    def __init__(self, limit: int, pin_memory: Callable[[ChunkData], ChunkData] | None = None) -> None:
        super().__init__(limit)
        self._pin_memory = pin_memory
        self._chunks: dict[str, ChunkData] = {}

    def get(self, key: str) -> ChunkData | None:
        self._touch(key)
        return self._chunks.get(key)

    def put(self, key: str, data: ChunkData) -> None:
        if len(data) > self._limit:
            return
        self.delete(key)
        self._evict_to(self._limit - len(data))
        self._chunks[key] = data if self._pin_memory is None else self._pin_memory(data)
        self._add(key, len(data))

    def _remove(self, key: str) -> None:
        self._chunks.pop(key, None)

    def close(self) -> None:
        self.clear(lambda key: True)
