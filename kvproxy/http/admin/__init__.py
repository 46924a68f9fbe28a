"""Routes of the operator, one file each thing; all of them lie behind the guard in `http/access/guard.py`."""

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from kvproxy.errors import NotFound
from kvproxy.http.admin import blocks, cache, explain, feedback, log, pins, reload, tiers, upstreams

_EVERY_METHOD = ["GET", "POST", "PUT", "PATCH", "DELETE", "HEAD", "OPTIONS"]


async def _nothing(request: Request) -> Response:
    raise NotFound(f"no route {request.method} {request.url.path}: see docs/http.md for those that there are")


ROUTES = [
    *pins.ROUTES,
    *tiers.ROUTES,
    *blocks.ROUTES,
    *explain.ROUTES,
    *upstreams.ROUTES,
    *feedback.ROUTES,
    *cache.ROUTES,
    *reload.ROUTES,
    *log.ROUTES,
    Route("/{path:path}", _nothing, methods=_EVERY_METHOD),
]
