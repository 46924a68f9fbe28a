import asyncio

from starlette.requests import Request
from starlette.responses import Response, StreamingResponse
from starlette.routing import BaseRoute, Route

from kvproxy.apis.api_request import parse_body
from kvproxy.apis.imported_entry import is_servable
from kvproxy.errors import InvalidRequest, NotFound
from kvproxy.http.admin.operation_routes import declared_route
from kvproxy.http.admin.replies import reply
from kvproxy.http.request_bodies import read_body
from kvproxy.http.services import Services, services
from kvproxy.index.entry import Entry
from kvproxy.index.errors import ImportFailed
from kvproxy.index.store import ALL_ENTRIES, EntryFilter
from kvproxy.index.store.export import IMPORT_BATCH, export_parts, new_entries, read_lines
from kvproxy.operations.cache_parameters import (
    EntryName,
    EntryPage,
    EntryQuery,
    EntryRemoval,
    NamedRemoval,
    QueuePage,
    UsageQuery,
)
from kvproxy.parameters import declared_parameters


async def list_entries(request: Request, page: EntryPage) -> Response:
    """List the responses that match the filters, newest first; a `limit` of 0 lists all.

    The header `x-total-count` has the number of matches.
    """
    store, limit, offset = services(request).cache.store, page.limit, page.offset
    where = EntryFilter(**page.filters)
    entries = await asyncio.to_thread(store.list_entries, where, limit=limit or None, offset=offset)
    total = len(entries)
    if offset or (limit and total == limit):
        total = await asyncio.to_thread(store.count if where == ALL_ENTRIES else lambda: len(store.ids(where)))
    pinned = set(await asyncio.to_thread(store.pinned_ids))
    rows = [entry.summary() | {"pinned": entry.id in pinned} for entry in entries]
    return reply(rows, {"x-total-count": str(total)})


async def stats(request: Request) -> Response:
    """Return statistics of the stored responses."""
    app = services(request)
    figures = await asyncio.to_thread(app.cache.store.stats)
    return reply({**figures, "semantic": await asyncio.to_thread(_semantic_stats, app)})


def _semantic_stats(app: Services) -> dict[str, object]:
    cache = app.cache
    if cache.semantic is None:
        return {"policy": None}
    return {
        "policy": cache.semantic.policy.name,
        "shadow": app.settings.cache.shadow,
        "lookups": dict(app.path.counts("lookups")),
        "compared": {} if app.comparer is None else dict(app.comparer.counts),
        "learned": cache.store.observations.summary(),
        "learning": None if cache.semantic.learning is None else cache.semantic.learning.summary(),
    }


async def queue(request: Request, page: QueuePage) -> Response:
    """List the responses in eviction order. The header `x-total-count` has the number of all responses."""
    store = services(request).cache.store
    queued = await asyncio.to_thread(store.eviction_order, page.limit, offset=page.offset)
    total = await asyncio.to_thread(store.count)
    return reply([each.summary() for each in queued], {"x-total-count": str(total)})


async def usage(request: Request, query: UsageQuery) -> Response:
    """Sum the stored bytes by tenant, model, endpoint, or tag."""
    return reply(await asyncio.to_thread(services(request).cache.store.usage, query.by))


async def show(request: Request, name: EntryName) -> Response:
    """Show a response, given its id or the beginning of its id."""
    app = services(request)
    entry = await find_entry(app, name.id)
    pinned = await asyncio.to_thread(app.cache.store.pinned_ids)
    return reply(entry.document() | {"pinned": entry.id in pinned})


async def find_entry(app: Services, prefix: str) -> Entry:
    """Return the stored response whose id begins with `prefix`. Raises NotFound, or InvalidRequest if several match."""
    store = app.cache.store
    await asyncio.to_thread(store.flush)
    ids = await asyncio.to_thread(store.ids_with_prefix, prefix)
    if len(ids) > 1:
        raise InvalidRequest(f"{len(ids)} entries begin with {prefix!r}: give more of the id", param="id")
    entry = await asyncio.to_thread(store.get, ids[0]) if ids else None
    if entry is None:
        raise NotFound(f"no stored response {prefix[:80]!r}: cache ls lists them")
    return entry


