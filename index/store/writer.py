"""Writes and removes stored responses."""

import contextlib
import re
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

from kvproxy.index.entry import Entry
from kvproxy.index.errors import CacheStoreError
from kvproxy.index.store import eviction
from kvproxy.index.store.database import Database, Row, Transaction
from kvproxy.index.store.observations import Observations
from kvproxy.index.store.rows import EntryCipher, RowCodec, expire_row
from kvproxy.index.store.store_types import (
    AnswerComputation,
    Capacity,
    EntryFilter,
    NewEntry,
    RemovalReason,
    RemovedEntry,
    WriteResult,
)

if TYPE_CHECKING:
    import numpy as np

COLUMNS = (
    "id, key, namespace, tenant, model, endpoint, prompt, semantic, request, response, created, expires, hits, last_hit,"
    " prompt_tokens, completion_tokens, tags, backend, request_id, sealed, checksum, stale_while_revalidate,"
    " stale_if_error"
)
_INSERT = (
    f"insert into responses ({COLUMNS}, bytes, priority)"
    f" values ({', '.join(':' + name.strip() for name in COLUMNS.split(','))}, :bytes,"
    " (select age from totals) + :value)"
)
_INSERT_VECTOR = (
    "insert into vectors (id, embedder, namespace, vector) values (:id, :embedder, :namespace, :vector)"
    " returning number"
)
_CLASSIFY = (
    "insert into answers (entry, namespace, name, text) values (:entry, :namespace, :name, :text)"
    " on conflict (entry) do update set name = excluded.name, text = excluded.text"
)
# An entry without a row is the only member of the class that its id names.
_CLASSIFY_FIRST = (
    "insert into answers (entry, namespace, name, text) select id, namespace, :name, '' from responses"
    " where id = :merged and namespace = :namespace on conflict (entry) do nothing"
)
_EXPIRE = "update responses set expires = :expires, checksum = :checksum where id = :id"
_RESEAL = (
    "update responses set prompt = :prompt, request = :request, response = :response, sealed = :sealed,"
    " checksum = :checksum where id = :id"
)
_COUNT_HITS = (
    "update responses set hits = hits + :count, last_hit = :last,"
    f" priority = {eviction.PRIORITY_AFTER_HITS} where id = :id"
)
# In an invalidation, "" is no condition. Beyond the limit, covering ones may have been removed.
_MAX_INVALIDATIONS = 10_000
_INVALIDATE = "insert into invalidations (key, namespace, tag) values (:key, :namespace, :tag) returning number"
_HAS_INVALIDATION = "select 1 as found from invalidations where number > :began limit 1"
_IS_INVALIDATED = (
    f"select 1 as found from invalidations where number > :began and (number > :began + {_MAX_INVALIDATIONS}"
    " or substr(:key, 1, length(key)) = key and substr(:namespace, 1, length(namespace)) = namespace{}) limit 1"
)
_RESEALED_COLUMNS = ("id", "prompt", "request", "response", "sealed", "checksum")
_KEY_NAME = re.compile("[0-9a-f]{8}")
_PAGE = 500  # Entries that one transaction encrypts.


