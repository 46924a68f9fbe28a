"""How SQLite and PostgreSQL write: both run the same statements, with `:name` for values.

Every write begins with the row of totals, so writers come one after another, and what is counted is what is there.
"""

import abc
import contextlib
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import Any

import numpy as np

from kvproxy.index.entry import Entry
from kvproxy.index.errors import CacheStoreError
from kvproxy.index.store import eviction
from kvproxy.index.store.eviction_plan import Comer, make_room
from kvproxy.index.store.freshness_sql import KEPT_UNTIL
from kvproxy.index.store.health import StoreHealth
from kvproxy.index.store.hit_counts import HitCounts
from kvproxy.index.store.listing import PurgeRequest
from kvproxy.index.store.protocol import Capacity, ClassifiedAnswer, NewEntry, RemovalReason, RemovedEntry, WriteResult
from kvproxy.index.store.purging import expire_now, remember
from kvproxy.index.store.sealing import Row, RowCodec
from kvproxy.index.store.tenant_usage import make_room_of, share_of
from kvproxy.index.store.together import parts
from kvproxy.index.store.transaction import Transaction

COLUMNS = (
    "id, key, namespace, tenant, model, endpoint, prompt, semantic, request, response, created, expires, hits, last_hit,"
    " prompt_tokens, completion_tokens, tags, backend, request_id, sealed, checksum, stale_while_revalidate,"
    " stale_if_error"
)
_INSERT = (
    f"insert into responses ({COLUMNS}, bytes, priority)"
    f" values ({', '.join(':' + name.strip() for name in COLUMNS.split(','))}, :bytes, :priority)"
)
_INSERT_TAG = "insert into tags (tag, id) values (:tag, :id)"
_INSERT_VECTOR = "insert into vectors (id, embedder, namespace, vector) values (:id, :embedder, :namespace, :vector)"
_CLASSIFY = (
    "insert into answers (entry, namespace, name, text, vector, embedder)"
    " values (:entry, :namespace, :name, :text, :vector, :embedder)"
    " on conflict (entry) do update set name = excluded.name, text = excluded.text, vector = excluded.vector,"
    " embedder = excluded.embedder"
)
_SEALED = ("id", "prompt", "request", "response", "sealed", "checksum")
_PAGE = 500  # Entries that a transaction encrypts anew.
_MOST_AT_ONCE = 2_000  # Entries that one transaction removes for their age, so that writers need not wait long.


