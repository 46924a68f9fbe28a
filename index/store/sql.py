"""What SQLite and PostgreSQL do alike: both run the same statements, with `:name` for values.

Every write begins with the row of totals, so writers come one after another, and what is counted is what is there.
"""

import abc
import contextlib
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from index.entry import Entry
from index.store import eviction
from index.store.protocol import EVERYTHING, Capacity, Filter, Gone, Head, Put, Written

Row = dict[str, Any]
Run = Callable[[str, Mapping[str, Any]], list[Row]]
_PAGE = 500
_MOST_AT_ONCE = 2_000  # Entries that one transaction removes for their age, so that writers need not wait long.
_SKEW = 60.0  # Seconds that clocks of proxies on one store may differ.

_COLUMNS = (
    "id, key, namespace, tenant, model, endpoint, prompt, semantic, request, response, created, expires, hits, last_hit,"
    " prompt_tokens, completion_tokens, tags, backend, request_id"
)
_INSERT = (
    f"insert into responses ({_COLUMNS}, bytes, priority)"
    f" values ({', '.join(':' + name.strip() for name in _COLUMNS.split(','))}, :bytes, :priority)"
)
# What was stored in the future was stored before the clock was set back: it would outlive its time by as much.
_LIVE = "expires > :now and created <= :soon"
_CONDITIONS = {
    "namespace": "substr(namespace, 1, length(:namespace)) = :namespace",
    "key": "substr(key, 1, length(:key)) = :key",
    "model": "model = :model",
    "tag": "id in (select id from tags where tag = :tag)",
    "prompt": "substr(prompt, 1, length(:prompt)) = :prompt",
    "search": "replace(lower(prompt), lower(:search), '') <> lower(prompt)",
    "older_than": "created < :before",
}


