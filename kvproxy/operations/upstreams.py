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

    async def set_drained(self, url: str, *, drained: bool) -> str | None:
        """Drain an upstream, on all proxies of one PostgreSQL, or end that; return why other proxies do not."""


@dataclass(frozen=True, slots=True)
class UpstreamName:
    name: Annotated[str, argument("URL of the upstream, or its number from 1.", upstream_urls)]


@async_operation("GET", "/upstreams")
async def list_upstreams(proxy: UpstreamsAccess, nothing: NoParameters) -> list[EngineStatus]:
    """List the upstreams."""
    return [upstream.status() for upstream in _fleet(proxy).engines.values()]


@async_operation("POST", "/upstreams/drain")
async def drain_upstream(proxy: UpstreamsAccess, upstream: UpstreamName) -> EngineStatus:
    """Drain an upstream on all proxies of a store: it finishes its requests and receives no new ones."""
    return await _set_drained(proxy, upstream.name, drained=True)


@async_operation("POST", "/upstreams/undrain")
async def undrain_upstream(proxy: UpstreamsAccess, upstream: UpstreamName) -> EngineStatus:
    """Send requests to an upstream again, from all proxies of a store."""
    return await _set_drained(proxy, upstream.name, drained=False)


UPSTREAM_OPERATIONS = (list_upstreams, drain_upstream, undrain_upstream)


async def _set_drained(proxy: UpstreamsAccess, name: str, *, drained: bool) -> EngineStatus:
    fleet = _fleet(proxy)
    upstream = fleet.find_engine(name)
    problem = await proxy.set_drained(upstream.url, drained=drained)
    status = upstream.status()
    notes = [problem, _NO_UPSTREAM if drained and fleet.failure() is not None else None]
    return replace(status, notes=(*status.notes, *filter(None, notes)))


def _fleet(proxy: UpstreamsAccess) -> "Fleet":
    if proxy.fleet is None:
        raise NotFound("the embedded engine answers here: start with --upstream to forward to a server")
    return proxy.fleet
