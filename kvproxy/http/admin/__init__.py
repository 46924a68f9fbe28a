"""Admin routes, one file per resource, behind `AdminGuard`. They and FastAPI are imported at the first request."""

import asyncio
from collections.abc import Mapping
from typing import TYPE_CHECKING

from starlette.routing import BaseRoute
from starlette.types import Receive, Scope, Send

from kvproxy.http.error_responses import ErrorHandler
from kvproxy.http.services import Services

if TYPE_CHECKING:
    from fastapi import FastAPI


class AdminApp:
    """ASGI app of the admin routes, which other threads create because their imports take most of a second.

    `handlers` are the exception handlers of the server.
    """

    def __init__(self, services: Services, handlers: Mapping[int | type[Exception], ErrorHandler]) -> None:
        self._services, self._handlers = services, handlers
        self._lock = asyncio.Lock()
        self._app: FastAPI | None = None

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        await (await self.load())(scope, receive, send)

    async def load(self) -> "FastAPI":
        """Return the app, and create it first if it is missing."""
        async with self._lock:
            if self._app is None:
                self._app = await asyncio.to_thread(self._create)
        return self._app

    @property
    def routes(self) -> list[BaseRoute]:
        """The routes of a loaded app; Starlette's `Mount.routes` reads them."""
        return [] if self._app is None else self._app.routes

    async def query_parameters(self) -> frozenset[str]:
        """Return the names of the parameters that any route declares."""
        from kvproxy.http.admin.declared_route import parameter_names

        return parameter_names((await self.load()).routes)

    def _create(self) -> "FastAPI":
        from kvproxy.http.admin.app import create_admin_app

        app = create_admin_app(self._handlers)
        app.state.services = self._services
        return app
