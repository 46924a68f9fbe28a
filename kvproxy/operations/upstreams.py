"""The operations on upstreams, which a running proxy performs."""

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Annotated, Protocol

from kvproxy.errors import NotFound
from kvproxy.operations.operation import NoParameters, async_operation
from kvproxy.operations.parameters import argument
from kvproxy.operations.suggestions import upstream_urls
from kvproxy.upstreams.status import EngineStatus

if TYPE_CHECKING:
    from kvproxy.upstreams.fleet import Fleet

_NO_UPSTREAM = "no upstream is available now, so only stored responses are served: see kvproxy upstreams undrain"


class UpstreamsAccess(Protocol):
    """The upstreams of a proxy; None if it has an embedded engine."""

    @property
    def fleet(self) -> "Fleet | None": ...


@dataclass(frozen=True, slots=True)
class UpstreamName:
    name: Annotated[str, argument("URL of the upstream, or its number from 1.", upstream_urls)]


@async_operation("GET", "/upstreams")
async def list_upstreams(proxy: UpstreamsAccess, nothing: NoParameters) -> list[EngineStatus]:
    """List the upstreams."""
    return [upstream.status() for upstream in _fleet(proxy).engines.values()]


@async_operation("POST", "/upstreams/drain")
async def drain_upstream(proxy: UpstreamsAccess, upstream: UpstreamName) -> EngineStatus:
    """Drain an upstream: it finishes its requests and receives no new ones."""
    return _set_draining(proxy, upstream.name, True)


@async_operation("POST", "/upstreams/undrain")
async def undrain_upstream(proxy: UpstreamsAccess, upstream: UpstreamName) -> EngineStatus:
    """Send requests to an upstream again."""
    return _set_draining(proxy, upstream.name, False)


UPSTREAM_OPERATIONS = (list_upstreams, drain_upstream, undrain_upstream)


def _set_draining(proxy: UpstreamsAccess, name: str, draining: bool) -> EngineStatus:
    fleet = _fleet(proxy)
    upstream = fleet.find_engine(name)
    upstream.health.draining = draining
    status = upstream.status()
    if draining and fleet.failure() is not None:
        status = replace(status, notes=(*status.notes, _NO_UPSTREAM))
    return status


def _fleet(proxy: UpstreamsAccess) -> "Fleet":
    if proxy.fleet is None:
        raise NotFound("the embedded engine answers here: start with --upstream to forward to a server")
    return proxy.fleet
