"""A tier whose chunks are encrypted where they are kept: on disk, in Redis."""

from collections.abc import Callable

from kvproxy.encryption import Cipher, is_sealed
from kvproxy.tiers.store import ChunkStore, Data, StoreStats


class SealedStore:
    """Encrypts what goes into another store, and decrypts what comes out.

    What was kept in clear before is read too. What cannot be decrypted is handed out as it is: it is no chunk, so the
    chain drops it, and the engine computes it.

    Args:
        store: keeps the encrypted chunks.
        cipher: every machine that shares the store needs the same keys.
    """

    def __init__(self, store: ChunkStore, cipher: Cipher) -> None:
        self._store = store
        self._cipher = cipher
        self.name = store.name
        self.remote = store.remote

    @property
    def available(self) -> bool:
        return self._store.available

    def get(self, key: str) -> Data | None:
        data = self._store.get(key)
        if data is None or not is_sealed(data):
            return data
        try:
            return bytearray(self._cipher.open(data, key.encode()))
        except ValueError:
            return data

    def put(self, key: str, data: Data) -> None:
        self._store.put(key, self._cipher.seal(data, key.encode()))

    def contains(self, key: str) -> bool:
        return self._store.contains(key)

    def wants(self, key: str) -> bool:
        return self._store.wants(key)

    def delete(self, key: str) -> None:
        self._store.delete(key)

    def clear(self, chosen: Callable[[str], bool]) -> int:
        return self._store.clear(chosen)

    def stats(self) -> StoreStats:
        return self._store.stats()

    def close(self) -> None:
        self._store.close()
