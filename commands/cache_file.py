"""The stored responses without a proxy: the file of a stopped one, or a server's."""

import getpass
import os
from collections.abc import Iterator
from dataclasses import asdict
from typing import Any

from kvproxy.commands.cache_access import Listing, Where
from kvproxy.errors import InvalidRequest, KvproxyError, NotFound
from kvproxy.index.errors import ImportFailed
from kvproxy.index.redaction import RedactionFailed, Redactor
from kvproxy.index.store import EntryFilter, PurgeRequest, Store, UsageKey
from kvproxy.index.store.export import export_lines, import_into, read_lines
from kvproxy.index.store.observations import Observation


class FileCache:
    """A `CacheAccess` by way of the store.

    Args:
        store: the open store.
        redact: takes out of imported texts what must not be stored.
        clear: whether the list of purges may hold words of prompts: it is neither encrypted nor redacted.
    """

    def __init__(self, store: Store, redact: Redactor | None = None, *, clear: bool = True) -> None:
        self._clear = clear
        self._redact = redact
        self._store = store

    def ls(self, where: Where, *, limit: int) -> Listing:
        chosen = EntryFilter(**asdict(where))
        pinned = set(self._store.pinned())
        found = self._store.ls(chosen, limit=limit or None)
        entries = [entry.summary() | {"pinned": entry.id in pinned} for entry in found]
        return Listing(entries, len(entries) if len(entries) < limit or not limit else len(self._store.ids(chosen)))

    def queue(self, limit: int) -> list[dict[str, Any]]:
        return [each.summary() for each in self._store.eviction_order(limit)]

    def usage(self, by: UsageKey) -> list[dict[str, Any]]:
        return [asdict(row) for row in self._store.usage(by)]

    def show(self, id: str) -> dict[str, Any]:
        entry = self._store.get(self._one(id))
        assert entry is not None
        try:
            return entry.document() | {"pinned": entry.id in self._store.pinned()}
        except RecursionError:
            raise KvproxyError(f"{entry.id} is nested too deeply to be shown: cache export writes it out") from None

    def _one(self, prefix: str) -> str:
        ids = self._store.resolve(prefix)
        if not ids:
            raise NotFound(f"no stored response {prefix!r}: cache ls lists them")
        if len(ids) > 1:
            raise InvalidRequest(f"{len(ids)} entries begin with {prefix!r}: give more of the id")
        return ids[0]

    def remove(self, id: str, *, soft: bool = False) -> int:
        entry = self._one(id)
        return self._purged([entry], f"id={entry}", soft)

    def remove_many(self, where: Where, *, soft: bool = False) -> int:
        chosen = EntryFilter(**asdict(where))
        return self._purged(self._store.ids(chosen), chosen.said(texts=self._clear), soft)

    def _purged(self, ids: list[str], what: str, soft: bool) -> int:
        by = PurgeRequest(f"{_user()} on the command line", what)
        return self._store.expire_now(ids, by) if soft else len(self._store.delete(ids, by))

    def purges(self, limit: int) -> list[dict[str, Any]]:
        return [asdict(each) for each in self._store.purges(limit)]

    def feedback(self, id: str, *, right: bool, question: str | None) -> dict[str, Any]:
        if question is not None:
            raise InvalidRequest("a question needs a running proxy, which scores it: leave --question out")
        entry = self._one(id)
        self._store.observations.add([Observation.verdict(entry, right)])
        return {"id": entry, "right": right}

    def pin(self, id: str, *, pinned: bool) -> dict[str, Any]:
        entry = self._one(id)
        self._store.pin(entry, pinned=pinned)
        return {"id": entry, "pinned": pinned}

    def stats(self) -> dict[str, Any]:
        return self._store.stats() | {"semantic": {"learned": self._store.observations.summary()}}

    def export(self) -> Iterator[bytes]:
        return export_lines(self._store)

    def import_(self, lines: bytes) -> dict[str, int]:
        try:
            entries = read_lines(lines)
        except ImportFailed as error:
            raise InvalidRequest(str(error)) from None
        try:
            imported = import_into(self._store, entries, self._redact)
        except RedactionFailed as error:
            raise KvproxyError(str(error)) from None
        return {"imported": imported, "skipped": len(entries) - imported}


def _user() -> str:
    """Who runs the command; a container's user may have no name."""
    try:
        return getpass.getuser()
    except (KeyError, OSError):
        return f"user {os.getuid()}"
