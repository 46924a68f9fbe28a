"""Admin routes: who may use them, see `guard`; the block cache and explain. The response cache is in `admin_cache`."""

import hmac
from collections.abc import Awaitable, Callable
from ipaddress import ip_address

from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from kvproxy.engine.worker import EngineWorker
from kvproxy.errors import InvalidRequest, NoPrefixCache, NotFound, Unauthorized
from kvproxy.proxy.dialects import DIALECTS
from kvproxy.proxy.explain import explain
from kvproxy.proxy.fleet.routes import drain, undrain, upstreams
from kvproxy.proxy.routes import parse_body, read_call
from kvproxy.proxy.services import services

Handler = Callable[[Request], Awaitable[Response]]


def is_loopback(host: str) -> bool:
    """Whether an address can be reached from this machine only."""
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def guard(handler: Handler) -> Handler:
    """Admin routes are open on loopback; beyond it, or where a token is set, they need the token.

    Web pages are turned away on loopback too, also those that reach it under a name of their own.
    """

    async def guarded(request: Request) -> Response:
        settings = services(request).settings
        if settings.admin_token is not None:
            given = request.headers.get("authorization", "").removeprefix("Bearer ")
            if not hmac.compare_digest(given.encode(), settings.admin_token.encode()):
                raise Unauthorized("this route needs the admin token: send Authorization: Bearer TOKEN")
        elif not is_loopback(settings.host):
            raise Unauthorized("admin routes are closed beyond loopback: set admin_token and send it as a bearer token")
        elif "origin" in request.headers or not is_loopback(request.url.hostname or ""):
            raise Unauthorized(
                "admin routes take no requests of web pages or by other names: set admin_token to allow them"
            )
        return await handler(request)

    return guarded


def own_engine(request: Request, what: str) -> EngineWorker:
    """The embedded engine.

    Raises:
        NoPrefixCache: an upstream computes; the message says what this proxy has not.
    """
    worker = services(request).worker
    if worker is None:
        raise NoPrefixCache(f"the prefix cache belongs to the upstream: this proxy holds {what}")
    return worker


async def blocks(request: Request) -> Response:
    return JSONResponse(await services(request).prefix.blocks())


async def blocks_queue(request: Request) -> Response:
    return JSONResponse(await services(request).prefix.queue())


async def blocks_stats(request: Request) -> Response:
    return JSONResponse(await services(request).prefix.stats())


async def blocks_chains(request: Request) -> Response:
    return JSONResponse(await services(request).prefix.chains())


async def blocks_show(request: Request) -> Response:
    name = request.path_params["id"]
    block = await services(request).prefix.show(name)
    if block is None:
        raise NotFound(f"no block {name}: blocks ls lists them")
    return JSONResponse(block)


async def blocks_reset(request: Request) -> Response:
    return JSONResponse(await services(request).prefix.reset())


async def explain_request(request: Request) -> Response:
    dialect = DIALECTS["chat"]
    call = await read_call(request, dialect)
    if isinstance(call, bytes):
        parse_body(call)
        raise InvalidRequest("explain takes the body of a chat request")
    dialect.check(call.body)
    return JSONResponse(await explain(services(request), call))


ROUTES = [
    Route("/admin/blocks", guard(blocks), methods=["GET"]),
    Route("/admin/blocks/queue", guard(blocks_queue), methods=["GET"]),
    Route("/admin/blocks/chains", guard(blocks_chains), methods=["GET"]),
    Route("/admin/blocks/stats", guard(blocks_stats), methods=["GET"]),
    Route("/admin/blocks/reset", guard(blocks_reset), methods=["POST"]),
    Route("/admin/blocks/{id}", guard(blocks_show), methods=["GET"]),
    Route("/admin/explain", guard(explain_request), methods=["POST"]),
    Route("/admin/upstreams", guard(upstreams), methods=["GET"]),
    Route("/admin/upstreams/drain", guard(drain), methods=["POST"]),
    Route("/admin/upstreams/undrain", guard(undrain), methods=["POST"]),
]
