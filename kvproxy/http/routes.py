"""The routes of clients: cached APIs, models, health, metrics, and forwarded requests."""

import asyncio
import contextlib
import logging
from functools import partial

from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route
from starlette.types import Receive, Scope, Send

from kvproxy import __version__
from kvproxy.apis import APIS, MESSAGES, PATHS
from kvproxy.apis.api import Api
from kvproxy.apis.api_request import Delivery
from kvproxy.apis.json import as_object, loads, objects
from kvproxy.backends.protocol import RelayedResponse
from kvproxy.errors import (
    InvalidJson,
    InvalidRequest,
    KvproxyError,
    ModelNotFound,
    NotFound,
    Overloaded,
    RequestTooLarge,
    StoreUnavailable,
    UnsupportedEncoding,
)
from kvproxy.exchange import Exchange
from kvproxy.flow.finish import record_failure
from kvproxy.flow.provider_ids import remove_responses
from kvproxy.flow.quota_charges import UnparsedRequestCharge
from kvproxy.http.allowed_models import (
    allowed_listing,
    check_model,
    check_model_of_body,
    reads_model,
    requires_model,
)
from kvproxy.http.cache_status import BYPASS, cache_headers
from kvproxy.http.client_authentication import DOCUMENT_PATH
from kvproxy.http.deadlines_and_disconnects import Deadline, RelayResponse, WholeResponse
from kvproxy.http.error_responses import error_event, error_response
from kvproxy.http.exchange_middleware import exchange_of
from kvproxy.http.forwarded_routes import check_path, check_route
from kvproxy.http.request_bodies import (
    BodyReservation,
    check_number_of_choices,
    decode_body,
    joined_headers,
    query_of,
    read_api_request,
    read_body,
    stream_upload,
)
from kvproxy.http.services import Services, services
from kvproxy.http.tokenize import detokenize_tokens, tokenize_prompt
from kvproxy.index.errors import CacheStoreError
from kvproxy.installation.checks.configured_store import store_name
from kvproxy.journal.reader import JournalReader
from kvproxy.journal.savings import savings
from kvproxy.journal.sessions.ledger_report import LedgerRow
from kvproxy.journal.sessions.session_reader import SessionReader
from kvproxy.journal.token_estimates import most_output_tokens
from kvproxy.providers.prices import ModelPrices

_DOUBLED = b"/v1/v1/"
_TAILS = tuple(api.path.removeprefix("/v1") for api in APIS.values())
_MAX_WARNINGS = 16
_MODELS = ("/v1/models", "/models", "/v1/v1/models")
_GONE = (404, 410)
_KEY_HEADERS = ("authorization", "x-api-key", "api-key", "anthropic-version")
_log = logging.getLogger("kvproxy")
_READING = ("GET", "HEAD", "OPTIONS")


class CachedApi:
    """The route of a cached API. It is an ASGI app, because Starlette would wrap a function in a second error handler."""

    def __init__(self, api: Api) -> None:
        self._api = api

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        request, exchange = Request(scope, receive, send), exchange_of(scope)
        app = services(request)
        with app.bodies.reservation() as reservation:
            try:
                response = await _answer(app, request, exchange, self._api, reservation)
            except KvproxyError as error:
                record_failure(exchange, error)
                app.metrics.count_error(error)
                response = error_response(app.access.visible_error(request, error), scope)
            except BaseException as error:
                record_failure(exchange, asyncio.CancelledError() if isinstance(error, ClientDisconnect) else error)
                raise
            await response(scope, receive, send)


