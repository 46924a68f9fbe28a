"""The ASGI app and the server around it."""

import contextlib
import logging
import socket
from collections.abc import AsyncIterator, Callable

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse, Response

from kvproxy.errors import InvalidRequest, KvproxyError, SettingsError, StoreUnavailable
from kvproxy.index.errors import CacheStoreError, EmbedderError
from kvproxy.proxy import admin, admin_cache, admin_pins, admin_tiers, feedback, routes
from kvproxy.proxy.labels import Labels
from kvproxy.proxy.services import Services, build
from kvproxy.settings import Settings

_log = logging.getLogger("kvproxy")


def create_app(services: Services) -> Starlette:
    """The app over parts that are built; its lifespan starts and closes them."""

    @contextlib.asynccontextmanager
    async def lifespan(app: Starlette) -> AsyncIterator[None]:
        await services.start()
        try:
            yield
        finally:
            await services.close()

    app = Starlette(
        routes=[
            *routes.ROUTES,
            *admin_pins.ROUTES,
            *admin_tiers.ROUTES,
            *admin.ROUTES,
            *admin_cache.ROUTES,
            *feedback.ROUTES,
            routes.OTHER,
        ],
        lifespan=lifespan,
        middleware=[Middleware(Labels)],
        exception_handlers={
            KvproxyError: _known,
            CacheStoreError: _store,
            EmbedderError: _embedder,
            HTTPException: _refused,
            ClientDisconnect: _gone,
            Exception: _unknown,
        },
    )
    app.state.services = services
    return app


async def _known(request: Request, error: Exception) -> Response:
    assert isinstance(error, KvproxyError)
    return JSONResponse(error.body(), error.status)


async def _store(request: Request, error: Exception) -> Response:
    return await _known(request, StoreUnavailable(str(error)))


async def _embedder(request: Request, error: Exception) -> Response:
    return await _known(request, KvproxyError(str(error)))


async def _refused(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    body = InvalidRequest(f"{request.method} {request.url.path}: {error.detail}; see docs/http.md").body()
    return JSONResponse(body, error.status_code, headers=error.headers)


async def _gone(request: Request, error: Exception) -> Response:
    # Nobody reads this; 499 is the customary status in logs.
    return Response(status_code=499)


async def _unknown(request: Request, error: Exception) -> Response:
    _log.error("unexpected error", exc_info=error)
    known = KvproxyError("an unexpected error: see the server's log")
    return JSONResponse(known.body(), known.status, headers={"cache-status": "kvproxy; fwd=bypass"})


def serve(settings: Settings, on_ready: Callable[[Services, str], None] = lambda services, url: None) -> None:
    """Run the proxy until it is interrupted.

    Args:
        settings: everything.
        on_ready: called with the parts and the URL once the port is open.

    Raises:
        SettingsError: the port is taken, or the store cannot be used.
        ModelUnsupported: the model cannot be served.
    """
    import uvicorn

    listener = _listen(settings.host, settings.port)
    with listener:
        services = build(settings)
        host = f"[{settings.host}]" if ":" in settings.host else settings.host
        on_ready(services, f"http://{host}:{listener.getsockname()[1]}")
        config = uvicorn.Config(
            create_app(services),
            log_level="warning",
            access_log=False,
            server_header=False,
            proxy_headers=False,
            # Labels adds one where the upstream has not.
            date_header=False,
            timeout_graceful_shutdown=5,
        )
        # Relaying an upstream that breaks off closes the connection on purpose, and says so itself.
        logging.getLogger("uvicorn.error").addFilter(lambda record: "without completing response" not in record.msg)
        # After an orderly shutdown uvicorn raises the signal again; for a server that is no failure.
        with contextlib.suppress(KeyboardInterrupt):
            uvicorn.Server(config).run(sockets=[listener])


def _listen(host: str, port: int) -> socket.socket:
    """The listening socket, opened before anything slow is loaded, so that a taken port is told at once."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    listener = socket.socket(family, socket.SOCK_STREAM)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind((host, port))
        listener.listen(2048)
    except OSError as error:
        listener.close()
        raise SettingsError(f"cannot listen on {host}:{port} ({error.strerror}): choose another with --port") from None
    return listener
