"""Admin routes of the response cache: list, show, remove, export, import."""

import asyncio
import math
from collections.abc import Callable, Iterator
from typing import Any, TypeVar

import orjson
from starlette.datastructures import QueryParams
from starlette.requests import Request
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.routing import Route

from kvproxy.errors import InvalidRequest, NotFound
from kvproxy.index.entry import Entry
from kvproxy.index.errors import ImportFailed
from kvproxy.index.store import EVERYTHING, Filter
from kvproxy.index.transfer import IMPORT_BATCH, read_lines
from kvproxy.proxy.admin import guard
from kvproxy.proxy.decisions import semantic_stats
from kvproxy.proxy.services import Services, services

T = TypeVar("T")
_FILTERS = ("namespace", "key", "model", "tag", "prompt", "search", "older_than")


async def _ask(work: Callable[..., T], *values: Any, **named: Any) -> T:
    """Work on the store, off the event loop."""
    return await asyncio.to_thread(work, *values, **named)


def _filter(query: QueryParams) -> Filter:
    values: dict[str, Any] = {name: query[name] for name in _FILTERS if query.get(name)}
    if "older_than" in values:
        values["older_than"] = _number(values["older_than"], "older_than")
    return Filter(**values)


def _number(text: str, name: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not 0 <= value < math.inf:
        raise InvalidRequest(f"{name} must be a number of at least 0, not {text!r}", param=name)
    return value


async def list_entries(request: Request) -> Response:
    query = request.query_params
    limit = int(_number(query.get("limit", "100"), "limit"))
    entries = await _ask(services(request).answerer.store.ls, _filter(query), limit=limit or None)
    return JSONResponse([entry.summary() for entry in entries])


async def stats(request: Request) -> Response:
    app = services(request)
    return JSONResponse(await _ask(app.answerer.store.stats) | {"semantic": await _ask(semantic_stats, app)})


async def show(request: Request) -> Response:
    return JSONResponse((await find_entry(services(request), request.path_params["id"])).document())


async def find_entry(app: Services, prefix: str) -> Entry:
    """The one entry whose id begins with a text."""
    store = app.answerer.store
    await _ask(store.flush)
    ids = await _ask(store.resolve, prefix)
    if len(ids) > 1:
        raise InvalidRequest(f"{len(ids)} entries begin with {prefix!r}: give more of the id", param="id")
    entry = await _ask(store.get, ids[0]) if ids else None
    if entry is None:
        raise NotFound(f"no stored response {prefix!r}: cache ls lists them")
    return entry


async def delete(request: Request) -> Response:
    app = services(request)
    entry = await find_entry(app, request.path_params["id"])
    return JSONResponse({"removed": await app.answerer.cache.remove([entry.id])})


async def delete_many(request: Request) -> Response:
    app, query = services(request), request.query_params
    where = _filter(query)
    if where == EVERYTHING and query.get("all") != "true":
        raise InvalidRequest(f"say what to remove: all=true, or one of {', '.join(_FILTERS)}")
    ids = await _ask(app.answerer.store.ids, where)
    return JSONResponse({"removed": await app.answerer.cache.remove(ids)})


async def export(request: Request) -> Response:
    def lines() -> Iterator[bytes]:
        yield from (orjson.dumps(document) + b"\n" for document in services(request).answerer.store.export())

    return StreamingResponse(lines(), media_type="application/jsonl")


async def import_(request: Request) -> Response:
    """Each line of an export; entries whose key is there already are skipped."""
    app = services(request)
    try:
        entries = read_lines(await request.body())
    except ImportFailed as error:
        raise InvalidRequest(str(error)) from None
    imported = 0
    for start in range(0, len(entries), IMPORT_BATCH):
        batch = entries[start : start + IMPORT_BATCH]
        fresh = [entry for entry in batch if not await _ask(app.answerer.store.has_key, entry.key)]
        await app.answerer.cache.insert_many(fresh)
        imported += len(fresh)
    return JSONResponse({"imported": imported, "skipped": len(entries) - imported})


ROUTES = [
    Route("/admin/cache", guard(list_entries), methods=["GET"]),
    Route("/admin/cache", guard(delete_many), methods=["DELETE"]),
    Route("/admin/cache/stats", guard(stats), methods=["GET"]),
    Route("/admin/cache/export", guard(export), methods=["GET"]),
    Route("/admin/cache/import", guard(import_), methods=["POST"]),
    Route("/admin/cache/{id}", guard(show), methods=["GET"]),
    Route("/admin/cache/{id}", guard(delete), methods=["DELETE"]),
]