async def _answer(
    app: Services, request: Request, exchange: Exchange, api: Api, reservation: BodyReservation
) -> Response:
    forwarder = app.backend.forwarder
    limits, deadline = app.settings.limits, Deadline(app.deadlines)
    await app.journal.wait_for_space()
    raw = await read_body(request, limits.body_bytes, limits.body_seconds, reservation)
    app.path.load.check_unread(raw)
    try:
        decoded = await decode_body(request, raw, limits.body_bytes, reservation)
        parsed = await read_api_request(request, api, decoded, app.tenants, check_fields=forwarder is None)
        exchange.tenant = parsed.tenant
        exchange.request = parsed
        check_model(exchange.client, parsed.model)
        await app.path.prepare(exchange)
        check_number_of_choices(exchange.api_request.body, limits.choices)
        deadline.shorten(exchange.api_request.control.timeout)
        exchange.watch = partial(deadline.cancel_when_over, request.receive)
        answer = await app.path.answer(exchange)
        app.path.load.record_answered(raw, answer.status)
    except InvalidRequest as error:
        # The upstream judges unparsable requests and those without a key, but not our own headers and limits.
        if forwarder is None or error.param is not None or isinstance(error, RequestTooLarge | UnsupportedEncoding):
            raise
        if isinstance(error, InvalidJson) and (app.routes_by_model or requires_model(exchange)):
            # The model decides the upstream, or the permission.
            raise
        exchange.request = None
        return await _forward(request, raw)
    app.tenants.record_cookies(parsed.tenant, answer.headers)
    headers = [*answer.headers, *cache_headers(exchange)]
    if isinstance(answer.body, bytes):
        return WholeResponse(answer.body, answer.status, headers)
    last_event = partial(_last_event, request)
    return RelayResponse(answer.body, answer.status, headers, answer.close, deadline, last_event)


def _last_event(request: Request, error: KvproxyError) -> bytes:
    return error_event(services(request).access.visible_error(request, error), request.scope)


async def models(request: Request) -> Response:
    """List the models of the upstream, or of the embedded engine."""
    app, client = services(request), exchange_of(request.scope).client
    if app.built.fleet is not None and app.built.fleet.routes is not None:
        return JSONResponse(allowed_listing(client, await app.built.fleet.models(_key_headers(request))))
    if app.built.fleet is not None and client is not None and client.models:
        status, listing = await app.built.fleet.list_models(query_of(request), _key_headers(request))
        return JSONResponse(allowed_listing(client, listing) if status == 200 else listing, status)
    if app.backend.forwarder is not None:
        return await forward_unparsed(request)
    return JSONResponse(allowed_listing(client, await app.backend.models()))


async def model(request: Request) -> Response:
    """Describe one model of the upstreams."""
    fleet = services(request).built.fleet
    check_model(exchange_of(request.scope).client, request.path_params["name"])
    if fleet is None or fleet.routes is None:
        return await forward_unparsed(request)
    name = request.path_params["name"]
    fleet.routes.find(name)
    rows = objects((await fleet.models(_key_headers(request)))["data"])
    row = next((row for row in rows if row["id"] == name), None)
    if row is None:
        raise ModelNotFound(f"no upstream lists the model {name[:200]!r}", param="model")
    return JSONResponse(row)


def _key_headers(request: Request) -> dict[str, str]:
    return {name: request.headers[name] for name in _KEY_HEADERS if name in request.headers}


async def count_tokens(request: Request) -> Response:
    """Return the number of tokens of a prompt in Anthropic's format."""
    app = services(request)
    if app.backend.forwarder is not None:
        return await forward_unparsed(request)
    limits = app.settings.limits
    with app.bodies.reservation() as reservation:
        raw = await read_body(request, limits.body_bytes, limits.body_seconds, reservation)
        raw = await decode_body(request, raw, limits.body_bytes, reservation)
        counted = await read_api_request(request, MESSAGES, raw, app.tenants, check_fields=False)
        MESSAGES.check_prompt(counted.body)
        report = await app.prefix.explain(await app.path.edit(counted))
    return JSONResponse({"input_tokens": report and report.prompt_tokens})


async def tokenize(request: Request) -> Response:
    """Return the tokens of a prompt, in vLLM's format."""
    is_upstream = services(request).backend.forwarder is not None
    return await (forward_unparsed if is_upstream else tokenize_prompt)(request)


