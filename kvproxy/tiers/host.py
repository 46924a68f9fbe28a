"""Chunks in host memory, evicted in LRU order."""

from collections.abc import Callable

from kvproxy.tiers.chunk_store import Data, LocalStore


class HostStore(LocalStore):
    """Buffers in memory. `pin` moves a buffer into page-locked memory, from which GPUs copy faster."""

    name = "host"

    def __init__(self, limit: int, pin: Callable[[Data], Data] | None = None) -> None:
        super().__init__(limit)
        self._pin = pin
        self._chunks: dict[str, Data] = {}

    def get(self, key: str) -> Data | None:
        self._touch(key)
        return self._chunks.get(key)

    def put(self, key: str, data: Data) -> None:
        if len(data) > self._limit:
            return
        self.delete(key)
        self._shrink(self._limit - len(data))
        self._chunks[key] = data if self._pin is None else self._pin(data)
        self._add(key, len(data))

    def _remove(self, key: str) -> None:
        self._chunks.pop(key, None)

    def close(self) -> None:
        self.clear(lambda key: True)
