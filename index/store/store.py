"""Reads stored responses."""

import itertools
import logging
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Literal

from kvproxy.index.entry import CLOCK_SKEW, PROVIDER_ID_TAG, Entry
from kvproxy.index.errors import StoreDamaged
from kvproxy.index.store import eviction
from kvproxy.index.store.database import Row
from kvproxy.index.store.rows import IS_SERVABLE, QUESTION, SERVABLE_UNTIL, read_questions
from kvproxy.index.store.store_types import (
    ALL_ENTRIES,
    EntryFilter,
    EvictionCandidate,
    NewEntry,
    StorageUsage,
    StoredQuestion,
    StoreStatistics,
    UsageKey,
)
from kvproxy.index.store.writer import COLUMNS, StoreWriter

if TYPE_CHECKING:
    import numpy as np

_PAGE = 500
_PAGE_BYTES = 2**20
_MAX_COMPARED = 3_000
_UNLIMITED = 2**62  # SQLite requires a limit before an offset.
_CONDITIONS = {
    "namespace": "substr(namespace, 1, length(:namespace)) = :namespace",
    "key": "substr(key, 1, length(:key)) = :key",
    "model": "model = :model",
    "endpoint": "endpoint = :endpoint",
    "tag": "id in (select id from tags where tag = :tag)",
    "prompt": "substr(prompt, 1, length(:prompt)) = :prompt",
    "search": "replace(lower(prompt), lower(:search), '') <> lower(prompt)",
    "older_than": "created < :before",
    "expires_after": "expires > :expires_after",
    "tenant": "tenant in (:tenant, 'client:' || :tenant) or substr(tenant, 1, length(:tenant) + 8) = 'client:' || :tenant || '/'",
}
_FIND = f"select {COLUMNS} from responses where key = :key and {IS_SERVABLE}"
_IS_OWN_TAG = f"substr(tag, 1, {len(PROVIDER_ID_TAG)}) <> '{PROVIDER_ID_TAG}'"
_log = logging.getLogger("kvproxy")


