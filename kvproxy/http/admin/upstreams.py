"""Admin routes that list and drain upstreams."""

from dataclasses import replace

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from kvproxy.errors import NotFound
from kvproxy.http.admin.replies import reply
from kvproxy.http.services import services
from kvproxy.upstreams.fleet import Fleet

_NO_UPSTREAM = "no upstream is available now, so only stored responses are served: see kvproxy upstreams undrain"


async def upstreams(request: Request) -> Response:
    """List the upstreams."""
    return reply([engine.status() for engine in _fleet(request).engines.values()])


async def drain(request: Request) -> Response:
    """Drain an upstream: it finishes its requests and receives no new ones."""
    return _set_draining(request, True)


async def undrain(request: Request) -> Response:
    """Send requests to an upstream again."""
    return _set_draining(request, False)


def _set_draining(request: Request, draining: bool) -> Response:
    fleet = _fleet(request)
    engine = fleet.find_engine(request.query_params.get("name", ""))
    engine.health.draining = draining
    status = engine.status()
    if draining and fleet.failure() is not None:
        status = replace(status, notes=(*status.notes, _NO_UPSTREAM))
    return reply(status)


def _fleet(request: Request) -> Fleet:
    fleet = services(request).built.fleet
    if fleet is None:
        raise NotFound("the embedded engine answers here: start with --upstream to forward to a server")
    return fleet


ROUTES = [
    Route("/upstreams", upstreams, methods=["GET"]),
    Route("/upstreams/drain", drain, methods=["POST"]),
    Route("/upstreams/undrain", undrain, methods=["POST"]),
]