class SqlWriter(abc.ABC):
    """The writes of a store in an SQL database.

    Args:
        name: where it is, without secrets.
        clock: seconds since the epoch.
        capacity: how large it may grow.
        texts: turns texts into what is stored, and back.
    """

    _members: str
    """Condition that a column `id` is in the list `:ids`."""
    _same_keys: str
    """Condition that a column `key` is in the list `:keys`."""

    def __init__(self, name: str, clock: Callable[[], float], capacity: Capacity, texts: RowCodec) -> None:
        self.name = name
        self.health = StoreHealth(name)
        self._clock = clock
        self._capacity = capacity
        self._texts = texts
        self._hits = HitCounts()
        self.removal_listeners: list[Callable[[Sequence[RemovedEntry]], None]] = []

    @abc.abstractmethod
    def _writing(self, *, lasting: bool = True) -> contextlib.AbstractContextManager[Transaction]:
        """One transaction, alone; durable when it is left.

        Args:
            lasting: false for what can be missed: it survives a killed process, but perhaps not a power cut.
        """

    @abc.abstractmethod
    def _list(self, ids: Sequence[str]) -> Any:
        """A list as the database takes it."""

    @abc.abstractmethod
    def _vector(self, vector: np.ndarray) -> Any:
        """A vector as the database takes it."""

    def _text(self, text: str) -> str:
        """A text as the database takes it."""
        return text

    def _stores(self, keys: Sequence[str]) -> None:  # noqa: B027
        """Told the keys that the transaction under way stores."""

    def put(self, entry: Entry, vector: np.ndarray | None = None, embedder: str = "") -> WriteResult:
        return self.put_many([NewEntry(entry, vector, embedder)])

    def put_many(self, puts: Sequence[NewEntry]) -> WriteResult:
        numbers, gone = list[int | None](), list[RemovedEntry]()
        with self._writing() as run:
            for part in parts(run, self._capacity, puts, self._text, partial(self._replaces, run, puts)):
                made, went = self._put(run, part)
                numbers += made
                gone += went
        self._tell(gone)
        return WriteResult(tuple(numbers), tuple(gone))

    def _tell(self, gone: Sequence[RemovedEntry]) -> None:
        """What went is gone for good now."""
        for listener in self.removal_listeners if gone else ():
            listener(gone)

    def _replaces(self, run: Transaction, puts: Sequence[NewEntry]) -> list[bool]:
        """Whether each put takes the place of what is stored."""
        old = self._in_the_way(run, puts)
        taken = {row["id"] for row in old} | {row["key"] for row in old}
        return [put.entry.id in taken or self._text(put.entry.key) in taken for put in puts]

    def _in_the_way(self, run: Transaction, puts: Sequence[NewEntry]) -> list[Row]:
        """What is stored under the ids or keys of puts."""
        ids, keys = [put.entry.id for put in puts], [self._text(put.entry.key) for put in puts]
        chosen = "select id, key, priority from responses where"
        sql = f"{chosen} {self._members} union {chosen} {self._same_keys}"
        return run(sql, {"ids": self._list(ids), "keys": self._list(keys)})

    def _put(self, run: Transaction, puts: Sequence[NewEntry]) -> tuple[list[int | None], list[RemovedEntry]]:
        """Put one, or one of the `parts`: the numbers of their vectors, and what went."""
        old = self._in_the_way(run, puts)
        gone, pinned = self._remove(run, [row["id"] for row in old], "replaced"), eviction.pinned_keys(old)
        # Where several are put at once, each tenant has room for its own.
        share = share_of(self._capacity, puts[0].entry.tenant) if len(puts) == 1 else None
        comers: list[Comer] = []
        for put in puts:
            entry, size = put.entry, eviction.put_bytes(put)
            if not eviction.room_for(self._capacity, size) or (share is not None and size > share):
                gone.append(RemovedEntry(entry.id, entry.namespace))
            else:
                comers.append(Comer(entry, size, self._text(entry.key) in pinned))
        if share is not None and comers:
            evict = partial(self._remove, run, why="evicted")
            gone += make_room_of(run, evict, self._text(puts[0].entry.tenant), share, comers[0].size)
        room = make_room(run, partial(self._remove, run), partial(self._expired, run), self._capacity, comers)
        stay = [comer for comer in comers if comer.entry.id in room.priorities]
        self._stores([comer.entry.key for comer in stay])
        run.many(_INSERT, [self._row(comer, room.priorities[comer.entry.id]) for comer in stay])
        tags = [(tag, comer.entry.id) for comer in stay for tag in sorted(set(comer.entry.tags))]
        run.many(_INSERT_TAG, [{"tag": self._text(tag), "id": id} for tag, id in tags])
        embedder = next((put.embedder for put in puts if put.vector is not None), "")
        vectors = [
            (put.entry, put.vector) for put in puts if put.vector is not None and put.entry.id in room.priorities
        ]
        numbers = self._put_vectors(run, vectors, embedder)
        return [numbers.get(put.entry.id) for put in puts], gone + room.gone

    def _row(self, comer: Comer, priority: float) -> Row:
        columns = comer.entry.row().items()
        row = {name: self._text(value) if isinstance(value, str) else value for name, value in columns}
        return self._texts.close(row) | {"bytes": comer.size, "priority": priority}

    def _put_vectors(
        self, run: Transaction, vectors: Sequence[tuple[Entry, np.ndarray]], embedder: str
    ) -> dict[str, int]:
        """Their numbers by the ids of the entries."""
        if not vectors:
            return {}
        rows = [
            {"id": entry.id, "embedder": embedder, "namespace": entry.namespace, "vector": self._vector(vector)}
            for entry, vector in vectors
        ]
        run.many(_INSERT_VECTOR, rows)
        values = {"ids": self._list([entry.id for entry, _ in vectors]), "embedder": embedder}
        sql = f"select id, number from vectors where embedder = :embedder and {self._members}"
        return {row["id"]: int(row["number"]) for row in run(sql, values)}

    def _expired(self, run: Transaction) -> list[str]:
        over = f"select id from responses where {KEPT_UNTIL} <= :now limit {_MOST_AT_ONCE}"
        return [row["id"] for row in run(over, {"now": self._clock()})]

    def delete(self, ids: Sequence[str], by: PurgeRequest | None = None) -> list[RemovedEntry]:
        with self._writing() as run:
            gone = self._remove(run, ids, "removed")
            remember(run, by, len(gone), self._clock(), soft=False)
        self._tell(gone)
        return gone

    def expire_now(self, ids: Sequence[str], by: PurgeRequest | None = None) -> int:
        now = self._clock()
        with self._writing() as run:
            count = expire_now(run, self._members, self._list, COLUMNS, ids, now)
            remember(run, by, count, now, soft=True)
        return count

    def pin(self, id: str, *, pinned: bool) -> None:
        with self._writing() as run:
            run(eviction.PIN if pinned else eviction.UNPIN, {"id": id, "pinned": eviction.PINNED, "count": 0})

    def unindex(self, ids: Sequence[str]) -> list[RemovedEntry]:
        with self._writing() as run:
            values = {"ids": self._list(ids)}
            run(f"update responses set semantic = 0 where {self._members}", values)
            rows = run(f"delete from vectors where {self._members} returning id, namespace, number", values)
        return [RemovedEntry(row["id"], row["namespace"], (row["number"],)) for row in rows]

    def classify(self, answer: ClassifiedAnswer) -> None:
        vector = None if answer.vector is None else answer.vector.astype(np.float32).tobytes()
        values = {"entry": answer.entry, "namespace": answer.namespace, "name": answer.name, "text": answer.text}
        with self._writing(lasting=False) as run:
            if run("select 1 as there from responses where id = :entry", values):
                run(_CLASSIFY, values | {"vector": vector, "embedder": answer.embedder})

    def reset_classes(self, ids: Sequence[str]) -> None:
        entries = self._members.replace("id ", "entry ", 1)
        with self._writing() as run:
            run(f"update answers set name = entry where {entries}", {"ids": self._list(ids)})

    def reseal(self) -> int:
        cipher, resealed = self._texts.cipher, 0
        if cipher is None:
            return 0
        chosen = f"select {COLUMNS} from responses where sealed <> :name limit {_PAGE}"
        change = (
            "update responses set prompt = :prompt, request = :request, response = :response, sealed = :sealed,"
            " checksum = :checksum"
            " where id = :id"
        )
        while True:
            with self._writing() as run:
                rows = [self._texts.close(self._texts.open(row)) for row in run(chosen, {"name": cipher.name})]
                run.many(change, [{name: row[name] for name in _SEALED} for row in rows])
            if not rows:
                return resealed
            resealed += len(rows)

    def expire(self) -> list[RemovedEntry]:
        with self._writing() as run:
            gone = self._remove(run, self._expired(run), "expired")
        self._tell(gone)
        return gone

    def _remove(self, run: Transaction, ids: Sequence[str], why: RemovalReason) -> list[RemovedEntry]:
        if not ids:
            return []
        values = {"ids": self._list(ids)}
        numbers: dict[str, list[int]] = {}
        for row in run(f"delete from vectors where {self._members} returning id, number", values):
            numbers.setdefault(row["id"], []).append(row["number"])
        run(f"delete from tags where {self._members}", values)
        rows = run(f"delete from responses where {self._members} returning id, namespace, key", values)
        return [
            RemovedEntry(row["id"], row["namespace"], tuple(numbers.get(row["id"], ())), row["key"], why)
            for row in rows
        ]

    def touch(self, id: str) -> None:
        self._hits.add(id, self._clock())

    def flush(self) -> None:
        hits = self._hits.take()
        if not hits:
            return
        priority = eviction.PRIORITY_AFTER_HITS
        sql = f"update responses set hits = hits + :count, last_hit = :last, priority = {priority} where id = :id"
        try:
            with self._writing(lasting=False) as run:
                for id, (count, last) in hits.items():
                    run(sql, {"count": count, "last": last, "id": id, "pinned": eviction.PINNED})
        except CacheStoreError:
            self._hits.put_back(hits)
            raise

    def add_vectors(self, vectors: Iterable[tuple[Entry, np.ndarray]], embedder: str) -> dict[str, int]:
        given = {entry.id: (entry, vector) for entry, vector in vectors}
        without = (
            f"select id from responses r where {self._members} and not exists"
            " (select 1 from vectors v where v.id = r.id and v.embedder = :embedder)"
        )
        with self._writing(lasting=False) as run:
            rows = run(without, {"ids": self._list(list(given)), "embedder": embedder})
            return self._put_vectors(run, [given[row["id"]] for row in rows], embedder)

    def close(self) -> None:
        """Write the hits that are pending; those that cannot be written are lost."""
        with contextlib.suppress(Exception):
            self.flush()
