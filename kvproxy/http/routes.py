"""The public HTTP routes."""

import asyncio
import contextlib
import posixpath
import time

from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route
from starlette.types import Receive, Scope, Send

from kvproxy import __version__
from kvproxy.apis import APIS
from kvproxy.apis.api import Api
from kvproxy.apis.request import Account, ApiRequest
from kvproxy.apis.sse import event
from kvproxy.errors import InvalidRequest, KvproxyError, NotFound, Overloaded, Unkeyable
from kvproxy.flow.outcome import Outcome
from kvproxy.flow.quota_charges import UnreadSpending
from kvproxy.http.access.clients import is_own
from kvproxy.http.bodies import api_request, check_choices, query_of, upload, whole_body
from kvproxy.http.body_budget import Reservation
from kvproxy.http.cache_status import BYPASS, cache_headers
from kvproxy.http.connections.pace import paced
from kvproxy.http.connections.relay import RelayResponse, unless_gone, whole_response
from kvproxy.http.failures import failed
from kvproxy.http.labels import PASSED, SEEN
from kvproxy.http.openapi.document import openapi
from kvproxy.http.services import services
from kvproxy.index.errors import CacheStoreError
from kvproxy.journal.reasons import reason_of_failure
from kvproxy.settings import Settings

_CACHED = frozenset(api.path for api in APIS.values())
_READING = ("GET", "HEAD", "OPTIONS")
_GONE = 499


class Cached:
    """An ASGI app: an API whose answers are cached."""

    def __init__(self, api: Api) -> None:
        self._api = api

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        # The app around it answers for errors; a function as a route would be wrapped for that a second time.
        request = Request(scope, receive, send)
        with services(request).bodies.reservation() as reservation:
            response = await self._answer(request, reservation)
            await response(scope, receive, send)

    async def _answer(self, request: Request, reservation: Reservation) -> Response:
        began, api = time.perf_counter(), self._api
        outcome, status = Outcome("error"), 500
        try:
            response, outcome = await _answer(request, api, reservation)
            status = response.status_code
        except KvproxyError as error:
            status = error.status
            outcome = Outcome("error" if reason_of_failure(error).startswith("error") else "refused")
            services(request).metrics.refused(error)
            return failed(error, api.error(error))
        except ClientDisconnect:
            outcome, status = Outcome("gone"), _GONE
            raise
        finally:
            services(request).metrics.answered(api.name, outcome.layer, status, time.perf_counter() - began)
        return response


async def _answer(request: Request, api: Api, reservation: Reservation) -> tuple[Response, Outcome]:
    app = services(request)
    forwarder = app.answerer.backend.forwarder
    limits, lifetime = app.settings.limits, app.lifetimes.begin()
    raw = await whole_body(request, limits.body, limits.body_seconds, reservation)
    try:
        read = await api_request(request, api, raw, app.settings, check=forwarder is None)
        asked = app.traced(app.ruled(read))
        check_choices(asked.body, limits.choices)
        lifetime.shorten(asked.control.timeout)
        request.scope["state"][SEEN] = True
        given = await app.answerer.answer(asked, lambda work: unless_gone(request, work, lifetime))
    except Unkeyable:
        request.scope["state"][SEEN] = False
        if forwarder is None:
            raise
        return await _pass_on(request, raw), Outcome("bypass")
    except InvalidRequest as error:
        # What cannot be read here is the upstream's to judge; what our own headers ask for is not.
        if forwarder is None or error.param is not None:
            raise
        return await _pass_on(request, raw), Outcome("bypass")
    headers = [*given.headers, *cache_headers(given.outcome)]
    body = given.body
    if isinstance(body, bytes):
        pace = _pace(asked, app.settings) if asked.stream and given.outcome.forwarded is None else 0.0
        if not pace:
            return whole_response(body, given.status, headers), given.outcome
        body = paced(body, given.outcome.tokens, pace)

    def tell(error: KvproxyError) -> bytes:
        return event(api.error(error), "error")

    return RelayResponse(body, given.status, headers, given.close, lifetime, tell), given.outcome


def _pace(asked: ApiRequest, settings: Settings) -> float:
    """Tokens a second at which a hit's stream is replayed: those of the request, of its rule or of the settings; 0 for all."""
    given = (asked.control.pace, asked.control.ruled.pace)
    return next((pace for pace in given if pace is not None), settings.cache.pace)


async def models(request: Request) -> Response:
    """GET /v1/models: the upstream's own answer where there is one."""
    backend = services(request).answerer.backend
    if backend.forwarder is not None:
        return await other(request)
    return JSONResponse(await backend.models())


async def health(request: Request) -> Response:
    """GET /health: the process answers, and its engine is not broken; `degraded` while nothing can be stored or found.

    What is private is told to the operator only.
    """
    app = services(request)
    broken = app.built.worker.failure if app.built.worker is not None else None
    store = app.answerer.store
    lost = await asyncio.to_thread(store.failure) if store.remote else store.failure()
    working = "ok" if lost is None else "degraded"
    told = {"status": working if broken is None else "failed", "version": __version__}
    if app.access.admin(request) is None:
        told |= {"backend": app.answerer.backend.name, "data": str(app.settings.data)}
        told |= {"error": broken} if broken is not None else {}
        told |= {"store": lost} if lost is not None else {}
        outage = app.answerer.backend.failure() if broken is None else None
        told |= {"outage": outage} if outage is not None else {}
    return JSONResponse(told, 200 if broken is None else 503)


