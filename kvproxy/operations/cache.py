"""The operations on stored responses (entries); the proxy performs them for its routes, and commands on the store's files.

An id may be abbreviated to a unique prefix.
"""

import asyncio
from collections.abc import Sequence
from dataclasses import asdict, replace
from typing import TYPE_CHECKING, Protocol

from kvproxy.errors import InvalidRequest, KvproxyError, NotFound
from kvproxy.operations.cache_parameters import (
    EntryName,
    EntryPage,
    EntryQuery,
    EntryRemoval,
    NamedRemoval,
    QueuePage,
    UsageQuery,
)
from kvproxy.operations.cache_results import (
    CacheStatistics,
    ChangedResponses,
    ImportedResponses,
    JudgedResponse,
    ListedResponse,
    PinnedResponse,
    QueuedResponse,
    ResponseUsage,
    SemanticStatistics,
    ShownResponse,
    Verdict,
)
from kvproxy.operations.operation import CountedRows, NoParameters, async_operation, fields_of
from kvproxy.operations.parameters import declared_parameters
from kvproxy.units import plural

if TYPE_CHECKING:
    from kvproxy.index.entry import Entry
    from kvproxy.index.store import EntryFilter, Store
    from kvproxy.index.store.export import ExportedEntry


class CacheAccess(Protocol):
    """The stored responses of a proxy, or those in a store that a command opened."""

    @property
    def store(self) -> "Store": ...
    async def wait_for_writes(self) -> None: ...
    async def remove(self, ids: Sequence[str]) -> int: ...
    async def expire_now(self, ids: Sequence[str]) -> int: ...
    async def judge(self, entry: "Entry", verdict: Verdict) -> None: ...
    async def import_entries(self, entries: "Sequence[ExportedEntry]") -> int:
        """Store the entries whose keys are not stored yet, with their pins and rejections, and return their number."""

    def semantic_statistics(self) -> SemanticStatistics: ...
    async def record_change(self, change: str) -> None:
        """Record an operator's change of the responses."""


@async_operation("GET", "/cache")
async def list_responses(cache: CacheAccess, page: EntryPage) -> CountedRows[ListedResponse]:
    """List the responses that match the filters, newest first; a `limit` of 0 lists all.

    The header `x-total-count` has the number of matches.
    """
    store, where = cache.store, await _filter(cache, page)
    entries = await asyncio.to_thread(store.list_entries, where, limit=page.limit or None, offset=page.offset)
    total = len(entries)
    if page.offset or (page.limit and total == page.limit):
        total = await asyncio.to_thread(lambda: len(store.ids(where)) if page.filters else store.count())
    pinned = set(await asyncio.to_thread(store.pinned_ids))
    return CountedRows(
        [
            ListedResponse(**entry.summary(), pinned=entry.id in pinned, namespace_name=entry.namespace_name)
            for entry in entries
        ],
        total,
    )


@async_operation("GET", "/cache/queue")
async def list_eviction_queue(cache: CacheAccess, page: QueuePage) -> CountedRows[QueuedResponse]:
    """List the responses in eviction order. The header `x-total-count` has the number of all responses."""
    queued = await asyncio.to_thread(cache.store.eviction_order, page.limit, offset=page.offset)
    rows = [
        QueuedResponse(**candidate.summary(), namespace_name=candidate.entry.namespace_name) for candidate in queued
    ]
    return CountedRows(rows, await asyncio.to_thread(cache.store.count))


@async_operation("GET", "/cache/usage")
async def sum_usage(cache: CacheAccess, query: UsageQuery) -> list[ResponseUsage]:
    """Sum the stored bytes by tenant, model, endpoint, or tag, the largest group first."""
    return [ResponseUsage(**asdict(row)) for row in await asyncio.to_thread(cache.store.usage, query.by)]


@async_operation("GET", "/cache/stats")
async def cache_statistics(cache: CacheAccess, nothing: NoParameters) -> CacheStatistics:
    """Return statistics of the stored responses."""
    statistics = await asyncio.to_thread(cache.store.stats)
    return CacheStatistics(**fields_of(statistics), semantic=await asyncio.to_thread(cache.semantic_statistics))


@async_operation("GET", "/cache/{id}")
async def show_response(cache: CacheAccess, name: EntryName) -> ShownResponse:
    """Show a response, given its id or the beginning of its id."""
    entry = await _find_entry(cache, name.id)
    pinned = await asyncio.to_thread(cache.store.pinned_ids)
    try:
        return ShownResponse(**entry.document(), pinned=entry.id in pinned, namespace_name=entry.namespace_name)
    except RecursionError:
        raise KvproxyError(f"{entry.id} is nested too deeply to be shown: use kvproxy cache export") from None


