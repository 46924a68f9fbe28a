"""The response cache: the store, the semantic search, and the writes that are pending."""

import asyncio
import hashlib
import json
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from types import TracebackType

from kvproxy.index.entry import Entry, new_id
from kvproxy.index.pending_writes import PendingWrite, PendingWrites
from kvproxy.index.redaction import Redactor, redact_entry
from kvproxy.index.search.deferred_embedding import LookupCallback
from kvproxy.index.search.semantic_cache import SemanticCache
from kvproxy.index.store import NewEntry, PurgeRequest, Store
from kvproxy.index.store.write_batcher import WriteBatcher

_DAY = 86_400.0
_WRITE_OVERHEAD = 12_288  # Bytes of a pending write, its task, and its request, without the texts; measured.
_ENDPOINT = (
    "library"  # Part of all keys and namespaces of a program, so that they differ from those of a proxy on the store.
)


@dataclass(frozen=True, slots=True)
class CachedAnswer:
    """A stored answer.

    Attributes:
        question: the stored question.
        similarity: cosine of the two questions; None if they are equal.
    """

    answer: str
    question: str
    similarity: float | None


class ResponseCache:
    """Stored responses with exact and semantic search. Methods may raise a CacheStoreError.

    `kvproxy.open_response_cache` opens one. Close it with `close`, or use it in an `async with`.

    Args:
        store: the responses.
        semantic: the semantic search; None disables it.
        ttl: default lifetime of an answer in seconds.
        clock: seconds since the epoch.
        redact: redacts texts before they are stored; None stores them unchanged.
    """

    def __init__(
        self,
        store: Store,
        semantic: SemanticCache | None,
        *,
        ttl: float = _DAY,
        clock: Callable[[], float] = time.time,
        redact: Redactor | None = None,
    ) -> None:
        self.store = store
        self.semantic = semantic
        self._ttl = ttl
        self._clock = clock
        self._redact = redact
        self._writes = WriteBatcher(store.put_many)
        self.pending_writes = semantic.pending_writes if semantic is not None else PendingWrites()

    async def get(self, question: str, namespace: str = "") -> CachedAnswer | None:
        """Return the answer to an equal question, or else to one that is similar enough.

        Args:
            namespace: must contain everything else that changes the answer: the model, the system prompt, the user.

        Raises:
            EmbedderError: the embedder failed.
        """
        entry, similarity = await self.find(_digest(namespace, question)), None
        if entry is not None and entry.expires <= self._clock():
            entry = None
        if entry is None and self.semantic is not None and await self.is_comparable(question):
            lookup = await self.semantic.lookup(_digest(namespace), question)
            entry, similarity = lookup.entry, lookup.similarity
        if entry is None:
            return None
        self.store.record_hit(entry.id)
        return CachedAnswer(json.loads(entry.response), entry.prompt, similarity)

    async def set(self, question: str, answer: str, namespace: str = "", *, ttl: float | None = None) -> bool:
        """Store an answer; it is durable and can be found when this returns.

        Args:
            question, namespace: as for `get`.
            ttl: lifetime in seconds; None uses the cache's default.

        Returns:
            False if it was not stored; see `insert`.
        """
        now = self._clock()
        return await self.insert(
            Entry(
                id=new_id(),
                key=_digest(namespace, question),
                namespace=_digest(namespace),
                tenant="",
                model="",
                endpoint=_ENDPOINT,
                prompt=question,
                semantic=True,
                request=json.dumps({"question": question, "namespace": namespace}).encode(),
                response=json.dumps(answer).encode(),
                created=now,
                expires=now + (self._ttl if ttl is None else ttl),
            )
        )

    async def redact_text(self, text: str) -> str:
        """Return a text as it may be stored; raises RedactionFailed."""
        return text if self._redact is None else await asyncio.to_thread(self._redact, text)

    async def is_comparable(self, question: str) -> bool:
        """Whether a question may have semantic hits: redacted questions may differ in nothing but the redacted part."""
        return self._redact is None or await self.redact_text(question) == question

    async def find(self, key: str) -> Entry | None:
        """Return the fresh or stale entry with an exact key, stored or pending."""
        pending = self.pending_writes.get(key)
        entry = await pending.entry() if pending is not None else None
        if entry is not None:
            return entry if entry.freshness(self._clock()) != "expired" else None
        # Reading a file takes less time than starting a thread.
        return await asyncio.to_thread(self.store.find, key) if self.store.remote else self.store.find(key)

    def begin(self, entry: Entry, *, deferred: bool = False, on_lookup: LookupCallback | None = None) -> PendingWrite:
        """Begin to store an entry. From now on it answers equal requests.

        Args:
            deferred: embed the question later, because its lookup was skipped.
            on_lookup: receives the result of that lookup; see `SemanticCache.insert_deferred`.
        """
        stored: asyncio.Future[Entry | None]
        if self._redact is None:
            stored = asyncio.get_running_loop().create_future()
            stored.set_result(entry)
        else:
            stored = asyncio.create_task(asyncio.to_thread(redact_entry, entry, self._redact))
        task = asyncio.create_task(self._store(stored, deferred, on_lookup))
        size = _WRITE_OVERHEAD + len(entry.request) + len(entry.response)
        namespace = entry.namespace if entry.semantic and not deferred else None
        pending = PendingWrite(entry.key, namespace, stored, task, size)
        self.pending_writes.add(pending)
        return pending

    async def _store(
        self, redacted: "asyncio.Future[Entry | None]", deferred: bool, on_lookup: LookupCallback | None
    ) -> bool:
        entry = await redacted
        if entry is None:
            return False
        if self.semantic is None:
            return await self._writes.put(NewEntry(entry))
        return await (self.semantic.insert_deferred(entry, on_lookup) if deferred else self.semantic.insert(entry))

    async def insert(self, entry: Entry) -> bool:
        """Store an entry; it is durable and can be found when this returns.

        Returns:
            False if it was not stored: it exceeds the capacity, its answer contains text to redact, or an entry of the same
            transaction evicted it.
        """
        return await asyncio.shield(self.begin(entry).task)

    async def insert_many(self, entries: Sequence[Entry]) -> int:
        """Store entries in few transactions, and return the number of those that redaction allows."""
        if self._redact is not None:
            redacted = [await asyncio.to_thread(redact_entry, entry, self._redact) for entry in entries]
            entries = [entry for entry in redacted if entry is not None]
        if self.semantic is not None:
            await self.semantic.insert_many(entries)
        else:
            await asyncio.gather(*(self._writes.put(NewEntry(entry)) for entry in entries))
        return len(entries)

    async def remove(self, ids: Sequence[str], by: PurgeRequest | None = None) -> int:
        """Remove entries, and return how many existed.

        Args:
            by: recorded in the list of purges.
        """
        return len(await asyncio.to_thread(self.store.delete, ids, by))

    async def expire_now(self, ids: Sequence[str], by: PurgeRequest | None = None) -> int:
        """Expire fresh entries, and return their number; see `Store.expire_now`."""
        return await asyncio.to_thread(self.store.expire_now, ids, by)

    def maintain(self) -> None:
        """Write counted hits and remove expired entries; called periodically."""
        self.store.flush()
        while self.store.expire():
            pass
        if self.semantic is not None:
            self.semantic.maintain()

    def close(self) -> None:
        """Write the counted hits and close the store."""
        if self.semantic is not None:
            self.semantic.close()
        self.store.close()

    async def __aenter__(self) -> "ResponseCache":
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await asyncio.to_thread(self.close)


def _digest(*parts: str) -> str:
    return hashlib.sha256(json.dumps([_ENDPOINT, *parts]).encode()).hexdigest()