async def detokenize(request: Request) -> Response:
    """Return the text of tokens, in vLLM's format."""
    is_upstream = services(request).backend.forwarder is not None
    return await (forward_unparsed if is_upstream else detokenize_tokens)(request)


async def health(request: Request) -> Response:
    """Report the status `ok`, `failed` if the engine failed, or `degraded`.

    It is degraded if the store, the journal, or a tier fails, or if a model has no available upstream.

    Only the operator receives details.
    """
    app = services(request)
    broken = app.built.worker.failure if app.built.worker is not None else None
    lost = app.cache.store.database.failure()
    fleet = app.built.fleet
    tiers = {} if app.built.worker is None else app.built.worker.tier_failures()
    is_working = lost is None and app.journal.failure is None and not tiers
    is_working = is_working and not (fleet is not None and fleet.is_degraded)
    working = "ok" if is_working else "degraded"
    details: dict[str, object] = {"status": working if broken is None else "failed", "version": __version__}
    if app.access.check_operator(request) is None:
        details |= {"backend": app.backend.name, "data": str(app.settings.data)}
        details["responses"] = store_name(app.settings)
        details |= {"semantic": app.settings.cache.semantic, "error": broken, "store": lost}
        details["journal"] = app.journal.name
        failure_of_journal = app.journal.failure
        details["journal_error"] = failure_of_journal and f"records cannot be written: {failure_of_journal}"
        details["tiers"] = tiers or None
        details["outage"] = app.backend.failure() if broken is None else None
        if fleet is not None:
            details["upstreams"] = [
                {"url": engine.url, "state": engine.health.state, "error": engine.health.error}
                for engine in fleet.engines.values()
            ]
    return JSONResponse(
        {name: detail for name, detail in details.items() if detail is not None}, 503 if broken else 200
    )


async def ready(request: Request) -> Response:
    """Report whether the backend is available; if not, with status 503. Only the operator receives the cause."""
    app = services(request)
    failure = app.backend.failure()
    if failure is None:
        return JSONResponse({"status": "ready"})
    cause = {"error": failure}
    if app.access.check_operator(request) is not None:
        generic = "the engine failed" if app.backend.forwarder is None else "no upstream is available"
        cause = {"error": generic, "hint": "send the admin token to receive the cause"}
    return JSONResponse({"status": "not ready", **cause}, 503)


async def metrics(request: Request) -> Response:
    """Return metrics in Prometheus' text format, for the operator and with the metrics token: they name upstreams and clients."""
    app = services(request)
    if (refused := app.access.check_metrics(request)) is not None:
        raise refused
    proxy_metrics = app.metrics
    if app.built.worker is not None:
        # A failed engine has no statistics; the other metrics remain.
        with contextlib.suppress(Overloaded):
            proxy_metrics.set_pool(await app.built.worker.inspect(lambda manager: manager.stats()))
        for tier in app.built.worker.tier_stats():
            proxy_metrics.tiers.set(tier, tier.name)
    if app.built.fleet is not None:
        proxy_metrics.set_upstreams(engine.status() for engine in app.built.fleet.engines.values())
        if app.built.fleet.routes is not None:
            for name, fallbacks in app.built.fleet.routes.fallback_counts.items():
                proxy_metrics.fallbacks.set(fallbacks, name)
    compared = {} if app.comparer is None else app.comparer.counts
    lookups, stale = app.path.counts("lookups"), app.path.counts("stale")
    counted = (proxy_metrics.lookups, lookups), (proxy_metrics.compared, compared), (proxy_metrics.stale, stale)
    for group, counts in counted:
        for label, count in counts.items():
            group.set(count, label)
    semantic = app.cache.semantic
    if semantic is not None and semantic.learning is not None and (overall := semantic.learning.summary()) is not None:
        proxy_metrics.learned.set(overall)
    proxy_metrics.lost_records.set(app.journal.lost)
    is_readable = False
    with contextlib.suppress(KvproxyError):
        read, prices = app.journal.read, ModelPrices(app.settings.journal)
        for saving in await asyncio.to_thread(read, lambda reader: savings(reader, "layer", prices), []):
            proxy_metrics.savings.set(saving, saving.name)
        proxy_metrics.set_forecasts(await app.forecasts())
        for row in await asyncio.to_thread(read, _ledger_rows, []):
            proxy_metrics.prompt_tokens.set(row.tokens, row.result)
        is_readable = True
    if app.journal.name is not None:
        proxy_metrics.journal_up.set(is_readable and app.journal.failure is None)
    await app.measure_clients()
    store = app.cache.store
    entries = None
    with contextlib.suppress(CacheStoreError):
        entries = await asyncio.to_thread(store.count)
    proxy_metrics.entries.set(entries)
    proxy_metrics.store_up.set(await asyncio.to_thread(store.database.failure) is None)
    return Response(proxy_metrics.render(), media_type="text/plain; version=0.0.4; charset=utf-8")


