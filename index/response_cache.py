"""The responses with what is searched beside them: every change of the store reaches the indexes through here."""

import asyncio
import hashlib
import json
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from types import TracebackType

from kvproxy.index.entry import Entry, new_id
from kvproxy.index.pending_writes import PendingWrite, PendingWrites
from kvproxy.index.redaction import Redactor, redacted, redacted_all
from kvproxy.index.search.deferred_embedding import LookupCallback
from kvproxy.index.search.semantic_cache import SemanticCache
from kvproxy.index.store import NewEntry, PurgeRequest, Store
from kvproxy.index.store.observations import Observations
from kvproxy.index.store.write_batcher import WriteBatcher

_DAY = 86_400.0
_BESIDES = 12_288  # Bytes that an entry on its way takes beside its texts, with its request and its task, as measured.
_OWN = "library"  # Neither a key nor a namespace of a program can be one of the proxy's, which may share the store.


@dataclass(frozen=True, slots=True)
class Hit:
    """A stored answer.

    Attributes:
        answer: the text.
        question: what it was stored for.
        similarity: cosine of the two questions; None where they are equal.
    """

    answer: str
    question: str
    similarity: float | None


class ResponseCache:
    """Stored responses, with or without a search for similar questions. Methods may raise a CacheStoreError.

    `kvproxy.open_response_cache` makes one. Leave it with `close`, or use it in an `async with`.

    Args:
        store: the responses.
        semantic: finds similar questions; None where that is off.
        observations: closed together with the store, if given.
        ttl: seconds that an answer may be served.
        clock: seconds since the epoch.
        redact: takes out of texts what must not be stored; None stores them as they are.
    """

    def __init__(
        self,
        store: Store,
        semantic: SemanticCache | None,
        observations: Observations | None = None,
        *,
        ttl: float = _DAY,
        clock: Callable[[], float] = time.time,
        redact: Redactor | None = None,
    ) -> None:
        self._redact = redact
        self.store = store
        self.semantic = semantic
        self.observations = observations
        self._ttl = ttl
        self._clock = clock
        self._writes = WriteBatcher(store.put_many)
        self.pending_writes = semantic.pending_writes if semantic is not None else PendingWrites()
        """Entries on their way to the store."""

    @property
    def searches(self) -> bool:
        """Whether similar questions are looked for."""
        return self.semantic is not None

    async def ask(self, question: str, namespace: str = "") -> Hit | None:
        """The answer that was kept for a question: for the same one, else for one so similar that it serves as well.

        Raises:
            EmbedderError: the embedder failed.

        Args:
            question: in words.
            namespace: where to look. Put everything into it that changes the answer: the model, the system prompt, the user.
        """
        space = _digest(namespace)
        entry, similarity = await self.find(_digest(namespace, question)), None
        if entry is not None and entry.expires <= self._clock():
            entry = None
        if entry is None and self.semantic is not None and await self.compares(question):
            lookup = await self.semantic.lookup(space, question)
            entry, similarity = lookup.entry, lookup.similarity
        if entry is None:
            return None
        self.store.record_hit(entry.id)
        return Hit(json.loads(entry.response), entry.prompt, similarity)

    async def keep(self, question: str, answer: str, namespace: str = "", *, ttl: float | None = None) -> bool:
        """Keep an answer; it is durable and can be found when this returns.

        Args:
            question, namespace: as for `ask`.
            answer: the text.
            ttl: seconds that it may be served; by default those that the cache was opened with.

        Returns:
            Whether it was kept: an answer that is larger than the whole store may be is not, nor one that holds what must
            not be stored, nor the least useful of several that a full store was given at once.
        """
        now = self._clock()
        return await self.insert(
            Entry(
                id=new_id(),
                key=_digest(namespace, question),
                namespace=_digest(namespace),
                tenant="",
                model="",
                endpoint=_OWN,
                prompt=question,
                semantic=True,
                request=json.dumps({"question": question, "namespace": namespace}).encode(),
                response=json.dumps(answer).encode(),
                created=now,
                expires=now + (self._ttl if ttl is None else ttl),
            )
        )

    async def shown(self, text: str) -> str:
        """What may be stored and shown of a text; raises RedactionFailed."""
        return text if self._redact is None else await asyncio.to_thread(self._redact, text)

    async def compares(self, question: str) -> bool:
        """Whether a question may be compared with others: not where something must be taken out of it, since two
        questions may differ in nothing else."""
        return self._redact is None or await self.shown(question) == question

    async def find(self, key: str) -> Entry | None:
        """The entry with an exact key that is within its time, or within one of its stale times.

        It is the stored one, or a newer one that is being stored.
        """
        coming = self.pending_writes.get(key)
        entry = await coming.entry() if coming is not None else None
        if entry is not None:
            return entry if entry.freshness(self._clock()) != "over" else None
        # A file answers faster than a thread starts; a server may take its time.
        return await asyncio.to_thread(self.store.find, key) if self.store.remote else self.store.find(key)

    def storing(self, key: str) -> bool:
        """Whether an entry with an exact key is being stored right now."""
        return self.pending_writes.get(key) is not None

    def begin(self, entry: Entry, *, late: bool = False, told: LookupCallback | None = None) -> PendingWrite:
        """Begin to store an entry. Equal requests are answered from it from now on.

        Args:
            late: there was no time to look up its question, so it is found by similar ones some time later.
            told: where it is late, told then what the lookup would have found; see `SemanticCache.insert_deferred`.
        """
        kept: asyncio.Future[Entry | None]
        if self._redact is None:
            kept = asyncio.get_running_loop().create_future()
            kept.set_result(entry)
        else:
            kept = asyncio.create_task(asyncio.to_thread(redacted, entry, self._redact))
        task = asyncio.create_task(self._store(kept, late, told))
        size = _BESIDES + len(entry.request) + len(entry.response)
        coming = PendingWrite(entry.key, entry.namespace if entry.semantic and not late else None, kept, task, size)
        self.pending_writes.add(coming)
        return coming

    async def _store(self, kept: "asyncio.Future[Entry | None]", late: bool, told: LookupCallback | None) -> bool:
        """Store what may be stored of an entry; whether it was."""
        entry = await kept
        if entry is None:
            return False
        if self.semantic is None:
            return await self._writes.put(NewEntry(entry))
        return await (self.semantic.insert_deferred(entry, told) if late else self.semantic.insert(entry))

    async def insert(self, entry: Entry) -> bool:
        """Keep an entry; durable and findable when this returns.

        Returns:
            False where it is larger than the store may be, where one that was written with it took its place, or where its
            answer holds what must not be stored.
        """
        return await asyncio.shield(self.begin(entry).task)

    async def insert_many(self, entries: Sequence[Entry]) -> int:
        """Keep entries, in few transactions; how many may be stored."""
        entries = await asyncio.to_thread(lambda: list(redacted_all(entries, self._redact)))
        if self.semantic is not None:
            await self.semantic.insert_many(entries)
        else:
            await asyncio.gather(*(self._writes.put(NewEntry(entry)) for entry in entries))
        return len(entries)

    async def remove(self, ids: Sequence[str], by: PurgeRequest | None = None) -> int:
        """Remove entries; how many there were.

        Args:
            by: who does it; kept in the list of purges.
        """
        if self.semantic is not None:
            return await self.semantic.remove(ids, by)
        return len(await asyncio.to_thread(self.store.delete, ids, by))

    async def expire_now(self, ids: Sequence[str], by: PurgeRequest | None = None) -> int:
        """Let the time of entries end now, so that only their stale times are left; how many were within their time."""
        return await asyncio.to_thread(self.store.expire_now, ids, by)

    def maintain(self) -> None:
        """What is due from time to time: counted hits are written, what has expired goes."""
        if self.semantic is not None:
            self.semantic.maintain()
        else:
            self.store.flush()
            while self.store.expire():
                pass

    def close(self) -> None:
        """Write what is pending and close the store."""
        if self.semantic is not None:
            self.semantic.close()
        self.store.close()
        if self.observations is not None:
            self.observations.close()

    async def __aenter__(self) -> "ResponseCache":
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await asyncio.to_thread(self.close)


def _digest(*parts: str) -> str:
    return hashlib.sha256(json.dumps([_OWN, *parts]).encode()).hexdigest()
