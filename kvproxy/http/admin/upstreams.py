"""Admin routes that list and drain upstreams."""

from kvproxy.http.admin.operation_routes import async_operation_route
from kvproxy.http.services import services
from kvproxy.operations.upstreams import UPSTREAM_OPERATIONS

ROUTES = [
    async_operation_route(operation, lambda request: services(request).built) for operation in UPSTREAM_OPERATIONS
]
