"""Admin routes that list and drain upstreams."""

from typing import TYPE_CHECKING

from starlette.requests import Request

from kvproxy.http.admin.operation_routes import async_operation_route
from kvproxy.http.services import services
from kvproxy.operations.upstreams import UPSTREAM_OPERATIONS

if TYPE_CHECKING:
    from kvproxy.upstreams.fleet import Fleet


class RunningUpstreams:
    """The upstreams of this proxy, for one request of an operator."""

    def __init__(self, request: Request) -> None:
        self._request = request
        self._services = services(request)

    @property
    def fleet(self) -> "Fleet | None":
        return self._services.built.fleet

    async def set_drained(self, url: str, *, drained: bool) -> str | None:
        return await self._services.set_drained(self._request, url, drained=drained)


ROUTES = [async_operation_route(operation, RunningUpstreams) for operation in UPSTREAM_OPERATIONS]