async def openapi(request: Request) -> Response:
    """Return the OpenAPI document."""
    await request.app.state.admin.load()
    return JSONResponse(await asyncio.to_thread(_document, request))


def _document(request: Request) -> dict[str, object]:
    # Imports FastAPI.
    from kvproxy.http.openapi import document_of_proxy

    return document_of_proxy(request.app.routes, services(request))


def _ledger_rows(reader: JournalReader) -> list[LedgerRow]:
    return SessionReader(reader, {}).ledger("", reads_records=False).rows


async def forward_unparsed(request: Request) -> Response:
    """Forward a request of an uncached API to the upstream, without parsing it."""
    has_body = "content-length" in request.headers or "transfer-encoding" in request.headers
    check_path(request)
    app, exchange = services(request), exchange_of(request.scope)
    limits = app.settings.limits
    if app.backend.forwarder is not None:
        check_route(request, exchange, app.settings.access)
    if has_body and reads_model(request, exchange, limits.body_bytes, routes_by_model=app.routes_by_model):
        with app.bodies.reservation() as reservation:
            # The body names the model, which chooses the upstream, and which a client may lack.
            return await _forward(
                request, await read_body(request, limits.body_bytes, limits.body_seconds, reservation)
            )
    return await _forward(request, None if has_body else b"")


async def _forward(request: Request, body: bytes | None) -> Response:
    forwarder = services(request).backend.forwarder
    _warn_if_uncached(request)
    if forwarder is None:
        hint = "the embedded engine has the routes of GET /openapi.json"
        if not request.scope["path"].startswith("/v1/"):
            hint = "the API is below /v1, the dashboard at /ui"
        raise NotFound(f"no route {request.method} {request.scope['path']}: {hint}")
    app = services(request)
    model = check_model_of_body(request, exchange_of(request.scope), body)
    deadline = Deadline(app.deadlines)
    await app.path.load.enter(exchange_of(request.scope))
    query = query_of(request)
    raw_path: bytes = request.scope["raw_path"]
    if raw_path.startswith(_DOUBLED):
        # The client's base URL ends in /v1, and the client adds another.
        raw_path = raw_path.removeprefix(b"/v1")
    path = raw_path.decode("latin-1") + (f"?{query}" if query else "")
    spending = await _start_charge(request, body, model)
    upload_done = asyncio.Event()
    if body is not None:
        upload_done.set()
    # During the upload, only the upload reads from the client, and notices a disconnection.
    sent = stream_upload(request, upload_done, app.settings.limits.body_seconds) if body is None else body
    if spending is not None:
        sent = spending.charge_upload(sent)
    exchange_of(request.scope).layer = "bypass"
    delivery = exchange_of(request.scope).unread_delivery = Delivery()
    forwarding = forwarder.forward(request.method, path, request.headers, sent, _tenant(request), delivery=delivery)
    try:
        reply = await deadline.cancel_when_over(request.receive, forwarding, upload_done)
    except BaseException as error:
        if spending is not None:
            spending.refund(error)
        raise
    if request.method == "DELETE":
        await _remove_deleted(request, reply)
    elif request.method == "GET" and request.scope["path"] in _MODELS:
        # Not those of other routes, which may be logins.
        app.tenants.record_cookies(_tenant(request), reply.headers)
    if spending is not None:
        reply = spending.charge_response(reply)
    last_event = partial(_last_event, request)
    headers = [*reply.headers, BYPASS]
    return RelayResponse(reply.chunks, reply.status, headers, reply.close, deadline, last_event, upload_done)