async def delete(request: Request, removal: NamedRemoval) -> Response:
    """Remove a response, given its id or the beginning of its id; `soft=true` expires it instead."""
    entry = await find_entry(services(request), removal.id)
    return await _remove_entries(request, [entry.id], f"id={entry.id}", soft=removal.soft)


async def _remove_entries(request: Request, ids: list[str], selection: str, *, soft: bool) -> Response:
    app = services(request)
    cache = app.cache
    action, count = ("expired", await cache.expire_now(ids)) if soft else ("removed", await cache.remove(ids))
    await app.record_change(request, f"{action} {count} stored responses: {selection}")
    return reply({action: count})


async def delete_many(request: Request, removal: EntryRemoval) -> Response:
    """Remove all responses that match the filters; `soft=true` expires them instead."""
    app, where = services(request), EntryFilter(**removal.filters)
    if where == ALL_ENTRIES and not removal.all:
        names = ", ".join(each.name for each in declared_parameters(EntryQuery))
        raise InvalidRequest(f"say what to remove: all=true, or one of {names}")
    # A purged response must not appear afterwards.
    await app.cache.pending_writes.wait_for_all()
    ids = await asyncio.to_thread(app.cache.store.ids, where)
    return await _remove_entries(request, ids, str(where), soft=removal.soft)


async def export(request: Request) -> Response:
    """Export all responses, one line each."""
    return StreamingResponse(export_parts(services(request).cache.store), media_type="application/jsonl")


async def import_(request: Request) -> Response:
    """Import the lines of an export, except those whose keys are already stored."""
    app = services(request)
    data = await read_body(request, app.settings.limits.import_bytes)
    try:
        entries = await asyncio.to_thread(read_lines, data)
    except ImportFailed as error:
        raise InvalidRequest(str(error)) from None
    store, imported = app.cache.store, 0
    for start in range(0, len(entries), IMPORT_BATCH):
        fresh = await asyncio.to_thread(new_entries, store, entries[start : start + IMPORT_BATCH], is_servable)
        imported += await app.cache.insert_many(fresh)
    return reply({"imported": imported, "skipped": len(entries) - imported})


async def feedback(request: Request) -> Response:
    """Report whether a response was right, so that semantic matching learns. A wrong response is used for exact hits only.

    If the body has the `question` of a semantic hit, the policy `learned` also learns from this hit.
    """
    app = services(request)
    body = await asyncio.to_thread(parse_body, await read_body(request, app.settings.limits.body_bytes))
    right, question = body.get("right"), body.get("question")
    if not isinstance(right, bool) or not isinstance(question, str | None):
        raise InvalidRequest('the body must be {"right": true} or {"right": false}, with an optional "question"')
    entry = await find_entry(app, request.path_params["id"])
    if app.cache.semantic is None:
        raise InvalidRequest("semantic matching is off: there is nothing to reject or approve")
    await app.cache.semantic.feedback(entry, right, question)
    return reply({"id": entry.id, "right": right})


async def pin(request: Request) -> Response:
    """Pin a response: it is evicted last until it expires."""
    return await _set_pinned(request, True)


async def unpin(request: Request) -> Response:
    """Unpin a response."""
    return await _set_pinned(request, False)


async def _set_pinned(request: Request, pinned: bool) -> Response:
    app = services(request)
    entry = await find_entry(app, request.path_params["id"])
    await asyncio.to_thread(app.cache.store.pin, entry.id, pinned=pinned)
    await app.record_change(request, f"{'pinned' if pinned else 'unpinned'} {entry.id}")
    return reply({"id": entry.id, "pinned": pinned})


ROUTES: list[BaseRoute] = [
    Route("/cache/{id}/feedback", feedback, methods=["POST"]),
    Route("/cache/{id}/pin", pin, methods=["POST"]),
    Route("/cache/{id}/pin", unpin, methods=["DELETE"]),
    declared_route("GET", "/cache", EntryPage, list_entries),
    declared_route("DELETE", "/cache", EntryRemoval, delete_many),
    Route("/cache/stats", stats, methods=["GET"]),
    declared_route("GET", "/cache/queue", QueuePage, queue),
    declared_route("GET", "/cache/usage", UsageQuery, usage),
    Route("/cache/export", export, methods=["GET"]),
    Route("/cache/import", import_, methods=["POST"]),
    declared_route("GET", "/cache/{id}", EntryName, show),
    declared_route("DELETE", "/cache/{id}", NamedRemoval, delete),
]
