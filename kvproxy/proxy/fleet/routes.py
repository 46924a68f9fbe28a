"""Handlers of the admin routes about upstreams; `admin` guards them."""

from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from kvproxy.errors import NotFound
from kvproxy.proxy.fleet.backend import FleetBackend
from kvproxy.proxy.services import services


async def upstreams(request: Request) -> Response:
    """GET /admin/upstreams."""
    return JSONResponse([engine.status() for engine in _fleet(request).engines.values()])


async def drain(request: Request) -> Response:
    """POST /admin/upstreams/drain?name=: it finishes what it has and gets nothing new."""
    return _set_draining(request, True)


async def undrain(request: Request) -> Response:
    """POST /admin/upstreams/undrain?name=."""
    return _set_draining(request, False)


def _set_draining(request: Request, draining: bool) -> Response:
    engine = _fleet(request).engine(request.query_params.get("name", ""))
    engine.health.draining = draining
    return JSONResponse(engine.status())


def _fleet(request: Request) -> FleetBackend:
    backend = services(request).answerer.backend
    if not isinstance(backend, FleetBackend):
        raise NotFound("there is nothing to route between: give --upstream twice or more, or --kv-events")
    return backend
