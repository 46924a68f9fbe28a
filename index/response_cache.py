"""The responses with what is searched beside them: every change of the store reaches the indexes through here."""

import asyncio
from collections.abc import Sequence

from kvproxy.index.batching import WriteBatcher
from kvproxy.index.entry import Entry
from kvproxy.index.semantic import SemanticCache
from kvproxy.index.store import Put, Store


class ResponseCache:
    """Stored responses, with or without a search for similar questions. Methods may raise a CacheStoreError.

    Args:
        store: the responses.
        semantic: finds similar questions; None where that is off.
    """

    def __init__(self, store: Store, semantic: SemanticCache | None) -> None:
        self._store = store
        self._semantic = semantic
        self._writes = WriteBatcher(store.put_many)

    async def find(self, key: str) -> Entry | None:
        """The unexpired entry with an exact key."""
        # A file answers faster than a thread starts; a server may take its time.
        return await asyncio.to_thread(self._store.find, key) if self._store.remote else self._store.find(key)

    async def insert(self, entry: Entry) -> bool:
        """Keep an entry; durable and findable when this returns. False where it is larger than the store may be."""
        if self._semantic is not None:
            return await self._semantic.insert(entry)
        return await self._writes.put(Put(entry))

    async def insert_many(self, entries: Sequence[Entry]) -> None:
        """Keep entries, in few transactions."""
        if self._semantic is not None:
            await self._semantic.insert_many(entries)
        else:
            await asyncio.gather(*(self._writes.put(Put(entry)) for entry in entries))

    async def remove(self, ids: Sequence[str]) -> int:
        """Remove entries; how many there were."""
        if self._semantic is not None:
            return await self._semantic.remove(ids)
        return len(await asyncio.to_thread(self._store.delete, ids))

    def maintain(self) -> None:
        """What is due from time to time: counted hits are written, what has expired goes."""
        if self._semantic is not None:
            self._semantic.maintain()
        else:
            self._store.flush()
            while self._store.expire():
                pass

    def close(self) -> None:
        """Write what is pending and close the store."""
        if self._semantic is not None:
            self._semantic.close()
        self._store.close()
