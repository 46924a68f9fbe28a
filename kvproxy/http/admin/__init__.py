"""Admin routes, one file per resource. The guard in `http/access/guard.py` protects them all."""

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from kvproxy.errors import NotFound
from kvproxy.http.admin import blocks, cache, explain, log, reload, upstreams

_METHODS = ["GET", "POST", "PUT", "PATCH", "DELETE", "HEAD", "OPTIONS"]


async def _not_found(request: Request) -> Response:
    raise NotFound(f"no route {request.method} {request.url.path}: see docs/http.md")


ROUTES = [
    *blocks.ROUTES,
    *explain.ROUTES,
    *upstreams.ROUTES,
    *cache.ROUTES,
    *reload.ROUTES,
    *log.ROUTES,
    Route("/{path:path}", _not_found, methods=_METHODS, include_in_schema=False),
]
