"""Stored responses in SQLite, the truth of the response cache; vectors are kept beside them and indexed elsewhere.

One connection writes and another reads, each behind a lock of its own, so that a lookup never waits for a commit.
"""

import contextlib
import sqlite3
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from sqlite_utils import Database

from index.entry import Entry
from index.errors import CacheStoreError, StoreDamaged
from index.migrations import migrations

_BATCH = 500  # SQLite allows no more than some hundreds of placeholders in older builds.


class ResponseStore:
    """Responses in a file. Safe to use from several threads.

    Args:
        path: the file.
        clock: seconds since the epoch.

    Raises:
        StoreDamaged: the file is no SQLite database, or a damaged one; it is left as it is.
        CacheStoreError: the file cannot be opened.
    """

    def __init__(self, path: Path, *, clock: Callable[[], float] = time.time) -> None:
        self.path = path
        self._clock = clock
        self._write_lock = threading.Lock()
        self._read_lock = threading.Lock()
        self._hits: dict[str, tuple[int, float]] = {}
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            self._writer = self._connect()
            # Opens a missing file's schema, and reads enough of an old one to notice that it is damaged.
            migrations().apply(self._writer)
            self._reader = self._connect()
            self._reader.execute("select count(*) from responses").fetchone()
        except sqlite3.DatabaseError as error:
            if isinstance(error, sqlite3.OperationalError) and "malformed" not in str(error):
                raise CacheStoreError(f"cannot open the store {path}: {error}") from None
            raise StoreDamaged(
                f"the store {path} is damaged ({error}): move it away to start with an empty one, or restore a backup"
            ) from None
        except OSError as error:
            raise CacheStoreError(f"cannot open the store {path}: {error.strerror}") from None

    def _connect(self) -> Database:
        connection = sqlite3.connect(self.path, check_same_thread=False, timeout=10.0)
        connection.execute("pragma journal_mode=wal")
        connection.execute("pragma synchronous=full")
        return Database(connection)

    def find(self, key: str) -> Entry | None:
        """The unexpired entry with an exact key."""
        rows = self._query("select * from responses where key = ? and expires > ?", [key, self._clock()])
        return Entry.from_row(rows[0]) if rows else None

    def get(self, id: str) -> Entry | None:
        """The entry with an id, expired or not."""
        rows = self._query("select * from responses where id = ?", [id])
        return Entry.from_row(rows[0]) if rows else None

    def resolve(self, prefix: str) -> list[str]:
        """Ids that begin with a text, ten at most."""
        like = prefix.replace("%", "").replace("_", "") + "%"
        return [row["id"] for row in self._query("select id from responses where id like ? limit 10", [like])]

    @contextlib.contextmanager
    def _write(self) -> Iterator[Database]:
        """The writing connection, alone, in one transaction."""
        with self._write_lock, _told(self.path), self._writer.atomic():
            yield self._writer

    def put(self, entry: Entry, vector: np.ndarray | None = None, embedder: str = "") -> list[str]:
        """Keep an entry in place of any with the same key; durable when this returns.

        Args:
            entry: the response.
            vector: `[dim]` float32 of its prompt.
            embedder: name of what made the vector.

        Returns:
            Ids of the entries that it replaced.
        """
        with self._write():
            old = [row["id"] for row in self._writer.query("select id from responses where key = ?", [entry.key])]
            self._remove(old)
            self._writer["responses"].insert(entry.row())
            if vector is not None:
                self._writer["vectors"].insert(
                    {"id": entry.id, "embedder": embedder, "vector": vector.astype(np.float32).tobytes()}
                )
        return old

    def delete(self, ids: Sequence[str]) -> int:
        """Remove entries; how many there were."""
        with self._write():
            return self._remove(ids)

    def _remove(self, ids: Sequence[str]) -> int:
        removed = 0
        for start in range(0, len(ids), _BATCH):
            batch = list(ids[start : start + _BATCH])
            marks = ",".join("?" * len(batch))
            removed += self._writer.execute(f"delete from responses where id in ({marks})", batch).rowcount
            self._writer.execute(f"delete from vectors where id in ({marks})", batch)
        return removed

    def unindex(self, ids: Sequence[str]) -> None:
        """Keep entries for equal requests only: their vectors are deleted."""
        marks = ",".join("?" * len(ids))
        with self._write():
            self._writer.execute(f"update responses set semantic = 0 where id in ({marks})", list(ids))
            self._writer.execute(f"delete from vectors where id in ({marks})", list(ids))

    def touch(self, id: str) -> None:
        """Count a hit; written with the next `flush`, so that a hit costs no commit."""
        with self._read_lock:
            self._hits[id] = (self._hits.get(id, (0, 0.0))[0] + 1, self._clock())

    def flush(self) -> None:
        """Write the hits counted since the last call."""
        with self._read_lock:
            hits, self._hits = self._hits, {}
        if hits:
            with self._write():
                for id, (count, last) in hits.items():
                    self._writer.execute(
                        "update responses set hits = hits + ?, last_hit = ? where id = ?", [count, last, id]
                    )

    def ls(
        self,
        *,
        limit: int | None = None,
        namespace: str | None = None,
        model: str | None = None,
        search: str | None = None,
        older_than: float | None = None,
    ) -> list[Entry]:
        """Entries, newest first.

        Args:
            limit: most entries.
            namespace: its digest, or the beginning of it.
            model: exact name.
            search: text that the prompt contains.
            older_than: seconds of age.
        """
        self.flush()
        conditions = {
            "substr(namespace, 1, length(:namespace)) = :namespace": namespace,
            "model = :model": model,
            "instr(lower(prompt), lower(:search)) > 0": search,
            "created < :before": None if older_than is None else self._clock() - older_than,
        }
        chosen = [sql for sql, value in conditions.items() if value is not None]
        where = f" where {' and '.join(chosen)}" if chosen else ""
        values = {
            "namespace": namespace,
            "model": model,
            "search": search,
            "before": conditions["created < :before"],
            "limit": -1 if limit is None else limit,
        }
        rows = self._query(f"select * from responses{where} order by created desc, id limit :limit", values)
        return [Entry.from_row(row) for row in rows]

    def stats(self) -> dict[str, Any]:
        """Figures of the store: entries, namespaces, hits, tokens saved by hits, and bytes on disk."""
        self.flush()
        row = self._query(
            "select count(*) as entries, count(distinct namespace) as namespaces, count(distinct model) as models,"
            " coalesce(sum(hits), 0) as hits, coalesce(sum(expires <= ?), 0) as expired,"
            " coalesce(sum(hits * completion_tokens), 0) as completion_tokens_saved,"
            " coalesce(sum(hits * prompt_tokens), 0) as prompt_tokens_saved from responses",
            [self._clock()],
        )[0]
        size = sum(part.stat().st_size for part in self.path.parent.glob(self.path.name + "*"))
        return row | {"bytes": size, "path": str(self.path)}

    def export(self) -> Iterator[dict[str, Any]]:
        """Every entry as a JSON-able document, oldest first, with its vectors left out."""
        self.flush()
        for row in self._query("select id from responses order by created, id", []):
            entry = self.get(row["id"])
            if entry is not None:
                yield entry.document()

    def has_key(self, key: str) -> bool:
        """Whether an entry with an exact key is there, expired or not."""
        return bool(self._query("select 1 from responses where key = ?", [key]))

    def missing_vectors(self, embedder: str) -> list[Entry]:
        """Semantic entries without a vector of an embedder."""
        rows = self._query(
            "select r.* from responses r left join vectors v on v.id = r.id and v.embedder = ?"
            " where r.semantic and v.id is null",
            [embedder],
        )
        return [Entry.from_row(row) for row in rows]

    def add_vectors(self, vectors: Iterable[tuple[str, np.ndarray]], embedder: str) -> None:
        """Keep vectors of entries that have none."""
        with self._write():
            self._writer["vectors"].insert_all(
                (
                    {"id": id, "embedder": embedder, "vector": vector.astype(np.float32).tobytes()}
                    for id, vector in vectors
                ),
                replace=True,
            )

    def vectors(self, embedder: str) -> list[tuple[str, str, np.ndarray]]:
        """(id, namespace, vector) of every semantic entry that has a vector of an embedder."""
        rows = self._query(
            "select r.id, r.namespace, v.vector from responses r join vectors v on v.id = r.id where v.embedder = ?",
            [embedder],
        )
        return [(row["id"], row["namespace"], np.frombuffer(row["vector"], dtype=np.float32)) for row in rows]

    def check(self) -> int:
        """Have SQLite read the whole file; how many responses it holds.

        Raises:
            StoreDamaged: it found damage.
        """
        verdict = self._query("pragma integrity_check", [])[0]["integrity_check"]
        if verdict != "ok":
            raise StoreDamaged(f"the store {self.path} is damaged ({verdict}): restore a backup, or move it away")
        return int(self._query("select count(*) as entries from responses", [])[0]["entries"])

    def close(self) -> None:
        """Write what is pending and close the file."""
        self.flush()
        self._writer.close()
        self._reader.close()

    def _query(self, sql: str, values: Any) -> list[dict[str, Any]]:
        with self._read_lock, _told(self.path):
            return list(self._reader.query(sql, values))


@contextlib.contextmanager
def _told(path: Path) -> Iterator[None]:
    """SQLite's errors as the store's own."""
    try:
        yield
    except sqlite3.Error as error:
        raise CacheStoreError(f"the store {path} failed ({error}): check the disk, and kvproxy doctor") from error