async def ready(request: Request) -> Response:
    """GET /ready: a request would be answered now; 503 with the cause where it would not."""
    app = services(request)
    failure = app.answerer.backend.failure()
    if failure is None:
        return JSONResponse({"status": "ready"})
    cause = {"error": failure} if app.access.admin(request) is None else {}
    return JSONResponse({"status": "not ready", **cause}, 503)


async def metrics(request: Request) -> Response:
    """GET /metrics: Prometheus' text format, for the operator only: it names upstreams, and says who uses what."""
    app = services(request)
    refused = app.access.admin(request)
    if refused is not None:
        raise refused
    if app.built.worker is not None:
        # An engine whose thread has ended has no figures any more; the others still tell.
        with contextlib.suppress(Overloaded):
            app.metrics.pool(await app.built.worker.inspect(lambda manager: manager.stats()))
        app.metrics.tiers(app.built.worker.tier_figures())
    if app.built.fleet is not None:
        for engine in app.built.fleet.engines.values():
            app.metrics.upstream(engine.status())
    observer = app.answerer.observer
    app.metrics.semantic(app.answerer.outcomes, observer.results() if observer is not None else {}, app.answerer.stale)
    semantic = app.answerer.semantic
    overall = None if semantic is None or semantic.learning is None else semantic.learning.overall()
    if overall is not None:
        app.metrics.learned(overall)
    with contextlib.suppress(KvproxyError):
        app.metrics.saved(await asyncio.to_thread(app.answerer.journal.saved))
    try:
        app.metrics.entries(await asyncio.to_thread(app.answerer.store.count))
    except CacheStoreError:
        app.metrics.entries(0)
    return Response(app.metrics.render(), media_type="text/plain; version=0.0.4; charset=utf-8")


async def other(request: Request) -> Response:
    """Anything else under the upstream passes through untouched; without one it does not exist."""
    has_body = "content-length" in request.headers or "transfer-encoding" in request.headers
    return await _pass_on(request, None if has_body else b"")


async def _pass_on(request: Request, body: bytes | None) -> Response:
    """Pass a request on; one whose body has not been read yet is passed on as it comes."""
    forwarder = services(request).answerer.backend.forwarder
    _check_path(request)
    if forwarder is None:
        raise NotFound(f"no route {request.method} {request.url.path}: see docs/http.md for those that there are")
    app = services(request)
    lifetime = app.lifetimes.begin()
    query = query_of(request)
    raw_path: bytes = request.scope["raw_path"]
    path = raw_path.decode("latin-1") + (f"?{query}" if query else "")
    spending = _spending(request, body)
    uploaded = asyncio.Event()
    if body is not None:
        uploaded.set()
    # Only the upload reads from the client until it is done; it notices by itself when the client goes.
    sent = upload(request, uploaded, app.settings.limits.body_seconds) if body is None else body
    request.scope["state"][PASSED] = True
    if spending is not None:
        sent = spending.upload(sent)
    forwarding = forwarder.forward(request.method, path, request.headers, sent)
    try:
        reply = await unless_gone(request, forwarding, lifetime, uploaded)
    except BaseException as error:
        if spending is not None:
            spending.failed(error)
        raise
    if spending is not None:
        reply = spending.answer(reply)
    return RelayResponse(reply.chunks, reply.status, [*reply.headers, BYPASS], reply.close, lifetime, uploaded=uploaded)


def _check_path(request: Request) -> None:
    """Refuse a path of our own, whatever the method, and another spelling of a route: it would get past the caches."""
    path = request.url.path
    normal = posixpath.normpath("/" + path.lstrip("/"))
    if is_own(path) or (normal != path and (is_own(normal) or normal in _CACHED)):
        hint = f"send it to {normal}" if normal != path else "see docs/http.md for those that there are"
        raise NotFound(f"no route {request.method} {path}: {hint}")


def _spending(request: Request, body: bytes | None) -> UnreadSpending | None:
    """The charge for a request that is forwarded unread; None if nobody counts, or if it carries nothing. Raises TooMany."""
    account: Account | None = request.scope["state"].get("account")
    if account is None or (body == b"" and request.method in _READING):
        return None
    length = request.headers.get("content-length", "")
    announced = int(length[:15]) if length.isdecimal() else 0
    return UnreadSpending(account, announced if body is None else len(body))


ROUTES = [
    *(Route(api.path, Cached(api), methods=["POST"]) for api in APIS.values()),
    Route("/v1/models", models, methods=["GET"]),
    Route("/health", health, methods=["GET"]),
    Route("/ready", ready, methods=["GET"]),
    Route("/metrics", metrics, methods=["GET"]),
    Route("/openapi.json", openapi, methods=["GET"]),
]
EVERY_METHOD = ["GET", "POST", "PUT", "PATCH", "DELETE", "HEAD", "OPTIONS"]
OTHER = Route("/{path:path}", other, methods=EVERY_METHOD)
