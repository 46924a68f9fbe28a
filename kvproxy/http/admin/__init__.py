"""Admin routes, one file per resource. `AdminGuard` protects them."""

import asyncio
from collections.abc import Mapping

from fastapi import FastAPI
from fastapi.exceptions import RequestValidationError
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Route

from kvproxy.errors import InvalidRequest, KvproxyError, NotFound, SettingsError
from kvproxy.flow.explain import explain
from kvproxy.http.admin import blocks, cache, journal, sessions, upstreams
from kvproxy.http.admin.operation_routes import DeclaredRoute
from kvproxy.http.admin.replies import read_request, reply
from kvproxy.http.error_responses import ErrorHandler
from kvproxy.http.openapi import QUERIES
from kvproxy.http.routes import EVERY_METHOD, health
from kvproxy.http.services import services


async def explain_request(request: Request) -> Response:
    """Predict which layer would answer the request in the body, and why earlier layers would not."""
    app = services(request)
    return reply(await explain(app.path, app.prefix, await app.path.edit(await read_request(request))))


async def reload(request: Request) -> Response:
    """Reload `[[rules]]` of kvproxy.toml. An invalid file changes nothing."""
    rules = services(request).rules
    try:
        restart = await asyncio.to_thread(rules.reload)
    except SettingsError as error:
        raise InvalidRequest(f"the rules were not changed: {error.message}") from None
    return reply({"rules": len(rules), "restart": restart})


async def _not_found(request: Request) -> Response:
    raise NotFound(f"no route {request.method} {request.scope['path']}: see docs/http.md")


ROUTES: list[BaseRoute] = [
    *blocks.ROUTES,
    *upstreams.ROUTES,
    *cache.ROUTES,
    *journal.ROUTES,
    *sessions.ROUTES,
    Route("/health", health, methods=["GET"]),
    Route("/explain", explain_request, methods=["POST"]),
    Route("/reload", reload, methods=["POST"]),
    Route("/{path:path}", _not_found, methods=EVERY_METHOD, include_in_schema=False),
]

QUERY_PARAMETERS = frozenset(name for query in QUERIES.values() for name in query).union(
    parameter.name for route in ROUTES if isinstance(route, DeclaredRoute) for parameter in route.parameters
)


def create_admin_app(handlers: Mapping[int | type[Exception], ErrorHandler]) -> FastAPI:
    """Return the app of the admin routes; `handlers` are the exception handlers of the server."""

    async def on_missing_parameter(request: Request, error: Exception) -> Response:
        assert isinstance(error, RequestValidationError)
        name = str(error.errors()[0]["loc"][-1])
        invalid = InvalidRequest(f"the parameter {name} is missing: add ?{name}=VALUE", param=name)
        return await handlers[KvproxyError](request, invalid)

    known: dict[int | type[Exception], ErrorHandler] = {
        **handlers,
        RequestValidationError: on_missing_parameter,
    }
    return FastAPI(routes=ROUTES, exception_handlers=known, openapi_url=None, docs_url=None, redoc_url=None)
