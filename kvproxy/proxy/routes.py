"""The public HTTP routes."""

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any, cast

from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from kvproxy import __version__
from kvproxy.errors import InvalidRequest, KvproxyError, NotFound, Unkeyable
from kvproxy.index.errors import CacheStoreError
from kvproxy.proxy.backend import Call, Endpoint, forwards
from kvproxy.proxy.cache_headers import forward_status
from kvproxy.proxy.dialects import DIALECTS
from kvproxy.proxy.dialects.dialect import Dialect
from kvproxy.proxy.documents import loads
from kvproxy.proxy.keys import tenant_of
from kvproxy.proxy.relay import RelayResponse, unless_gone, whole_response
from kvproxy.proxy.services import Services, services
from kvproxy.proxy.sse import event

BYPASS = ("cache-status", forward_status("bypass"))
_OURS = ("/health", "/metrics")


def cached(dialect: Dialect) -> Callable[[Request], Awaitable[Response]]:
    """The handler of an API whose answers are cached."""

    async def answer(request: Request) -> Response:
        app = services(request)
        began = time.perf_counter()
        layer, status = "error", 500
        try:
            call = await read_call(request, dialect)
            if isinstance(call, bytes):
                return await _forward(request, call)
            given = await unless_gone(request, app.answerer.answer(call))
            layer, status = given.layer, given.status
        except Unkeyable:
            if forwards(app.answerer.backend):
                return await _forward(request, await request.body())
            raise
        except KvproxyError as error:
            status = error.status
            return JSONResponse(dialect.error(error), status)
        finally:
            app.metrics.answered(dialect.name, layer, status, time.perf_counter() - began)
        if isinstance(given.body, bytes):
            return whole_response(given.body, status, given.headers)
        return RelayResponse(
            given.body, status, given.headers, given.close, lambda error: event(dialect.error(error), "error")
        )

    return answer


async def read_call(request: Request, dialect: Dialect) -> Call | bytes:
    """The request. With an upstream, one that cannot be read is the upstream's to judge: then its bytes.

    Raises:
        InvalidRequest: without an upstream, the message names the field and what it takes.
    """
    raw = await request.body()
    passes_on = forwards(services(request).answerer.backend)
    try:
        body = parse_body(raw)
        if not passes_on:
            dialect.check(body)
    except InvalidRequest:
        if passes_on:
            return raw
        raise
    headers: dict[str, str] = {}
    for name, value in request.headers.items():
        headers[name] = f"{headers[name]}, {value}" if name in headers else value
    request_id = request.scope["state"]["request_id"]
    endpoint = cast("Endpoint", dialect.name)
    return Call(endpoint, body, raw, headers, tenant_of(headers), request_id, _query(request))


def parse_body(raw: bytes) -> dict[str, Any]:
    """A body as an object.

    Raises:
        InvalidRequest: it is no JSON object.
    """
    try:
        body = loads(raw)
    except ValueError as error:
        raise InvalidRequest(f"the body is not valid JSON: {error}") from None
    if not isinstance(body, dict):
        raise InvalidRequest("the body must be a JSON object")
    return body


async def models(request: Request) -> Response:
    """GET /v1/models: the upstream's own answer where there is one."""
    backend = services(request).answerer.backend
    if forwards(backend):
        return await other(request)
    return JSONResponse(await backend.models())


async def health(request: Request) -> Response:
    """GET /health: the process answers."""
    app = services(request)
    backend = app.answerer.backend.name
    return JSONResponse({"status": "ok", "version": __version__, "backend": backend, "data": str(app.settings.data)})


async def metrics(request: Request) -> Response:
    """GET /metrics: Prometheus' text format."""
    app = services(request)
    pool = await app.worker.inspect(lambda manager: manager.stats()) if app.worker else None
    for engine in getattr(app.answerer.backend, "engines", {}).values():
        app.metrics.upstream(engine.status())
    observer = app.answerer.observer
    app.metrics.semantic(app.answerer.outcomes, observer.counts if observer is not None else {})
    text = app.metrics.render(pool, await _entries(app), app.worker.tier_stats() if app.worker else ())
    return Response(text, media_type="text/plain; version=0.0.4; charset=utf-8")


async def _entries(app: Services) -> int:
    try:
        return await asyncio.to_thread(app.answerer.store.count)
    except CacheStoreError:
        return 0


async def other(request: Request) -> Response:
    """Anything else under the upstream passes through untouched; without one it does not exist."""
    has_body = "content-length" in request.headers or "transfer-encoding" in request.headers
    return await _forward(request, None if has_body else b"")


async def _forward(request: Request, body: bytes | None) -> Response:
    """Pass a request on; one whose body has not been read yet is passed on as it comes."""
    backend = services(request).answerer.backend
    # What looks like ours and is not must not carry the admin token elsewhere.
    ours = request.url.path.startswith("/admin") or request.url.path in _OURS
    if ours or not forwards(backend):
        raise NotFound(f"no route {request.method} {request.url.path}: see docs/http.md for those that there are")
    query = _query(request)
    path = request.scope["raw_path"].decode("latin-1") + (f"?{query}" if query else "")
    uploaded = asyncio.Event()
    if body is not None:
        uploaded.set()
    # Only the upload reads from the client until it is done; it notices by itself when the client goes.
    sent = _upload(request, uploaded) if body is None else body
    reply = await unless_gone(request, backend.forward(request.method, path, request.headers, sent), uploaded)
    return RelayResponse(reply.chunks, reply.status, [*reply.headers, BYPASS], reply.close, uploaded=uploaded)


def _query(request: Request) -> str:
    query: bytes = request.scope["query_string"]
    return query.decode("latin-1")


async def _upload(request: Request, uploaded: asyncio.Event) -> AsyncIterator[bytes]:
    try:
        async for chunk in request.stream():
            if chunk:
                yield chunk
    finally:
        uploaded.set()


ROUTES = [
    *(Route(dialect.path, cached(dialect), methods=["POST"]) for dialect in DIALECTS.values()),
    Route("/v1/models", models, methods=["GET"]),
    Route("/health", health, methods=["GET"]),
    Route("/metrics", metrics, methods=["GET"]),
]
EVERY_METHOD = ["GET", "POST", "PUT", "PATCH", "DELETE", "HEAD", "OPTIONS"]
OTHER = Route("/{path:path}", other, methods=EVERY_METHOD)
