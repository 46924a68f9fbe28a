"""The admin route that lists clients."""

import asyncio
from collections.abc import Callable

from starlette.requests import Request

from kvproxy.http.admin.operation_routes import operation_route
from kvproxy.http.services import services
from kvproxy.operations.keys import KEY_OPERATIONS
from kvproxy.settings import Settings


async def _perform(request: Request, run: Callable[[Settings], object]) -> object:
    return await asyncio.to_thread(run, services(request).settings)


ROUTES = [operation_route(operation, _perform) for operation in KEY_OPERATIONS]
