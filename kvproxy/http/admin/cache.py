"""Routes of the stored responses: the declared operations, and the export."""

import asyncio
from collections.abc import Sequence

from starlette.requests import Request
from starlette.responses import Response, StreamingResponse
from starlette.routing import BaseRoute

from kvproxy.errors import InvalidRequest
from kvproxy.flow.imported_entry import is_servable
from kvproxy.http.admin.operation_routes import async_operation_route, declared_route
from kvproxy.http.services import services
from kvproxy.index.entry import Entry
from kvproxy.index.store.export import IMPORT_BATCH, ExportedEntry, export_parts, new_entries, rejection
from kvproxy.operations.cache import CACHE_OPERATIONS
from kvproxy.operations.cache_results import SemanticStatistics, Verdict
from kvproxy.operations.operation import NoParameters


class RunningCache:
    """The stored responses of this proxy, for one request of an operator."""

    def __init__(self, request: Request) -> None:
        self._request = request
        self._services = services(request)
        self._cache = self._services.cache
        self.store = self._cache.store

    async def wait_for_writes(self) -> None:
        await self._cache.pending_writes.wait_for_all()

    async def remove(self, ids: Sequence[str]) -> int:
        return await self._cache.remove(ids)

    async def expire_now(self, ids: Sequence[str]) -> int:
        return await self._cache.expire_now(ids)

    async def judge(self, entry: Entry, verdict: Verdict) -> None:
        if self._cache.semantic is None:
            raise InvalidRequest("semantic matching is off: there is nothing to reject or approve")
        await self._cache.semantic.feedback(entry, verdict.right, verdict.question)

    async def import_entries(self, entries: Sequence[ExportedEntry]) -> int:
        imported = 0
        for start in range(0, len(entries), IMPORT_BATCH):
            batch = entries[start : start + IMPORT_BATCH]
            new = await asyncio.to_thread(new_entries, self.store, batch, is_servable)
            imported += await self._cache.insert_many([each.entry for each in new])
            for each in new:
                await self._restore_marks(each)
        return imported

    async def _restore_marks(self, imported: ExportedEntry) -> None:
        entry, semantic = imported.entry, self._cache.semantic
        if imported.pinned:
            await asyncio.to_thread(self.store.pin, entry.id, pinned=True)
        if imported.rejected and semantic is not None:
            await semantic.feedback(entry, right=False)
        elif imported.rejected:
            await asyncio.to_thread(self.store.observations.add, [rejection(entry)])

    def semantic_statistics(self) -> SemanticStatistics:
        app, semantic = self._services, self._cache.semantic
        if semantic is None:
            return SemanticStatistics()
        return SemanticStatistics(
            policy=semantic.policy.name,
            shadow=app.settings.cache.shadow,
            lookups=dict(app.path.counts("lookups")),
            compared={} if app.comparer is None else dict(app.comparer.counts),
            learned=self.store.observations.summary(),
            learning=None if semantic.learning is None else semantic.learning.summary(),
        )

    async def record_change(self, change: str) -> None:
        await self._services.record_change(self._request, change)


async def export(request: Request, parameters: NoParameters) -> Response:
    """Export all responses, one line each."""
    return StreamingResponse(export_parts(services(request).cache.store), media_type="application/jsonl")


ROUTES: list[BaseRoute] = [
    # Before the route of a response's id.
    declared_route("GET", "/cache/export", NoParameters, export),
    *(async_operation_route(operation, RunningCache) for operation in CACHE_OPERATIONS),
]
