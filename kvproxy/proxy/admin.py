"""Admin routes: both caches seen and changed from outside. See `guard` for who may use them."""

import hmac
import math
from collections.abc import Awaitable, Callable
from ipaddress import ip_address

import orjson
from starlette.requests import Request
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.routing import Route

from index.entry import Entry
from kvproxy.errors import InvalidRequest, NoPrefixCache, NotFound, Unauthorized
from kvproxy.proxy.decisions import semantic_stats
from kvproxy.proxy.dialects import DIALECTS
from kvproxy.proxy.explain import explain
from kvproxy.proxy.fleet.routes import drain, undrain, upstreams
from kvproxy.proxy.routes import parse_body, read_call
from kvproxy.proxy.services import Services, services

Handler = Callable[[Request], Awaitable[Response]]


def is_loopback(host: str) -> bool:
    """Whether an address can be reached from this machine only."""
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def guard(handler: Handler) -> Handler:
    """Admin routes are open on loopback; beyond it, or where a token is set, they need the token.

    Web pages are turned away on loopback too, also those that reach it under a name of their own.
    """

    async def guarded(request: Request) -> Response:
        settings = services(request).settings
        if settings.admin_token is not None:
            given = request.headers.get("authorization", "").removeprefix("Bearer ")
            if not hmac.compare_digest(given.encode(), settings.admin_token.encode()):
                raise Unauthorized("this route needs the admin token: send Authorization: Bearer TOKEN")
        elif not is_loopback(settings.host):
            raise Unauthorized("admin routes are closed beyond loopback: set admin_token and send it as a bearer token")
        elif "origin" in request.headers or not is_loopback(request.url.hostname or ""):
            raise Unauthorized(
                "admin routes take no requests of web pages or by other names: set admin_token to allow them"
            )
        return await handler(request)

    return guarded


async def blocks(request: Request) -> Response:
    return JSONResponse(await services(request).prefix.blocks())


async def blocks_queue(request: Request) -> Response:
    return JSONResponse(await services(request).prefix.queue())


async def blocks_stats(request: Request) -> Response:
    return JSONResponse(await services(request).prefix.stats())


async def blocks_tiers(request: Request) -> Response:
    worker = services(request).worker
    if worker is None:
        raise NoPrefixCache("the prefix cache belongs to the upstream: this proxy holds no blocks")
    return JSONResponse(worker.tier_stats())


async def blocks_chains(request: Request) -> Response:
    return JSONResponse(await services(request).prefix.chains())


async def blocks_show(request: Request) -> Response:
    name = request.path_params["id"]
    block = await services(request).prefix.show(name)
    if block is None:
        raise NotFound(f"no block {name}: blocks ls lists them")
    return JSONResponse(block)


async def blocks_reset(request: Request) -> Response:
    return JSONResponse({"reset": await services(request).prefix.reset()})


async def cache_list(request: Request) -> Response:
    query = request.query_params
    limit = _number(query.get("limit", "100"), "limit")
    entries = services(request).answerer.store.ls(
        limit=int(limit or 0) or None,
        namespace=query.get("namespace"),
        model=query.get("model"),
        search=query.get("search"),
    )
    return JSONResponse([entry.summary() for entry in entries])


def _number(text: str | None, name: str) -> float | None:
    """A parameter that is a number of at least 0."""
    try:
        value = None if text is None else float(text)
    except ValueError:
        value = math.nan
    if value is not None and not 0 <= value < math.inf:
        raise InvalidRequest(f"{name} must be a number, not {text!r}", param=name)
    return value


async def cache_stats(request: Request) -> Response:
    app = services(request)
    return JSONResponse(app.answerer.store.stats() | {"semantic": semantic_stats(app)})


async def cache_show(request: Request) -> Response:
    entry = find_entry(services(request), request.path_params["id"])
    return JSONResponse(entry.document())


