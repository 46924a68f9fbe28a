"""What SQLite and PostgreSQL read alike, by the same statements; how they write is in `sql_writer`."""

import abc
import itertools
import logging
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, Literal

import numpy as np

from kvproxy.index.entry import Entry
from kvproxy.index.errors import CacheStoreError, StoreDamaged
from kvproxy.index.store import eviction
from kvproxy.index.store.entry_heads import HEAD, read_heads
from kvproxy.index.store.freshness_sql import KEPT, KEPT_UNTIL, SKEW
from kvproxy.index.store.listing import EVERYTHING, EntryFilter, EvictionCandidate, Purge, StorageUsage, UsageKey
from kvproxy.index.store.protocol import StoredQuestion
from kvproxy.index.store.purging import purge_of
from kvproxy.index.store.sealing import Row
from kvproxy.index.store.sql_writer import COLUMNS, SqlWriter
from kvproxy.index.store.tenant_usage import share_of

_PAGE = 500
_log = logging.getLogger("kvproxy")
_PAGE_BYTES = 2**20
_KEY_NAME = re.compile("[0-9a-f]{8}")
_ALL = 2**62  # A limit that is none: SQLite takes no offset without one.
_IN_TEXTS = ("prompt", "search")
"""Conditions that look into texts, which a database cannot do where they are encrypted."""
_CONDITIONS = {
    "namespace": "substr(namespace, 1, length(:namespace)) = :namespace",
    "key": "substr(key, 1, length(:key)) = :key",
    "model": "model = :model",
    "tag": "id in (select id from tags where tag = :tag)",
    "prompt": "substr(prompt, 1, length(:prompt)) = :prompt",
    "search": "replace(lower(prompt), lower(:search), '') <> lower(prompt)",
    "older_than": "created < :before",
    "tenant": "tenant in (:tenant, 'client:' || :tenant) or substr(tenant, 1, length(:tenant) + 8) = 'client:' || :tenant || '/'",
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
        return self.health.failure

    def version(self) -> int | None:
        return None

    def takes(self, entry: Entry) -> bool:
        size, share = eviction.entry_bytes(entry, 0), share_of(self._capacity, entry.tenant)
        return eviction.room_for(self._capacity, size) and (share is None or size <= share)

    def find(self, key: str) -> Entry | None:
        sql = f"select {COLUMNS} from responses where key = :key and {KEPT}"
        entry = self._one(self._query(sql, {"key": key} | self.now()))
        # A damaged index can lead to another entry.
        return entry if entry is None or entry.key == key else None

    def now(self) -> dict[str, float]:
        """The values that conditions on an entry's age need."""
        now = self._clock()
        return {"now": now, "soon": now + SKEW}

    def get(self, id: str) -> Entry | None:
        entry = self._one(self._query(f"select {COLUMNS} from responses where id = :id", {"id": id}))
        return entry if entry is None or entry.id == id else None

    def _one(self, rows: list[Row]) -> Entry | None:
        with self.health.watch("read"):
            return self._texts.entry(rows[0]) if rows else None

    def _whole(self, rows: list[Row]) -> Iterator[Entry]:
        """The entries of rows; one that is damaged must not hide the others."""
        for row in rows:
            try:
                yield self._texts.entry(row)
            except StoreDamaged as error:
                _log.warning("%s", error)

    def heads(self, ids: Sequence[str]) -> dict[str, StoredQuestion]:
        sql = f"select {HEAD} from responses r where {self._members.replace('id ', 'r.id ', 1)}"
        rows = self._query(sql, {"ids": self._list(ids)} | self.now())
        return {head.id: head for _, head in read_heads(rows, self._texts)}

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

    def ls(self, where: EntryFilter = EVERYTHING, *, limit: int | None = None, offset: int = 0) -> list[Entry]:
        self.flush()
        if (wanted := self._reader(where)) is not None:
            found = itertools.islice(self._read(where, wanted), offset, None if limit is None else offset + limit)
            return [entry for id in found if (entry := self.get(id)) is not None]
        condition, values = self._where(where)
        bound = (
            ""
            if limit is None and not offset
            else f" limit {_ALL if limit is None else int(limit)} offset {int(offset)}"
        )
        sql = f"select {COLUMNS} from responses{condition} order by created desc, id{bound}"
        return list(self._whole(self._query(sql, values)))

    def queue(self, limit: int, *, offset: int = 0) -> list[EvictionCandidate]:
        self.flush()
        # What is past its time goes before anything else. The order is made of ids alone, not of whole answers.
        over = f"case when {KEPT_UNTIL} <= :now then 0 else 1 end"
        page = f"select id from responses order by {over}, priority, id limit :most offset :offset"
        sql = f"select {COLUMNS}, priority, bytes, {over} as kept from responses where id in ({page}) order by kept, priority, id"
        values = {"now": self._clock(), "most": limit, "offset": offset}
        rows = {row["id"]: row for row in self._query(sql, values)}
        return [
            EvictionCandidate(entry, _why(row), float(row["priority"]), int(row["bytes"]))
            for entry in self._whole(list(rows.values()))
            if (row := rows[entry.id])
        ]

    def purges(self, limit: int) -> list[Purge]:
        sql = "select time, who, what, soft, entries from purges order by number desc limit :most"
        return [purge_of(row) for row in self._query(sql, {"most": limit})]

    def pinned(self) -> list[str]:
        rows = self._query(
            "select id from responses where priority >= :pinned order by priority, id", {"pinned": eviction.PINNED}
        )
        return [row["id"] for row in rows]

    def usage(self, by: UsageKey) -> list[StorageUsage]:
        self.flush()
        tagged = " join tags on tags.id = responses.id" if by == "tag" else ""
        sql = (
            f"select {by} as name, count(*) as entries, sum(bytes) as bytes, sum(hits) as hits from responses{tagged}"
            f" group by {by} order by sum(bytes) desc, 1"
        )
        rows = self._query(sql, {})
        return [
            StorageUsage(str(row["name"]), int(row["entries"]), int(row["bytes"]), int(row["hits"])) for row in rows
        ]

    def ids(self, where: EntryFilter = EVERYTHING) -> list[str]:
        if (wanted := self._reader(where)) is not None:
            return list(self._read(where, wanted))
        condition, values = self._where(where)
        return [row["id"] for row in self._query(f"select id from responses{condition}", values)]

    def _reader(self, where: EntryFilter) -> Callable[[str], bool] | None:
        """Whether a prompt is meant, where the database itself cannot tell; None where it can."""
        if self._texts.cipher is None or (where.prompt is None and where.search is None):
            return None
        begin, part = where.prompt or "", where.search
        return lambda text: text.startswith(begin) and (part is None or (part != "" and part.lower() in text.lower()))

    def _read(self, where: EntryFilter, wanted: Callable[[str], bool]) -> Iterator[str]:
        """Ids of entries whose prompts are meant, newest first: each prompt is decrypted, a page at a time."""
        condition, values = self._where(replace(where, **dict.fromkeys(_IN_TEXTS)))
        narrowed = f"{condition} and" if condition else " where"
        sql = (
            f"select id, key, namespace, prompt, sealed, created from responses{narrowed} (created < :created or"
            f" (created = :created and id > :id)) order by created desc, id limit {_PAGE}"
        )
        last: dict[str, Any] = {"created": float("inf"), "id": ""}
        while rows := self._query(sql, values | last):
            yield from (row["id"] for row in rows if wanted(self._texts.open(row)["prompt"]))
            last = {name: rows[-1][name] for name in ("created", "id")}

    def _where(self, where: EntryFilter) -> tuple[str, dict[str, Any]]:
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
            f" coalesce(sum(case when expires <= :now and {KEPT_UNTIL} > :now then 1 else 0 end), 0) as stale,"
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
        sql = f"select {COLUMNS} from responses where {self._members} order by created, id"
        for ids in self._pages():
            yield from self._whole(self._query(sql, {"ids": self._list(ids)}))

    def _pages(self) -> Iterator[list[str]]:
        """The ids of all entries, oldest first, few enough at a time that who reads them slowly holds little memory."""
        sql = (
            "select id, created, bytes from responses where created > :created or (created = :created and id > :id)"
            f" order by created, id limit {_PAGE}"
        )
        last: dict[str, Any] = {"created": float("-inf"), "id": ""}
        while rows := self._query(sql, last):
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
        return list(self._whole(self._query(sql, {"embedder": embedder})))

    def sealed_with(self) -> dict[str, int]:
        sql = "select sealed, count(*) as entries from responses group by sealed"
        return {row["sealed"]: int(row["entries"]) for row in self._query(sql, {})}

    def _check_keys(self) -> None:
        """Refuse what could not be read; raises CacheStoreError."""
        names = frozenset[str]() if self._texts.cipher is None else self._texts.cipher.names
        sql = "select min(sealed) as name from responses where sealed <> '' and sealed > :last"
        last = ""
        # The distinct ones, each by one step in the index.
        while last := self._query(sql, {"last": last})[0]["name"] or "":
            if not isinstance(last, str) or not _KEY_NAME.fullmatch(last):
                # A damaged entry: the following names cannot be read in order, and entries of unknown keys are not served.
                break
            if last not in names:
                raise CacheStoreError(
                    f"the store {self.name} holds responses that were encrypted with the key {last}, which is not among the"
                    " keys: give it in encryption.key_file or key_env, after the one that encrypts, or use another store"
                )


def _why(row: Row) -> Literal["expired", "saves least", "pinned"]:
    """Why an entry goes when its turn comes."""
    if not row["kept"]:
        return "expired"
    return "pinned" if row["priority"] >= eviction.PINNED else "saves least"
