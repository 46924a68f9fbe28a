"""The admin routes of clients and their API keys."""

import asyncio
from collections.abc import Callable

from starlette.requests import Request

from kvproxy.http.admin.operation_routes import operation_route
from kvproxy.http.services import services
from kvproxy.operations.keys import KEY_OPERATIONS, KeysAccess


async def _perform(request: Request, run: Callable[[KeysAccess], object]) -> object:
    app = services(request)
    result = await asyncio.to_thread(run, KeysAccess(app.settings, app.operator(request), app.spent.unwritten))
    if request.method not in ("GET", "HEAD"):
        # The next request may have the new key.
        await asyncio.to_thread(app.reload_clients)
    return result


ROUTES = [operation_route(operation, _perform) for operation in KEY_OPERATIONS]
