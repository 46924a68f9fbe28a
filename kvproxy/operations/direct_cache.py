"""Performs operations on stored responses in an open store, without a proxy."""

import asyncio
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from kvproxy.errors import InvalidRequest, KvproxyError
from kvproxy.index.entry import Entry
from kvproxy.index.store import Store
from kvproxy.index.store.observations import Observation
from kvproxy.operations.cache import CacheAccess
from kvproxy.operations.cache_results import SemanticStatistics, Verdict
from kvproxy.operations.operation import AsyncOperation, Parameters, Result

if TYPE_CHECKING:
    from kvproxy.index.entry_redaction import Redactor
    from kvproxy.index.store.export import ExportedEntry


class DirectCache:
    """The stored responses in an open store.

    Args:
        folder: data folder that records the changes of a store in a file.
        load_redactor: loads what redacts imported responses.
    """

    def __init__(self, store: Store, folder: Path, load_redactor: "Callable[[], Redactor | None]") -> None:
        self.store = store
        self._folder = folder
        self._load_redactor = load_redactor

    def perform(
        self, operation: AsyncOperation[CacheAccess, Parameters, Result], parameters: Parameters, body: object = None, /
    ) -> Result:
        return asyncio.run(operation(self, parameters, *(() if body is None else (body,))))

    def export_responses(self) -> Iterator[bytes]:
        from kvproxy.index.store.export import export_lines

        return export_lines(self.store)

    async def wait_for_writes(self) -> None:
        """Writes to an open store are not deferred."""

    async def remove(self, ids: Sequence[str]) -> int:
        return len(self.store.delete(ids))

    async def expire_now(self, ids: Sequence[str]) -> int:
        return self.store.expire_now(ids)

    async def judge(self, entry: Entry, verdict: Verdict) -> None:
        if verdict.question is not None:
            raise InvalidRequest("--question needs a running proxy: start one, or leave out --question")
        self.store.observations.add([Observation.from_verdict(entry.id, verdict.right)])

    async def import_entries(self, entries: "Sequence[ExportedEntry]") -> int:
        from kvproxy.flow.imported_entry import is_servable
        from kvproxy.index.entry_redaction import RedactionFailed
        from kvproxy.index.store.export import import_into

        try:
            return import_into(self.store, entries, self._load_redactor(), is_servable)
        except RedactionFailed as error:
            raise KvproxyError(str(error)) from None

    def semantic_statistics(self) -> SemanticStatistics:
        return SemanticStatistics(learned=self.store.observations.summary())

    async def record_change(self, change: str) -> None:
        from kvproxy.clients.change_log import operator_name, record_change

        if self.store.remote:
            from kvproxy.clients.shared_state import SharedState

            SharedState(self.store.database).record_change(operator_name(), change)
        else:
            record_change(self._folder, operator_name(), change)
