"""What SQLite and PostgreSQL read alike, by the same statements; how they write is in `sql_writer`."""

import abc
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from kvproxy.index.entry import Entry
from kvproxy.index.store.protocol import EVERYTHING, Filter, Head
from kvproxy.index.store.sql_writer import COLUMNS, Row, SqlWriter

_PAGE = 500
_SKEW = 60.0  # Seconds that clocks of proxies on one store may differ.
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


class SqlStore(SqlWriter):
    """A store in an SQL database; see `SqlWriter`."""

    remote = False

    @abc.abstractmethod
    def _query(self, sql: str, values: Mapping[str, Any]) -> list[Row]:
        """Rows of a statement that only reads."""

    @abc.abstractmethod
    def _disk_bytes(self) -> int:
        """Bytes that the store takes where it is."""

    def failure(self) -> str | None:
        return self.condition.failure

    def find(self, key: str) -> Entry | None:
        sql = f"select {COLUMNS} from responses where key = :key and {_LIVE}"
        return _one(self._query(sql, {"key": key} | self._now()))

    def _now(self) -> dict[str, float]:
        now = self._clock()
        return {"now": now, "soon": now + _SKEW}

    def get(self, id: str) -> Entry | None:
        return _one(self._query(f"select {COLUMNS} from responses where id = :id", {"id": id}))

    def heads(self, ids: Sequence[str]) -> dict[str, Head]:
        sql = (
            f"select id, namespace, prompt, case when {_LIVE} then 1 else 0 end as live,"
            " coalesce((select name from answers where entry = id), id) as answer"
            f" from responses where {self._members}"
        )
        rows = self._query(sql, {"ids": self._list(ids)} | self._now())
        return {
            row["id"]: Head(row["id"], row["namespace"], row["prompt"], bool(row["live"]), row["answer"])
            for row in rows
        }

    def answer_class(self, namespace: str, text: str) -> str | None:
        sql = "select name from answers where namespace = :namespace and text = :text order by entry limit 1"
        rows = self._query(sql, {"namespace": namespace, "text": text})
        return str(rows[0]["name"]) if rows else None

    def answer_vectors(self, ids: Sequence[str], embedder: str) -> dict[str, np.ndarray]:
        entries = self._members.replace("id ", "entry ", 1)
        sql = f"select entry, vector from answers where {entries} and embedder = :embedder and vector is not null"
        rows = self._query(sql, {"ids": self._list(ids), "embedder": embedder})
        return {row["entry"]: np.frombuffer(row["vector"], np.float32) for row in rows}

    def resolve(self, prefix: str) -> list[str]:
        # A range rather than a pattern, so that the index of ids serves it.
        sql = "select id from responses where id >= :prefix and id < :beyond order by id limit 10"
        return [row["id"] for row in self._query(sql, {"prefix": prefix, "beyond": prefix + "\U0010ffff"})]

    def has_key(self, key: str) -> bool:
        return bool(self._query("select 1 as there from responses where key = :key", {"key": key}))

    def ls(self, where: Filter = EVERYTHING, *, limit: int | None = None) -> list[Entry]:
        self.flush()
        condition, values = self._where(where)
        bound = "" if limit is None else f" limit {int(limit)}"
        sql = f"select {COLUMNS} from responses{condition} order by created desc, id{bound}"
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

    def entries(self) -> Iterator[Entry]:
        self.flush()
        sql = (
            f"select {COLUMNS} from responses where created > :created or (created = :created and id > :id)"
            f" order by created, id limit {_PAGE}"
        )
        last: dict[str, Any] = {"created": float("-inf"), "id": ""}
        while rows := self._query(sql, last):
            yield from (Entry.from_row(row) for row in rows)
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
            f"select {COLUMNS} from responses r where r.semantic = 1"
            f" and not exists (select 1 from vectors v where v.id = r.id and v.embedder = :embedder) limit {int(limit)}"
        )
        return [Entry.from_row(row) for row in self._query(sql, {"embedder": embedder})]


def _one(rows: list[Row]) -> Entry | None:
    return Entry.from_row(rows[0]) if rows else None
