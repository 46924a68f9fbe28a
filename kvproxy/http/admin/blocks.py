"""Admin routes on blocks, chains, pins, and tiers."""

from kvproxy.http.admin.operation_routes import async_operation_route
from kvproxy.http.services import services
from kvproxy.operations.blocks import BLOCK_OPERATIONS

ROUTES = [async_operation_route(operation, services) for operation in BLOCK_OPERATIONS]
