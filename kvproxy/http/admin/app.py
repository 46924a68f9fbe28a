"""The app of the admin routes."""

from collections.abc import Mapping

from fastapi import FastAPI
from fastapi.exceptions import RequestValidationError
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Route

from kvproxy.errors import InvalidRequest, KvproxyError, NotFound
from kvproxy.http.admin import blocks, cache, journal, keys, sessions, upstreams
from kvproxy.http.admin.operation_routes import async_operation_route
from kvproxy.http.error_responses import ErrorHandler, refuse_wrong_method
from kvproxy.http.routes import EVERY_METHOD, health
from kvproxy.http.services import services
from kvproxy.operations.proxy import PROXY_OPERATIONS


async def _not_found(request: Request) -> Response:
    refuse_wrong_method(request)
    raise NotFound(f"no route {request.method} {request.scope['path']}: see docs/http.md")


ROUTES: list[BaseRoute] = [
    *blocks.ROUTES,
    *upstreams.ROUTES,
    *cache.ROUTES,
    *journal.ROUTES,
    *sessions.ROUTES,
    *keys.ROUTES,
    Route("/health", health, methods=["GET"]),
    *(async_operation_route(operation, services) for operation in PROXY_OPERATIONS),
    Route("/{path:path}", _not_found, methods=EVERY_METHOD, include_in_schema=False),
]


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
