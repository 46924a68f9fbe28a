"""The public HTTP routes."""

import time
from typing import Any

from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from kvproxy import __version__
from kvproxy.errors import KvproxyError, NotFound
from kvproxy.proxy.backend import Call, Endpoint
from kvproxy.proxy.keys import tenant_of
from kvproxy.proxy.responses import RelayResponse, unless_gone
from kvproxy.proxy.services import services
from kvproxy.proxy.upstream import UpstreamBackend
from kvproxy.proxy.validate import check_body, parse_body


async def chat_completions(request: Request) -> Response:
    """POST /v1/chat/completions."""
    return await _answer(request, "chat")


async def completions(request: Request) -> Response:
    """POST /v1/completions."""
    return await _answer(request, "completions")


async def _answer(request: Request, endpoint: Endpoint) -> Response:
    app = services(request)
    began = time.perf_counter()
    layer, status = "error", 500
    try:
        call = await read_call(request, endpoint)
        answer = await unless_gone(request, app.answerer.answer(call))
        layer, status = answer.layer, answer.status
    except KvproxyError as error:
        status = error.status
        raise
    finally:
        app.metrics.answered(endpoint, layer, status, time.perf_counter() - began)
    headers = answer.headers
    if isinstance(answer.body, bytes):
        response = Response(answer.body, status)
        kept = [(name.encode("latin-1"), value.encode("latin-1")) for name, value in headers]
        response.raw_headers = [*kept, (b"content-length", str(len(answer.body)).encode())]
        return response
    return RelayResponse(answer.body, status, headers)


async def read_call(request: Request, endpoint: Endpoint) -> Call:
    """The request, validated."""
    raw = await request.body()
    body = parse_body(raw)
    check_body(endpoint, body)
    headers = dict(request.headers)
    request_id = request.scope["state"]["request_id"]
    return Call(endpoint, body, raw, headers, tenant_of(headers), request_id, request.url.query)


async def models(request: Request) -> Response:
    """GET /v1/models."""
    return JSONResponse(await services(request).answerer.backend.models())


async def health(request: Request) -> Response:
    """GET /health: the process answers."""
    app = services(request)
    backend = app.answerer.backend.name
    return JSONResponse({"status": "ok", "version": __version__, "backend": backend, "data": str(app.settings.data)})


async def metrics(request: Request) -> Response:
    """GET /metrics: Prometheus' text format."""
    app = services(request)
    pool = await app.worker.inspect(lambda manager: manager.stats()) if app.worker else None
    text = app.metrics.render(pool, app.answerer.store.stats()["entries"])
    return Response(text, media_type="text/plain; version=0.0.4; charset=utf-8")


async def other(request: Request) -> Response:
    """Anything else under the upstream passes through untouched; without one it does not exist."""
    backend = services(request).answerer.backend
    # What looks like ours and is not must not carry the admin token elsewhere.
    ours = request.url.path.startswith("/admin") or request.url.path in ("/health", "/metrics")
    if ours or not isinstance(backend, UpstreamBackend):
        raise NotFound(f"no route {request.method} {request.url.path}: see docs/http.md for those that there are")
    query = f"?{request.url.query}" if request.url.query else ""
    has_body = "content-length" in request.headers or "transfer-encoding" in request.headers
    body: Any = request.stream() if has_body else b""
    reply = await backend.forward(
        request.method, request.scope["raw_path"].decode("latin-1") + query, request.headers, body
    )
    return RelayResponse(reply.chunks, reply.status, [*reply.headers, ("cache-status", "kvproxy; fwd=bypass")])


ROUTES = [
    Route("/v1/chat/completions", chat_completions, methods=["POST"]),
    Route("/v1/completions", completions, methods=["POST"]),
    Route("/v1/models", models, methods=["GET"]),
    Route("/health", health, methods=["GET"]),
    Route("/metrics", metrics, methods=["GET"]),
]
EVERY_METHOD = ["GET", "POST", "PUT", "PATCH", "DELETE", "HEAD", "OPTIONS"]
OTHER = Route("/{path:path}", other, methods=EVERY_METHOD)