def find_entry(app: Services, prefix: str) -> Entry:
    """The one entry whose id begins with a text."""
    app.answerer.store.flush()
    ids = app.answerer.store.resolve(prefix)
    if len(ids) > 1:
        raise InvalidRequest(f"{len(ids)} entries begin with {prefix!r}: give more of the id", param="id")
    entry = app.answerer.store.get(ids[0]) if ids else None
    if entry is None:
        raise NotFound(f"no stored response {prefix!r}: cache ls lists them")
    return entry


async def cache_delete(request: Request) -> Response:
    app = services(request)
    return JSONResponse({"removed": await app.answerer.remove([find_entry(app, request.path_params["id"]).id])})


async def cache_delete_many(request: Request) -> Response:
    app, query = services(request), request.query_params
    if query.get("all") != "true" and not any(query.get(name) for name in ("namespace", "model", "older_than")):
        raise InvalidRequest("say what to remove: all=true, namespace=, model= or older_than=")
    entries = app.answerer.store.ls(
        namespace=query.get("namespace"),
        model=query.get("model"),
        older_than=_number(query.get("older_than"), "older_than"),
    )
    return JSONResponse({"removed": await app.answerer.remove([entry.id for entry in entries])})


async def cache_export(request: Request) -> Response:
    lines = (orjson.dumps(document) + b"\n" for document in services(request).answerer.store.export())
    return StreamingResponse(lines, media_type="application/jsonl")


async def cache_import(request: Request) -> Response:
    """Each line of an export; entries whose key is there already are skipped."""
    app = services(request)
    entries: list[Entry] = []
    for number, line in enumerate((await request.body()).splitlines(), 1):
        if line.strip():
            try:
                entries.append(Entry.from_document(orjson.loads(line)))
            except (orjson.JSONDecodeError, KeyError, TypeError) as error:
                raise InvalidRequest(
                    f"line {number} is no exported response ({error!r}): nothing was imported"
                ) from None
    fresh = [entry for entry in entries if not app.answerer.store.has_key(entry.key)]
    for entry in fresh:
        await app.answerer.insert(entry)
    return JSONResponse({"imported": len(fresh), "skipped": len(entries) - len(fresh)})


async def explain_request(request: Request) -> Response:
    dialect = DIALECTS["chat"]
    call = await read_call(request, dialect)
    if isinstance(call, bytes):
        parse_body(call)
        raise InvalidRequest("explain takes the body of a chat request")
    dialect.check(call.body)
    return JSONResponse(await explain(services(request), call))


ROUTES = [
    Route("/admin/blocks", guard(blocks), methods=["GET"]),
    Route("/admin/blocks/queue", guard(blocks_queue), methods=["GET"]),
    Route("/admin/blocks/chains", guard(blocks_chains), methods=["GET"]),
    Route("/admin/blocks/stats", guard(blocks_stats), methods=["GET"]),
    Route("/admin/blocks/tiers", guard(blocks_tiers), methods=["GET"]),
    Route("/admin/blocks/reset", guard(blocks_reset), methods=["POST"]),
    Route("/admin/blocks/{id}", guard(blocks_show), methods=["GET"]),
    Route("/admin/cache", guard(cache_list), methods=["GET"]),
    Route("/admin/cache", guard(cache_delete_many), methods=["DELETE"]),
    Route("/admin/cache/stats", guard(cache_stats), methods=["GET"]),
    Route("/admin/cache/export", guard(cache_export), methods=["GET"]),
    Route("/admin/cache/import", guard(cache_import), methods=["POST"]),
    Route("/admin/cache/{id}", guard(cache_show), methods=["GET"]),
    Route("/admin/cache/{id}", guard(cache_delete), methods=["DELETE"]),
    Route("/admin/explain", guard(explain_request), methods=["POST"]),
    Route("/admin/upstreams", guard(upstreams), methods=["GET"]),
    Route("/admin/upstreams/drain", guard(drain), methods=["POST"]),
    Route("/admin/upstreams/undrain", guard(undrain), methods=["POST"]),
]