class SqlStore(abc.ABC):
    """A store in an SQL database.

    Args:
        name: where it is, without secrets.
        clock: seconds since the epoch.
        capacity: how large it may grow.
    """

    remote = False
    _members: str
    """Condition that a column `id` is in the list `:ids`."""

    def __init__(self, name: str, clock: Callable[[], float], capacity: Capacity) -> None:
        self.name = name
        self._clock = clock
        self._capacity = capacity
        self._hits: dict[str, tuple[int, float]] = {}
        self._hits_lock = threading.Lock()

    @abc.abstractmethod
    def _query(self, sql: str, values: Mapping[str, Any]) -> list[Row]:
        """Rows of a statement that only reads."""

    @abc.abstractmethod
    def _writing(self) -> contextlib.AbstractContextManager[Run]:
        """One transaction, alone; durable when it is left."""

    @abc.abstractmethod
    def _list(self, ids: Sequence[str]) -> Any:
        """A list as the database takes it."""

    @abc.abstractmethod
    def _vector(self, vector: np.ndarray) -> Any:
        """A vector as the database takes it."""

    def _text(self, text: str) -> str:
        """A text as the database takes it."""
        return text

    @abc.abstractmethod
    def _disk_bytes(self) -> int:
        """Bytes that the store takes where it is."""

    def find(self, key: str) -> Entry | None:
        sql = f"select {_COLUMNS} from responses where key = :key and {_LIVE}"
        return _one(self._query(sql, {"key": key} | self._now()))

    def _now(self) -> dict[str, float]:
        now = self._clock()
        return {"now": now, "soon": now + _SKEW}

    def get(self, id: str) -> Entry | None:
        return _one(self._query(f"select {_COLUMNS} from responses where id = :id", {"id": id}))

    def heads(self, ids: Sequence[str]) -> dict[str, Head]:
        sql = (
            f"select id, namespace, prompt, case when {_LIVE} then 1 else 0 end as live"
            f" from responses where {self._members}"
        )
        rows = self._query(sql, {"ids": self._list(ids)} | self._now())
        return {row["id"]: Head(row["id"], row["namespace"], row["prompt"], bool(row["live"])) for row in rows}

    def resolve(self, prefix: str) -> list[str]:
        # A range rather than a pattern, so that the index of ids serves it.
        sql = "select id from responses where id >= :prefix and id < :beyond order by id limit 10"
        return [row["id"] for row in self._query(sql, {"prefix": prefix, "beyond": prefix + "\U0010ffff"})]

    def has_key(self, key: str) -> bool:
        return bool(self._query("select 1 as there from responses where key = :key", {"key": key}))

    def put(self, entry: Entry, vector: np.ndarray | None = None, embedder: str = "") -> Written:
        return self.put_many([Put(entry, vector, embedder)])

    def put_many(self, puts: Sequence[Put]) -> Written:
        numbers: list[int | None] = []
        gone: list[Gone] = []
        with self._writing() as run:
            for put in puts:
                number, went = self._put(run, put)
                numbers.append(number)
                gone += went
        return Written(tuple(numbers), tuple(gone))

    def _put(self, run: Run, put: Put) -> tuple[int | None, list[Gone]]:
        entry = put.entry
        old = run("select id from responses where key = :key or id = :id", {"key": entry.key, "id": entry.id})
        gone = self._remove(run, [row["id"] for row in old])
        size = eviction.entry_bytes(entry, 0 if put.vector is None else len(put.vector))
        if not eviction.room_for(self._capacity, size):
            return None, [*gone, Gone(entry.id, entry.namespace)]
        evicted, age = self._make_room(run, size)
        gone += evicted
        row = {name: self._text(value) if isinstance(value, str) else value for name, value in entry.row().items()}
        run(_INSERT, row | {"bytes": size, "priority": eviction.priority(entry, size, age)})
        for tag in sorted(set(entry.tags)):
            run("insert into tags (tag, id) values (:tag, :id)", {"tag": self._text(tag), "id": entry.id})
        return None if put.vector is None else self._put_vector(run, entry, put.vector, put.embedder), gone

    def _put_vector(self, run: Run, entry: Entry, vector: np.ndarray, embedder: str) -> int:
        values = {"id": entry.id, "embedder": embedder, "namespace": entry.namespace, "vector": self._vector(vector)}
        sql = (
            "insert into vectors (id, embedder, namespace, vector)"
            " values (:id, :embedder, :namespace, :vector) returning number"
        )
        return int(run(sql, values)[0]["number"])

    def _make_room(self, run: Run, size: int) -> tuple[list[Gone], float]:
        """What had to go, and the age that a new entry begins with."""
        gone: list[Gone] = []
        while True:
            totals = run("select entries, bytes, age from totals", {})[0]
            entries, total = totals["entries"] + 1, totals["bytes"] + size
            if not eviction.excess(self._capacity, entries, total):
                return gone, totals["age"]
            expired = self._expired(run)
            if not expired:
                rows = run("select id, bytes, priority from responses order by priority, id limit 100", {})
                chosen = eviction.victims(self._capacity, entries, total, rows)
                run("update totals set age = :age", {"age": chosen[-1]["priority"]})
                expired = [row["id"] for row in chosen]
            gone += self._remove(run, expired)

    def _expired(self, run: Run) -> list[str]:
        sql = f"select id from responses where expires <= :now limit {_MOST_AT_ONCE}"
        return [row["id"] for row in run(sql, {"now": self._clock()})]

    def delete(self, ids: Sequence[str]) -> list[Gone]:
        with self._writing() as run:
            return self._remove(run, ids)

    def unindex(self, ids: Sequence[str]) -> list[Gone]:
        with self._writing() as run:
            values = {"ids": self._list(ids)}
            run(f"update responses set semantic = 0 where {self._members}", values)
            rows = run(f"delete from vectors where {self._members} returning id, namespace, number", values)
        return [Gone(row["id"], row["namespace"], (row["number"],)) for row in rows]

    def expire(self) -> list[Gone]:
        with self._writing() as run:
            return self._remove(run, self._expired(run))

    def _remove(self, run: Run, ids: Sequence[str]) -> list[Gone]:
        if not ids:
            return []
        values = {"ids": self._list(ids)}
        numbers: dict[str, list[int]] = {}
        for row in run(f"delete from vectors where {self._members} returning id, number", values):
            numbers.setdefault(row["id"], []).append(row["number"])
        run(f"delete from tags where {self._members}", values)
        rows = run(f"delete from responses where {self._members} returning id, namespace", values)
        return [Gone(row["id"], row["namespace"], tuple(numbers.get(row["id"], ()))) for row in rows]

    def touch(self, id: str) -> None:
        with self._hits_lock:
            self._hits[id] = (self._hits.get(id, (0, 0.0))[0] + 1, self._clock())

    def flush(self) -> None:
        with self._hits_lock:
            hits, self._hits = self._hits, {}
        if not hits:
            return
        priority = eviction.PRIORITY_AFTER_HITS
        sql = f"update responses set hits = hits + :count, last_hit = :last, priority = {priority} where id = :id"
        with self._writing() as run:
            for id, (count, last) in hits.items():
                run(sql, {"count": count, "last": last, "id": id})

    def ls(self, where: Filter = EVERYTHING, *, limit: int | None = None) -> list[Entry]:
        self.flush()
        condition, values = self._where(where)
        bound = "" if limit is None else f" limit {int(limit)}"
        sql = f"select {_COLUMNS} from responses{condition} order by created desc, id{bound}"
        return [Entry.from_row(row) for row in self._query(sql, values)]

    def ids(self, where: Filter = EVERYTHING) -> list[str]:
        condition, values = self._where(where)
        return [row["id"] for row in self._query(f"select id from responses{condition}", values)]

    def _where(self, where: Filter) -> tuple[str, dict[str, Any]]:
        chosen = [name for name in _CONDITIONS if getattr(where, name) is not None]
        values = {name: getattr(where, name) for name in chosen}
        if where.older_than is not None:
            values["before"] = self._clock() - values.pop("older_than")
        condition = " and ".join(_CONDITIONS[name] for name in chosen)
        return f" where {condition}" if chosen else "", values

    def count(self) -> int:
        return int(self._query("select entries from totals", {})[0]["entries"])

    def stats(self) -> dict[str, Any]:
        self.flush()
        row = self._query(
            "select count(*) as entries, count(distinct namespace) as namespaces, count(distinct model) as models,"
            " coalesce(sum(hits), 0) as hits, coalesce(sum(case when expires <= :now then 1 else 0 end), 0) as expired,"
            " coalesce(sum(hits * completion_tokens), 0) as completion_tokens_saved,"
            " coalesce(sum(hits * prompt_tokens), 0) as prompt_tokens_saved,"
            " coalesce(sum(bytes), 0) as entry_bytes from responses",
            {"now": self._clock()},
        )[0]
        tags = self._query("select tag, count(*) as entries from tags group by tag order by tag", {})
        sums = {name: int(value) for name, value in row.items()}
        return sums | {
            "max_entries": self._capacity.entries,
            "max_bytes": self._capacity.bytes,
            "tags": {tag["tag"]: tag["entries"] for tag in tags},
            "bytes": self._disk_bytes(),
            "path": self.name,
        }

    def export(self) -> Iterator[dict[str, Any]]:
        self.flush()
        sql = (
            f"select {_COLUMNS} from responses where created > :created or (created = :created and id > :id)"
            f" order by created, id limit {_PAGE}"
        )
        last: dict[str, Any] = {"created": float("-inf"), "id": ""}
        while rows := self._query(sql, last):
            yield from (Entry.from_row(row).document() for row in rows)
            last = {name: rows[-1][name] for name in ("created", "id")}

    def missing_vectors(self, embedder: str, limit: int) -> list[Entry]:
        # Every vector belongs to an entry, so equal counts mean that none is missing, without a look at each.
        counts = self._query(
            "select (select count(*) from responses where semantic = 1) as entries,"
            " (select count(*) from vectors where embedder = :embedder) as vectors",
            {"embedder": embedder},
        )[0]
        if counts["entries"] == counts["vectors"]:
            return []
        sql = (
            f"select {_COLUMNS} from responses r where r.semantic = 1"
            f" and not exists (select 1 from vectors v where v.id = r.id and v.embedder = :embedder) limit {int(limit)}"
        )
        return [Entry.from_row(row) for row in self._query(sql, {"embedder": embedder})]

    def add_vectors(self, vectors: Iterable[tuple[Entry, np.ndarray]], embedder: str) -> None:
        there = (
            "select 1 as there from responses where id = :id and not exists"
            " (select 1 from vectors where id = :id and embedder = :embedder)"
        )
        with self._writing() as run:
            for entry, vector in vectors:
                if run(there, {"id": entry.id, "embedder": embedder}):
                    self._put_vector(run, entry, vector, embedder)

    def close(self) -> None:
        """Write the hits that are pending; those that cannot be written are lost."""
        with contextlib.suppress(Exception):
            self.flush()


def _one(rows: list[Row]) -> Entry | None:
    return Entry.from_row(rows[0]) if rows else None