class StoreWriter:
    """The write operations of a response store. It calls `removal_listeners` after each commit, on the writing thread."""

    def __init__(
        self,
        database: Database,
        *,
        clock: Callable[[], float] = time.time,
        capacity: Capacity = Capacity(),
        cipher: EntryCipher | None = None,
    ) -> None:
        self.database = database
        self.name = database.name
        self.remote = database.remote
        self.observations = Observations(database)
        self.removal_listeners: list[Callable[[Sequence[RemovedEntry]], None]] = []
        self._clock = clock
        self._capacity = capacity
        self.codec = RowCodec(cipher)
        self._hits: dict[str, tuple[int, float]] = {}
        self._hits_lock = threading.Lock()
        try:
            self._check_keys()
        except BaseException:
            self.close()
            raise

    def _check_keys(self) -> None:
        names = frozenset[str]() if self.codec.cipher is None else self.codec.cipher.names
        sql = "select min(sealed) as name from responses where sealed <> '' and sealed > :last"
        last = ""
        while last := self.database.query(sql, {"last": last})[0]["name"] or "":
            if not isinstance(last, str) or not _KEY_NAME.fullmatch(last):
                # The entry is damaged.
                break
            if last not in names:
                raise CacheStoreError(
                    f"the store {self.name} holds responses that were encrypted with the key {last}, which is not among the"
                    " keys: give it in encryption.key_file or key_env, after the one that encrypts, or use another store"
                )

    def put(self, entry: Entry, vector: "np.ndarray | None" = None, embedder: str = "") -> WriteResult:
        return self.put_many([NewEntry(entry, vector, embedder)])

    def put_many(self, entries: Sequence[NewEntry]) -> WriteResult:
        """Store entries in one durable transaction. They replace entries with equal keys, and may evict entries."""
        removed: list[RemovedEntry] = []
        with self._hit_counts() as write_hits, self.database.transaction() as run:
            numbers = tuple(self._put(run, new, removed, write_hits) for new in entries)
        self._notify(removed)
        return WriteResult(numbers, tuple(removed))

    def _notify(self, removed: Sequence[RemovedEntry]) -> None:
        for listener in self.removal_listeners if removed else ():
            listener(removed)

    def _put(
        self, run: Transaction, new: NewEntry, removed: list[RemovedEntry], write_hits: eviction.WriteHits
    ) -> int | None:
        def remove(ids: Sequence[str], reason: RemovalReason) -> None:
            removed.extend(self._remove(run, ids, reason))

        entry, row = new.entry, self.database.storable_row(new.entry.row())
        if new.computation is not None and self._is_invalidated(run, new.computation):
            removed.append(RemovedEntry(entry.id, entry.namespace))
            return None
        replaced = run("select id, priority from responses where id = :id or key = :key", row)
        remove([old["id"] for old in replaced], "replaced")
        if not eviction.fits(self._capacity, new):
            removed.append(RemovedEntry(entry.id, entry.namespace))
            return None
        eviction.make_room(run, remove, write_hits, self._capacity, new, self._clock())
        is_pinned = any(old["priority"] >= eviction.PINNED for old in replaced)
        value = eviction.PINNED if is_pinned else eviction.tokens_per_byte(new)
        run(_INSERT, self.codec.encode(row) | {"bytes": new.size, "value": value})
        eviction.advance_age(run, new)
        for tag in sorted(set(self._storable_tags(entry.tags))):
            run("insert into tags (tag, id) values (:tag, :id)", {"tag": tag, "id": row["id"]})
        return self._insert_vector(run, new)

    def _storable_tags(self, tags: Iterable[str]) -> list[str]:
        return [self.database.storable_row({"tag": tag})["tag"] for tag in tags]

    def last_invalidation(self) -> int:
        """Return the number of the last invalidation; 0 before the first one. Numbers ascend, and are never reused."""
        return int(self.database.query("select coalesce(max(number), 0) as number from invalidations")[0]["number"])

    def is_invalidated(self, computation: AnswerComputation) -> bool:
        """Return whether an invalidation covers a computation since it began."""
        return self._is_invalidated(self.database.query, computation)

    def _is_invalidated(self, query: Callable[[str, Row], list[Row]], computation: AnswerComputation) -> bool:
        values: Row = {"key": computation.key, "namespace": computation.namespace, "began": computation.began}
        if not query(_HAS_INVALIDATION, values):
            # As for most computations.
            return False
        if computation.tags is None:
            return bool(query(_IS_INVALIDATED.format(""), values))
        chosen, tags = self.database.in_list("tag", ["", *self._storable_tags(computation.tags)])
        return bool(query(_IS_INVALIDATED.format(f" and {chosen}"), values | tags))

    def _record_invalidation(self, where: EntryFilter) -> None:
        """Forbid storing answers that a filter selects, and whose computation has begun.

        Other conditions than those on the key, the namespace, and a tag are ignored, but for a minimum age.
        """
        if where.older_than:
            return
        values = {name: getattr(where, name) or "" for name in ("key", "namespace", "tag")}
        # A power failure ends the computations, too.
        with self.database.transaction(durable=False) as run:
            number = run(_INVALIDATE, self.database.storable_row(values))[0]["number"]
            run("delete from invalidations where number <= :oldest", {"oldest": number - _MAX_INVALIDATIONS})

    def _insert_vector(self, run: Transaction, new: NewEntry) -> int | None:
        if new.vector is None:
            return None
        entry, vector = new.entry, self.database.as_vector_parameter(new.vector)
        values = {"id": entry.id, "namespace": entry.namespace, "vector": vector, "embedder": new.embedder}
        return int(run(_INSERT_VECTOR, values)[0]["number"])

    def delete(self, ids: Sequence[str]) -> list[RemovedEntry]:
        with self.database.transaction() as run:
            removed = self._remove(run, ids, "removed")
        self._notify(removed)
        return removed

    def expire_now(self, ids: Sequence[str]) -> int:
        """End the fresh period of entries now, so that their stale periods begin; return the number of changed entries."""
        now, num_expired = self._clock(), 0
        with self.database.transaction() as run:
            for start in range(0, len(ids), _PAGE):
                chosen, values = self.database.in_list("id", ids[start : start + _PAGE])
                sql = f"select {COLUMNS} from responses where {chosen} and expires > :now"
                expired = [expire_row(row, now) for row in run(sql, values | {"now": now})]
                run.executemany(
                    _EXPIRE, [{name: row[name] for name in ("expires", "checksum", "id")} for row in expired]
                )
                num_expired += len(expired)
        return num_expired

    def pin(self, id: str, *, pinned: bool) -> None:
        """Pin or unpin an entry. A pinned entry is evicted last, but still expires."""
        with self.database.transaction() as run:
            run(eviction.PIN if pinned else eviction.UNPIN, {"id": id, "pinned": eviction.PINNED, "count": 0})

    def unindex(self, ids: Sequence[str]) -> list[RemovedEntry]:
        """Delete the vectors of entries, so that they have exact hits only; return the entries that had vectors."""
        chosen, values = self.database.in_list("id", ids)
        with self.database.transaction() as run:
            run(f"update responses set semantic = 0 where {chosen}", values)
            rows = run(f"delete from vectors where {chosen} returning id, namespace, number", values)
        return [RemovedEntry(row["id"], row["namespace"], (row["number"],)) for row in rows]

    def set_answer_class(self, id: str, namespace: str, answer_class: str, digest: str) -> None:
        """Assign an entry to a class of equal answers (see `answer_classes`), unless the entry was removed.

        `digest` is the `text_digest` of the entry's answer.
        """
        with self.database.transaction(durable=False) as run:
            if run("select 1 as found from responses where id = :id", {"id": id}):
                run(_CLASSIFY, {"entry": id, "namespace": namespace, "name": answer_class, "text": digest})

    def merge_answer_classes(self, namespace: str, merged: Sequence[str], answer_class: str) -> None:
        """Assign all entries of the classes `merged` to `answer_class`."""
        if not merged:
            return
        with self.database.transaction(durable=False) as run:
            for name in merged:
                values = {"namespace": namespace, "merged": name, "name": answer_class}
                run(_CLASSIFY_FIRST, values)
                run("update answers set name = :name where namespace = :namespace and name = :merged", values)

    def reset_answer_classes(self, ids: Sequence[str]) -> None:
        with self.database.transaction() as run:
            chosen, values = self.database.in_list("entry", ids)
            run(f"update answers set name = entry where {chosen}", values)

    def reencrypt(self) -> int:
        cipher, resealed = self.codec.cipher, 0
        if cipher is None:
            return 0
        while True:
            with self.database.transaction() as run:
                outdated = f"select {COLUMNS} from responses where sealed <> :name limit {_PAGE}"
                rows = run(outdated, {"name": cipher.name})
                encoded = [self.codec.encode(self.codec.decrypt(row)) for row in rows]
                run.executemany(_RESEAL, [{name: row[name] for name in _RESEALED_COLUMNS} for row in encoded])
            resealed += len(rows)
            if not rows:
                break
        if resealed:
            self.database.vacuum()
        return resealed

    def remove_expired(self) -> list[RemovedEntry]:
        """Remove up to 2,000 entries that are `expired` (see `Freshness`), and return them."""
        with self.database.transaction() as run:
            removed = self._remove(run, eviction.expired_ids(run, self._clock()), "expired")
        self._notify(removed)
        return removed

    def _remove(self, run: Transaction, ids: Sequence[str], reason: RemovalReason) -> list[RemovedEntry]:
        if not ids:
            return []
        chosen, values = self.database.in_list("id", ids)
        numbers: dict[str, list[int]] = {}
        for row in run(f"delete from vectors where {chosen} returning id, number", values):
            numbers.setdefault(row["id"], []).append(row["number"])
        run(f"delete from tags where {chosen}", values)
        rows = run(f"delete from responses where {chosen} returning id, namespace, key", values)
        return [
            RemovedEntry(row["id"], row["namespace"], tuple(numbers.get(row["id"], ())), row["key"], reason)
            for row in rows
        ]

    def record_hit(self, id: str) -> None:
        """Count a hit in memory, until `flush` writes the count."""
        self._add_hits(id, 1, self._clock())

    def _add_hits(self, id: str, count: int, last: float) -> None:
        with self._hits_lock:
            before, last_before = self._hits.get(id, (0, last))
            self._hits[id] = (before + count, max(last, last_before))

    def flush(self) -> None:
        if not self._hits:
            return
        with self._hit_counts() as write_hits, self.database.transaction(durable=False) as run:
            write_hits(run)

    @contextlib.contextmanager
    def _hit_counts(self) -> Iterator[eviction.WriteHits]:
        """Yield a function that writes the counts in a transaction. If that fails, the counts stay in memory."""
        written: list[dict[str, tuple[int, float]]] = []

        def write_hits(run: Transaction) -> None:
            with self._hits_lock:
                hits, self._hits = self._hits, {}
            if hits:
                written.append(hits)
                run.executemany(_COUNT_HITS, _hit_rows(hits))

        try:
            yield write_hits
        except BaseException:
            for hits in written:
                for id, (count, last) in hits.items():
                    self._add_hits(id, count, last)
            raise

    def add_vectors(self, entries: Sequence[NewEntry]) -> WriteResult:
        """Store the vectors of stored entries that have no vector of the same embedder. All vectors have one embedder."""
        if not entries:
            return WriteResult((), ())
        chosen, values = self.database.in_list("r.id", [new.entry.id for new in entries])
        without_vector = (
            f"select id from responses r where {chosen} and not exists"
            " (select 1 from vectors v where v.id = r.id and v.embedder = :embedder)"
        )
        with self.database.transaction(durable=False) as run:
            ids = {row["id"] for row in run(without_vector, values | {"embedder": entries[0].embedder})}
            numbers = [self._insert_vector(run, new) if new.entry.id in ids else None for new in entries]
        return WriteResult(tuple(numbers), ())

    def close(self) -> None:
        with contextlib.suppress(Exception):
            self.flush()
        self.database.close()


def _hit_rows(hits: Mapping[str, tuple[int, float]]) -> list[Row]:
    return [{"count": count, "last": last, "id": id, "pinned": eviction.PINNED} for id, (count, last) in hits.items()]