class Store(StoreWriter):
    """The stored responses; `StoreWriter` has the write operations. Thread-safe. Every method may raise a CacheStoreError."""

    def fits(self, entry: Entry) -> bool:
        return eviction.fits(self._capacity, NewEntry(entry))

    def find(self, key: str) -> Entry | None:
        """Return the entry with a key; None if there is no entry, or if it is `expired` (see `Freshness`)."""
        entry = self._first_entry(self.database.query(_FIND, {"key": key} | self.time_parameters()))
        # A damaged index can return another entry.
        return entry if entry is None or entry.key == key else None

    def time_parameters(self) -> dict[str, float]:
        now = self._clock()
        return {"now": now, "soon": now + CLOCK_SKEW}

    def get(self, id: str) -> Entry | None:
        rows = self.database.query(f"select {COLUMNS} from responses where id = :id", {"id": id})
        entry = self._first_entry(rows)
        return entry if entry is None or entry.id == id else None

    def get_many(self, ids: Sequence[str]) -> dict[str, Entry]:
        """Return the intact entries with these ids, by id."""
        chosen, values = self.database.in_list("id", ids)
        rows = self.database.query(f"select {COLUMNS} from responses where {chosen}", values)
        return {entry.id: entry for entry in self._intact_entries(rows)}

    def _first_entry(self, rows: list[Row]) -> Entry | None:
        if not rows:
            return None
        with self.database.health.watch("read"):
            return self.codec.entry(rows[0])

    def _intact_entries(self, rows: list[Row]) -> Iterator[Entry]:
        for row in rows:
            try:
                yield self.codec.entry(row)
            except StoreDamaged as error:
                _log.warning("%s", error)

    def questions(self, ids: Sequence[str]) -> dict[str, StoredQuestion]:
        chosen, values = self.database.in_list("r.id", ids)
        rows = self.database.query(
            f"select {QUESTION} from responses r where {chosen}", values | self.time_parameters()
        )
        return {question.id: question for _, question in read_questions(rows, self.codec)}

    def nearest(self, vector: "np.ndarray", embedder: str, limit: int) -> list[tuple[str, float]]:
        """Return the ids of the nearest entries of all namespaces, among the last 3,000, and their cosines, nearest first."""
        sql = "select id, vector from vectors where embedder = :embedder order by number desc limit :recent"
        rows = self.database.query(sql, {"embedder": embedder, "recent": _MAX_COMPARED})
        cosines = [(row["id"], float(self.database.read_vector(row["vector"]) @ vector)) for row in rows]
        return sorted(cosines, key=lambda pair: -pair[1])[:limit]

    def similarities(self, id: str, others: Sequence[str]) -> dict[str, float]:
        """Return the cosines of an entry's question with those of other entries by id, as far as they have vectors."""
        chosen, values = self.database.in_list("o.id", others)
        sql = (
            "select o.id, o.vector, own.vector as own from vectors own join vectors o on o.embedder = own.embedder"
            f" where own.id = :id and {chosen}"
        )
        read = self.database.read_vector
        return {
            row["id"]: float(read(row["vector"]) @ read(row["own"]))
            for row in self.database.query(sql, values | {"id": id})
        }

    def answer_class(self, namespace: str, digest: str) -> str | None:
        """Return the class (see `answer_classes`) of stored answers with the `text_digest` `digest`; None without one."""
        sql = "select name from answers where namespace = :namespace and text = :text order by entry limit 1"
        rows = self.database.query(sql, {"namespace": namespace, "text": digest})
        return str(rows[0]["name"]) if rows else None

    def ids_with_prefix(self, prefix: str) -> list[str]:
        # A range, unlike a pattern, uses the index.
        sql = "select id from responses where id >= :prefix and id < :beyond order by id limit 10"
        rows = self.database.query(sql, {"prefix": prefix, "beyond": prefix + "\U0010ffff"})
        return [row["id"] for row in rows]

    def has_key(self, key: str) -> bool:
        return bool(self.database.query("select 1 as found from responses where key = :key", {"key": key}))

    def list_entries(
        self, where: EntryFilter = ALL_ENTRIES, *, limit: int | None = None, offset: int = 0
    ) -> list[Entry]:
        self.flush()
        if (matches := self._prompt_filter(where)) is not None:
            ids = itertools.islice(
                self._matching_ids(where, matches), offset, None if limit is None else offset + limit
            )
            return [entry for id in ids if (entry := self.get(id)) is not None]
        condition, values = self._where_clause(where)
        sql = f"select {COLUMNS} from responses{condition} order by created desc, id limit :limit offset :offset"
        bounds = {"limit": _UNLIMITED if limit is None else limit, "offset": offset}
        return list(self._intact_entries(self.database.query(sql, values | bounds)))

    def eviction_order(self, limit: int, *, offset: int = 0) -> list[EvictionCandidate]:
        self.flush()
        servable = f"case when {SERVABLE_UNTIL} <= :now then 0 else 1 end"
        page = f"select id from responses order by {servable}, priority, id limit :limit offset :offset"
        sql = (
            f"select {COLUMNS}, priority, bytes, {servable} as servable from responses where id in ({page})"
            " order by servable, priority, id"
        )
        values = {"now": self._clock(), "limit": limit, "offset": offset}
        rows = {row["id"]: row for row in self.database.query(sql, values)}
        return [
            EvictionCandidate(entry, _eviction_reason(row), _unpinned_priority(row), int(row["bytes"]))
            for entry in self._intact_entries(list(rows.values()))
            if (row := rows[entry.id])
        ]

    def pinned_ids(self) -> list[str]:
        sql = "select id from responses where priority >= :pinned order by priority, id"
        return [row["id"] for row in self.database.query(sql, {"pinned": eviction.PINNED})]

    def usage(self, by: UsageKey) -> list[StorageUsage]:
        self.flush()
        join = f" join tags on tags.id = responses.id where {_IS_OWN_TAG}" if by == "tag" else ""
        sql = (
            f"select {by} as name, count(*) as entries, sum(bytes) as bytes, {_sum('hits')} as hits from responses{join}"
            f" group by {by} order by sum(bytes) desc, 1"
        )
        return [
            StorageUsage(str(row["name"]), int(row["entries"]), int(row["bytes"]), int(row["hits"]))
            for row in self.database.query(sql)
        ]

    def ids(self, where: EntryFilter = ALL_ENTRIES) -> list[str]:
        if (matches := self._prompt_filter(where)) is not None:
            return list(self._matching_ids(where, matches))
        condition, values = self._where_clause(where)
        return [row["id"] for row in self.database.query(f"select id from responses{condition}", values)]

    def invalidate(self, where: EntryFilter) -> list[str]:
        """Return the ids of the entries that a filter selects, which the caller removes or expires.

        Answers that the filter would select are not stored if their `AnswerComputation` began before.
        """
        self._record_invalidation(where)
        return self.ids(where)

    def _prompt_filter(self, where: EntryFilter) -> Callable[[str], bool] | None:
        if self.codec.cipher is None or (where.prompt is None and where.search is None):
            return None
        start, part = where.prompt or "", where.search
        return lambda text: text.startswith(start) and (part is None or (part != "" and part.lower() in text.lower()))

    def _matching_ids(self, where: EntryFilter, matches: Callable[[str], bool]) -> Iterator[str]:
        condition, values = self._where_clause(replace(where, prompt=None, search=None))
        sql = (
            f"select id, key, namespace, prompt, sealed, created from responses{condition}{' and' if condition else ' where'}"
            " (created < :created or (created = :created and id > :id)) order by created desc, id"
            f" limit {_PAGE}"
        )
        last: dict[str, Any] = {"created": float("inf"), "id": ""}
        while rows := self.database.query(sql, values | last):
            yield from (row["id"] for row in rows if matches(self.codec.decrypt(row)["prompt"]))
            last = {name: rows[-1][name] for name in ("created", "id")}

    def _where_clause(self, where: EntryFilter) -> tuple[str, dict[str, Any]]:
        names = [name for name in _CONDITIONS if getattr(where, name) is not None]
        values = {name: getattr(where, name) for name in names}
        if where.older_than is not None:
            values["before"] = self._clock() - values.pop("older_than")
        condition = " where " + " and ".join(f"({_CONDITIONS[name]})" for name in names) if names else ""
        return condition, self.database.storable_row(values)

    def count(self) -> int:
        return int(self.database.query("select entries from totals")[0]["entries"])

    def count_stored(self, ids: Sequence[str]) -> int:
        chosen, values = self.database.in_list("id", ids)
        return int(
            self.database.query(f"select count(*) as entries from responses where {chosen}", values)[0]["entries"]
        )

    def stats(self) -> StoreStatistics:
        self.flush()
        row = self.database.query(
            "select count(*) as entries, count(distinct namespace) as namespaces,"
            " count(distinct nullif(model, '')) as models,"
            f" coalesce({_sum('hits')}, 0) as hits, coalesce(sum(case when expires <= :now then 1 else 0 end), 0) as expired,"
            f" coalesce(sum(case when expires <= :now and {SERVABLE_UNTIL} > :now then 1 else 0 end), 0) as stale,"
            " coalesce(sum(bytes), 0) as entry_bytes from responses",
            {"now": self._clock()},
        )[0]
        saved = self.database.query(
            f"select {_sum('hits', _known('completion_tokens'))} as completion_tokens_saved,"
            f" {_sum('hits', _known('prompt_tokens'))} as prompt_tokens_saved from responses where hits > 0"
        )[0]
        tags = self.database.query(
            f"select tag, count(*) as entries from tags where {_IS_OWN_TAG} group by tag order by tag"
        )
        return StoreStatistics(
            **{name: int(value) for name, value in row.items()},
            completion_tokens_saved=_saved(saved["completion_tokens_saved"], row["hits"]),
            prompt_tokens_saved=_saved(saved["prompt_tokens_saved"], row["hits"]),
            max_entries=self._capacity.entries,
            max_bytes=self._capacity.bytes,
            tags={tag["tag"]: tag["entries"] for tag in tags},
            bytes=self.database.disk_bytes(),
            path=self.name,
        )

    def entries(self) -> Iterator[Entry]:
        """Yield all entries, oldest first. They are read in pages of about 1 MiB."""
        self.flush()
        for ids in self._pages():
            chosen, values = self.database.in_list("id", ids)
            sql = f"select {COLUMNS} from responses where {chosen} order by created, id"
            yield from self._intact_entries(self.database.query(sql, values))

    def _pages(self) -> Iterator[list[str]]:
        sql = (
            "select id, created, bytes from responses where created > :created or (created = :created and id > :id)"
            f" order by created, id limit {_PAGE}"
        )
        last: dict[str, Any] = {"created": float("-inf"), "id": ""}
        while rows := self.database.query(sql, last):
            page, size = list[str](), 0
            for row in rows:
                if page and size + row["bytes"] > _PAGE_BYTES:
                    yield page
                    page, size = [], 0
                page.append(row["id"])
                size += row["bytes"]
            yield page
            last = {name: rows[-1][name] for name in ("created", "id")}

    def missing_vectors(self, embedder: str, limit: int) -> list[Entry]:
        counts = self.database.query(
            "select (select count(*) from responses where semantic = 1) as entries,"
            " (select count(*) from vectors where embedder = :embedder) as vectors",
            {"embedder": embedder},
        )[0]
        if counts["entries"] == counts["vectors"]:
            return []
        sql = (
            f"select {COLUMNS} from responses r where r.semantic = 1"
            " and not exists (select 1 from vectors v where v.id = r.id and v.embedder = :embedder) limit :limit"
        )
        return list(self._intact_entries(self.database.query(sql, {"embedder": embedder, "limit": limit})))

    def count_by_key_name(self) -> dict[str, int]:
        """Return the number of entries by the name of their encryption key; `""` is the name for unencrypted entries."""
        sql = "select sealed, count(*) as entries from responses group by sealed"
        return {row["sealed"]: int(row["entries"]) for row in self.database.query(sql)}


def _known(column: str) -> str:
    """Return an SQL expression for a number of tokens, in which unknown tokens are null."""
    return f"case when {column} >= 0 then {column} end"


def _saved(tokens: float | None, hits: float) -> int | None:
    """Return the tokens of hits; None if they are unknown."""
    if tokens is None:
        return None if hits else 0
    return int(tokens)


def _sum(*columns: str) -> str:
    # Integers of 64 bits could overflow. Sums below 2^53 are exact.
    return f"sum({' * '.join(f'cast({name} as double precision)' for name in columns)})"


def _unpinned_priority(row: Row) -> float | None:
    priority = float(row["priority"])
    return None if priority >= eviction.PINNED else priority


def _eviction_reason(row: Row) -> Literal["expired", "low priority", "pinned"]:
    if not row["servable"]:
        return "expired"
    return "pinned" if row["priority"] >= eviction.PINNED else "low priority"
