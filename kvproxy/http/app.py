"""The ASGI app: routes, middleware, and error handlers."""

import contextlib
import logging
from collections.abc import AsyncIterator

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Mount

from kvproxy.errors import InvalidRequest, KvproxyError, StoreUnavailable
from kvproxy.http import routes, ui
from kvproxy.http.access_rules import AdminGuard, PageGuard
from kvproxy.http.admin import AdminApp
from kvproxy.http.client_authentication import ClientGuard
from kvproxy.http.error_responses import ErrorHandler, error_body, error_response
from kvproxy.http.exchange_middleware import ExchangeMiddleware, exchange_of, request_id_of
from kvproxy.http.services import Services
from kvproxy.http.unread_refusals import RefuseUnread
from kvproxy.index.entry_redaction import RedactionFailed
from kvproxy.index.errors import CacheStoreError, EmbedderError

_log = logging.getLogger("kvproxy")


def create_app(services: Services) -> Starlette:
    @contextlib.asynccontextmanager
    async def lifespan(app: Starlette) -> AsyncIterator[None]:
        await services.start()
        try:
            yield
        finally:
            await services.close()

    writes = services.cache.pending_writes
    operator_app = AdminApp(services, _HANDLERS)
    guard = Middleware(AdminGuard, access=services.access, writes=writes, parameters=operator_app.query_parameters)
    guarded = Mount("/admin", app=operator_app, middleware=[guard])
    app = Starlette(
        routes=[*routes.ROUTES, guarded, *ui.routes(), routes.CATCH_ALL],
        lifespan=lifespan,
        middleware=[
            Middleware(RefuseUnread, load=services.path.load, metrics=services.metrics),
            Middleware(
                ExchangeMiddleware,
                finish=services.path.finish,
                tenants=services.tenants,
                clock=services.clock,
            ),
            Middleware(PageGuard, access=services.access),
            Middleware(ui.BrowserRedirect),
            Middleware(
                ClientGuard,
                clients=services.clients,
                quotas=services.quotas,
                metrics=services.metrics,
                access=services.access,
            ),
        ],
        exception_handlers=_HANDLERS,
    )
    app.state.services = services
    app.state.admin = operator_app
    return app


async def _on_known_error(request: Request, error: Exception) -> Response:
    if not isinstance(error, KvproxyError):
        error = StoreUnavailable(str(error)) if isinstance(error, CacheStoreError) else KvproxyError(str(error))
    services: Services = request.app.state.services
    services.metrics.count_error(error)
    exchange_of(request.scope).reached_limit = error.reached_limit
    return error_response(services.access.visible_error(request, error), request.scope)


async def _on_http_error(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    known = InvalidRequest(f"{request.method} {request.scope['path']}: {error.detail}; see docs/http.md")
    body = error_body(known, request.scope["path"], request_id_of(request.scope))
    return JSONResponse(body, error.status_code, headers=error.headers)


async def _on_disconnect(request: Request, error: Exception) -> Response:
    # The customary status in logs; no client reads it.
    return Response(status_code=499)


async def _on_unknown_error(request: Request, error: Exception) -> Response:
    _log.error("unexpected error", exc_info=error)
    response = error_response(KvproxyError("an unexpected error: see the server's log"), request.scope)
    # The server closes the connection after an error that it does not know.
    response.headers["connection"] = "close"
    return response


_HANDLERS: dict[int | type[Exception], ErrorHandler] = {
    **dict.fromkeys((KvproxyError, CacheStoreError, EmbedderError, RedactionFailed), _on_known_error),
    HTTPException: _on_http_error,
    ClientDisconnect: _on_disconnect,
    Exception: _on_unknown_error,
}