@async_operation("DELETE", "/cache/{id}")
async def remove_response(cache: CacheAccess, removal: NamedRemoval) -> ChangedResponses:
    """Remove a response, given its id or the beginning of its id; `soft=true` expires it instead."""
    from kvproxy.index.store import EntryFilter

    entry = await _find_entry(cache, removal.id)
    await asyncio.to_thread(cache.store.invalidate, EntryFilter(key=entry.key))
    return await _remove(cache, [entry.id], f"id={entry.id}", soft=removal.soft)


@async_operation("DELETE", "/cache")
async def remove_responses(cache: CacheAccess, removal: EntryRemoval) -> ChangedResponses:
    """Remove all responses that match the filters; `soft=true` expires them instead."""
    if not removal.filters and not removal.all:
        names = ", ".join(parameter.name for parameter in declared_parameters(EntryQuery))
        raise InvalidRequest(f"say what to remove: all=true, or one of {names}")
    # A purged response must not appear afterwards.
    await cache.wait_for_writes()
    where = await _filter(cache, removal)
    ids = await asyncio.to_thread(cache.store.invalidate, where)
    return await _remove(cache, ids, str(where), soft=removal.soft)


async def _remove(cache: CacheAccess, ids: list[str], selection: str, *, soft: bool) -> ChangedResponses:
    done: ChangedResponses = {"expired": await cache.expire_now(ids)} if soft else {"removed": await cache.remove(ids)}
    for change, count in done.items():
        if count:
            await cache.record_change(f"{change} {plural(count, 'response')}: {selection}")
    return done


@async_operation("POST", "/cache/{id}/feedback")
async def judge_response(cache: CacheAccess, name: EntryName, verdict: Verdict) -> JudgedResponse:
    """Report whether a response was right, so that semantic matching learns. A wrong response is used for exact hits only.

    The verdict holds for all similar questions. If the body has the `question` of a semantic hit, the policy `learned` also
    learns from this hit.
    """
    entry = await _find_entry(cache, name.id)
    await cache.judge(entry, verdict)
    await cache.record_change(f"{'approved' if verdict.right else 'rejected'} {entry.id}")
    return JudgedResponse(entry.id, verdict.right)


@async_operation("POST", "/cache/{id}/pin")
async def pin_response(cache: CacheAccess, name: EntryName) -> PinnedResponse:
    """Pin a response: it is evicted last until it expires."""
    return await _set_pinned(cache, name.id, pinned=True)


@async_operation("DELETE", "/cache/{id}/pin")
async def unpin_response(cache: CacheAccess, name: EntryName) -> PinnedResponse:
    """Unpin a response."""
    return await _set_pinned(cache, name.id, pinned=False)


async def _set_pinned(cache: CacheAccess, id: str, *, pinned: bool) -> PinnedResponse:
    entry = await _find_entry(cache, id)
    await asyncio.to_thread(cache.store.pin, entry.id, pinned=pinned)
    await cache.record_change(f"{'pinned' if pinned else 'unpinned'} {entry.id}")
    return PinnedResponse(entry.id, pinned)


@async_operation("POST", "/cache/import")
async def import_responses(cache: CacheAccess, nothing: NoParameters, lines: bytes) -> ImportedResponses:
    """Import the lines of an export, except those whose keys are already stored."""
    from kvproxy.index.errors import ImportFailed
    from kvproxy.index.store.export import read_lines

    try:
        entries = await asyncio.to_thread(read_lines, lines)
    except ImportFailed as error:
        raise InvalidRequest(str(error)) from None
    imported = await cache.import_entries(entries)
    if imported:
        await cache.record_change(f"imported {plural(imported, 'response')}")
    return ImportedResponses(imported, len(entries) - imported)


# Routes with names before those with a parameter.
CACHE_OPERATIONS = (
    *(list_responses, remove_responses, list_eviction_queue, sum_usage, cache_statistics, import_responses),
    *(judge_response, pin_response, unpin_response, show_response, remove_response),
)


async def _find_entry(cache: CacheAccess, prefix: str) -> "Entry":
    """Return the response whose id begins with `prefix`. Raises NotFound, or InvalidRequest if several ids do."""
    store = cache.store
    await asyncio.to_thread(store.flush)
    ids = await asyncio.to_thread(store.ids_with_prefix, prefix)
    if len(ids) > 1:
        raise InvalidRequest(f"{len(ids)} ids begin with {prefix!r}: give more digits", param="id")
    entry = await asyncio.to_thread(store.get, ids[0]) if ids else None
    if entry is None:
        raise NotFound(f"no stored response {prefix[:80]!r}: list them with kvproxy cache ls")
    return entry


async def _filter(cache: CacheAccess, query: EntryQuery) -> "EntryFilter":
    from kvproxy.index.entry import library_digest
    from kvproxy.index.store import EntryFilter

    where = EntryFilter(**query.filters)
    if where.namespace is None:
        return where
    named = EntryFilter(namespace=library_digest(where.namespace))
    is_name = await asyncio.to_thread(cache.store.list_entries, named, limit=1)
    return replace(where, namespace=named.namespace) if is_name else where
