"""Encryption of chunks outside of the process: on disk and in Redis."""

from collections.abc import Callable

from kvproxy.encryption import Cipher, is_sealed
from kvproxy.tiers.store import ChunkStore, Data, StoreStats


class EncryptedStore:
    """Encrypts the chunks of another store. Chunks in clear can be read too.

    A chunk that cannot be decrypted is returned unchanged: the chain deletes it as invalid.

    Args:
        store: stores the encrypted chunks.
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

    def should_put(self, key: str) -> bool:
        return self._store.should_put(key)

    def delete(self, key: str) -> None:
        self._store.delete(key)

    def clear(self, matches: Callable[[str], bool]) -> int:
        return self._store.clear(matches)

    def stats(self) -> StoreStats:
        return self._store.stats()

    def close(self) -> None:
        self._store.close()
