from collections.abc import Iterator
from dataclasses import asdict
from typing import Any

from kvproxy.apis.imported_entry import is_servable
from kvproxy.clients.shared_state import SharedState, operator_name
from kvproxy.errors import InvalidRequest, KvproxyError, NotFound
from kvproxy.index.entry_redaction import RedactionFailed, Redactor
from kvproxy.index.errors import ImportFailed
from kvproxy.index.store import EntryFilter, Store, UsageKey
from kvproxy.index.store.export import export_lines, import_into, read_lines
from kvproxy.index.store.observations import Observation
from kvproxy.operations.cache_parameters import EntryQuery
from kvproxy.operations.client import Rows


class DirectCache:
    """The stored responses in an open store, with the methods of `RemoteCache`."""

    def __init__(self, store: Store, redact: Redactor | None = None) -> None:
        self._store = store
        self._redact = redact

    def entries(self, where: EntryQuery, *, limit: int) -> tuple[Rows, int]:
        chosen = _filter(where)
        pinned = set(self._store.pinned_ids())
        rows = [
            entry.summary() | {"pinned": entry.id in pinned}
            for entry in self._store.list_entries(chosen, limit=limit or None)
        ]
        is_complete = not limit or len(rows) < limit
        return rows, len(rows) if is_complete else len(self._store.ids(chosen))

    def eviction_queue(self, limit: int) -> list[dict[str, Any]]:
        return [entry.summary() for entry in self._store.eviction_order(limit)]

    def usage(self, by: UsageKey) -> list[dict[str, Any]]:
        return [asdict(row) for row in self._store.usage(by)]

    def entry(self, id: str) -> dict[str, Any]:
        entry = self._store.get(self._full_id(id))
        assert entry is not None
        try:
            return entry.document() | {"pinned": entry.id in self._store.pinned_ids()}
        except RecursionError:
            raise KvproxyError(f"{entry.id} is nested too deeply to be shown: use kvproxy cache export") from None

    def _full_id(self, prefix: str) -> str:
        ids = self._store.ids_with_prefix(prefix)
        if not ids:
            raise NotFound(f"no stored response {prefix!r}: list them with kvproxy cache ls")
        if len(ids) > 1:
            raise InvalidRequest(f"{len(ids)} ids begin with {prefix!r}: give more digits")
        return ids[0]

    def remove(self, id: str, *, soft: bool = False) -> int:
        full = self._full_id(id)
        return self._remove([full], soft, full)

    def remove_many(self, where: EntryQuery, *, soft: bool = False) -> int:
        chosen = _filter(where)
        return self._remove(self._store.ids(chosen), soft, str(chosen))

    def _remove(self, ids: list[str], soft: bool, selection: str) -> int:
        removed = self._store.expire_now(ids) if soft else len(self._store.delete(ids))
        self._record_change(f"{'expired' if soft else 'removed'} {removed} stored responses: {selection}")
        return removed

    def _record_change(self, change: str) -> None:
        if self._store.remote:
            SharedState(self._store.database).record_change(operator_name(), change)

    def feedback(self, id: str, *, right: bool, question: str | None) -> dict[str, Any]:
        if question is not None:
            raise InvalidRequest("--question needs a running proxy: start one, or leave out --question")
        full = self._full_id(id)
        self._store.observations.add([Observation.from_verdict(full, right)])
        return {"id": full, "right": right}

    def set_pinned(self, id: str, *, pinned: bool) -> dict[str, Any]:
        full = self._full_id(id)
        self._store.pin(full, pinned=pinned)
        self._record_change(f"{'pinned' if pinned else 'unpinned'} {full}")
        return {"id": full, "pinned": pinned}

    def stats(self) -> dict[str, Any]:
        return self._store.stats() | {"semantic": {"learned": self._store.observations.summary()}}

    def export(self) -> Iterator[bytes]:
        return export_lines(self._store)

    def import_(self, lines: bytes) -> dict[str, int]:
        try:
            entries = read_lines(lines)
            imported = import_into(self._store, entries, self._redact, is_servable)
        except ImportFailed as error:
            raise InvalidRequest(str(error)) from None
        except RedactionFailed as error:
            raise KvproxyError(str(error)) from None
        return {"imported": imported, "skipped": len(entries) - imported}


def _filter(where: EntryQuery) -> EntryFilter:
    return EntryFilter(**where.filters)