async def _remove_deleted(request: Request, reply: RelayedResponse) -> None:
    """Remove stored responses that name an object which the upstream has deleted."""
    app, path = services(request), request.scope["path"]
    is_deleted = 200 <= reply.status < 300
    if not is_deleted and reply.status not in _GONE:
        return
    try:
        # A client could name an object of another tenant, which the upstream does not find.
        removed = await remove_responses(app.cache, path, None if is_deleted else _tenant(request))
    except CacheStoreError as error:
        await reply.close()
        raise StoreUnavailable(
            f"the upstream deleted {path}, but responses made with it may still be stored ({error}): repeat the request"
        ) from None
    if removed:
        _log.info("removed %d stored responses, because a client deleted %s", removed, path)


def _tenant(request: Request) -> str:
    client = exchange_of(request.scope).client
    return services(request).tenants.tenant_of(joined_headers(request), None if client is None else client.tenant)


def _warn_if_uncached(request: Request) -> None:
    """Log once that a path is not cached, although it ends like the path of a cached API."""
    path, warned = request.scope["path"], services(request).uncached_paths
    is_other = path.startswith("/v1/") or path in PATHS or not path.lower().endswith(_TAILS)
    if request.method != "POST" or is_other or path in warned or len(warned) >= _MAX_WARNINGS:
        return
    warned.add(path)
    base = f"{request.base_url}".rstrip("/") + ("" if path.endswith("/messages") else "/v1")
    _log.warning("POST %s is forwarded, and not cached: set the client's base URL to %s", path[:200], base)


async def _start_charge(request: Request, body: bytes | None, model: str | None) -> UnparsedRequestCharge | None:
    exchange = exchange_of(request.scope)
    account = exchange.account
    if account is None or (body == b"" and request.method in _READING):
        return None
    length = request.headers.get("content-length", "")
    announced = int(length[:15]) if length.isdecimal() else 0
    sent = announced if body is None else len(body)
    # Providers count tokens for free.
    path = request.scope["path"]
    paid = None if path.endswith("/count_tokens") else model
    # A body with a model is JSON.
    output = 0 if paid is None or account.prices is None else most_output_tokens(path, as_object(loads(body or b"{}")))
    charge = UnparsedRequestCharge(exchange, account, sent, services(request).usage_log, paid, output)
    await charge.reserve()
    return charge


ROUTES = [
    *(Route(path, CachedApi(api), methods=["POST"], include_in_schema=path == api.path) for path, api in PATHS.items()),
    *(
        Route(f"{path}/count_tokens", count_tokens, methods=["POST"], include_in_schema=path == MESSAGES.path)
        for path, api in PATHS.items()
        if api is MESSAGES
    ),
    *(Route(path, models, methods=["GET"], include_in_schema=path == "/v1/models") for path in _MODELS),
    *(Route(f"{path}/{{name:path}}", model, methods=["GET"], include_in_schema=False) for path in _MODELS),
    Route("/tokenize", tokenize, methods=["POST"]),
    Route("/detokenize", detokenize, methods=["POST"]),
    Route("/health", health, methods=["GET"]),
    Route("/ready", ready, methods=["GET"]),
    Route("/metrics", metrics, methods=["GET"]),
    Route(DOCUMENT_PATH, openapi, methods=["GET"]),
]
EVERY_METHOD = ["GET", "POST", "PUT", "PATCH", "DELETE", "HEAD", "OPTIONS"]
CATCH_ALL = Route("/{path:path}", forward_unparsed, methods=EVERY_METHOD, include_in_schema=False)
