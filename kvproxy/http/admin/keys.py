"""The admin routes of clients and their API keys."""

import asyncio
from collections.abc import Callable

from starlette.requests import Request

from kvproxy.clients.spending_tables import SpentAndReserved
from kvproxy.http.admin.operation_routes import operation_route
from kvproxy.http.services import Services, services
from kvproxy.operations.keys import KEY_OPERATIONS, KeysAccess
from kvproxy.settings.access import ClientSettings


class _RunningClients:
    """The clients and their money in the memory of this proxy."""

    def __init__(self, app: Services) -> None:
        self._spent, self._clients = app.spent, app.clients
        self.switch, self.end_switch, self.switched = app.clients.switch, app.clients.end_switch, app.clients.switched

    def unwritten_money(self) -> SpentAndReserved:
        return self._spent.unwritten()

    def known_clients(self) -> list[ClientSettings]:
        return self._clients.all

    def known_money(self) -> SpentAndReserved:
        return self._spent.known(self._clients.names)


async def _perform(request: Request, run: Callable[[KeysAccess], object]) -> object:
    app = services(request)
    access = KeysAccess(app.settings, app.operator(request), _RunningClients(app))
    result = await asyncio.to_thread(run, access)
    if request.method not in ("GET", "HEAD"):
        # The next request may have the new key.
        await asyncio.to_thread(app.reload_clients)
    return result


ROUTES = [operation_route(operation, _perform) for operation in KEY_OPERATIONS]
