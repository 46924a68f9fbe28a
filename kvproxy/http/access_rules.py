"""Access rules for web pages and for the operator."""

import hmac
import logging
from collections.abc import Awaitable, Callable, Collection, Mapping
from functools import cached_property, lru_cache
from ipaddress import ip_address
from urllib.parse import parse_qsl, urlencode

from starlette.requests import Request
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from kvproxy.apis.request_directives import ADMIN_TOKEN_HEADER
from kvproxy.errors import Forbidden, KvproxyError, Overloaded, Unauthorized, UpstreamError, UpstreamsDraining
from kvproxy.http.admin_sessions import SESSION_HEADER, AdminSessions
from kvproxy.http.error_responses import error_response
from kvproxy.http.exchange_middleware import is_proxy_path
from kvproxy.http.page_isolation import CLEAR_STORAGE, isolate_response, requests_worker
from kvproxy.http.request_bodies import query_of
from kvproxy.index.pending_writes import PendingWrites
from kvproxy.settings import Settings
from kvproxy.settings.access import is_loopback

# Behind a local reverse proxy, every request comes from loopback. It adds one of these headers.
_PROXIED = ("forwarded", "via", "x-real-ip", "x-original-forwarded-for")
_BROWSER_HEADERS = ("accept-language", "sec-fetch-site", "sec-fetch-mode", "origin", "referer")
_READ_METHODS = ("GET", "HEAD")
_READ_ONLY_POST = "/admin/explain"
_WAIT_SECONDS = 5.0
"""Maximum wait for the response cache's pending writes, so that a blocked store does not block admin routes."""
# These suffixes cannot be registered (RFC 2606, 6761, 6762, 8375), so DNS rebinding cannot use them.
_PRIVATE_NAMES = (".localhost", ".local", ".internal", ".localdomain", ".lan", ".home.arpa", ".test", ".invalid")
_WRONG_TOKEN = "the given token is not the admin token: check --token or KVPROXY_ADMIN_TOKEN"
_NO_TOKEN = (
    "this needs the admin token: give commands --token or KVPROXY_ADMIN_TOKEN; HTTP clients send it as a bearer token"
)
_METRICS_HINT = "; for Prometheus, set metrics_token (KVPROXY_METRICS_TOKEN), which opens only /metrics"
_ENDED_SESSION = "the session of the dashboard is over: enter the admin token again"
_SET_TOKEN = "set admin_token and send it as a bearer token"
_log = logging.getLogger("kvproxy")
_admin_log = logging.getLogger("kvproxy.admin")


class AccessRules:
    """Checks requests. A check returns the error to send, or None to allow the request."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._behind_proxy = False

    @cached_property
    def sessions(self) -> AdminSessions | None:
        """Sessions of the dashboard; None without an admin token."""
        return None if self._settings.admin_token is None else AdminSessions(self._settings.admin_token)

    def use_tokens(self, settings: Settings) -> None:
        """Use the tokens of changed settings. A changed admin token ends the sessions of the dashboard."""
        tokens = {"admin_token": settings.admin_token, "metrics_token": settings.metrics_token}
        if settings.admin_token != self._settings.admin_token:
            self.__dict__.pop("sessions", None)
        self._settings = self._settings.model_copy(update=tokens)

    def check_page(self, request: Request, headers: Mapping[str, str]) -> KvproxyError | None:
        """Reject requests by web pages of other origins, and requests to a public host name that `access.hosts` does not list.

        An unlisted name may be DNS rebinding: an attacker's page whose host name resolves to the proxy.
        """
        allowed = self._settings.access
        self._detect_reverse_proxy(request, headers)
        if requests_worker(headers):
            return Forbidden("this proxy serves no scripts of workers: use the upstream's own URL for its web pages")
        host = headers.get("host", "")
        name = host_of(host)
        may_be_rebound = is_loopback(self._settings.host) and _may_be_browser(headers)
        if name not in allowed.hosts and is_public_name(name, for_browser=may_be_rebound):
            return Forbidden(f"this proxy is not known by the name {name[:80]!r}: add it to the setting access.hosts")
        origin = headers.get("origin")
        if origin is not None:
            if not _same_origin(origin, host) and not {origin, "*"} & set(allowed.origins):
                return Forbidden(
                    f"pages of {origin[:80]!r} may not use this proxy: add it to the setting access.origins"
                )
            return None
        # Browsers send navigation and embedded content without an origin.
        followed = headers.get("sec-fetch-mode") == "navigate" and request.method in _READ_METHODS
        if _is_cross_origin(headers) and not followed and "*" not in allowed.origins:
            return Forbidden("pages of another origin may not use this proxy: add theirs to the setting access.origins")
        return None

    @property
    def requires_token(self) -> bool:
        """Whether the operator must send the admin token from each machine, also from this one."""
        return self._settings.admin_token is not None or not is_loopback(self._settings.host) or self._behind_proxy

    def check_operator(self, request: Request) -> KvproxyError | None:
        """Require the admin token, or a direct request from this machine if `admin_token` is not set."""
        settings = self._settings
        if settings.admin_token is not None:
            tokens = _tokens_in_request(request)
            if self._has_session(request):
                return None
            if any(_tokens_match(given, settings.admin_token) for given in tokens):
                return None
            if not tokens and SESSION_HEADER in request.headers:
                return Unauthorized(_ENDED_SESSION)
            return Unauthorized(_WRONG_TOKEN if tokens else _NO_TOKEN)
        if not is_loopback(settings.host):
            return Unauthorized(f"admin routes are closed beyond loopback: {_SET_TOKEN}")
        headers = _header_values(request)
        self._detect_reverse_proxy(request, headers)
        if self._behind_proxy:
            return Forbidden(f"admin routes are closed behind a reverse proxy: {_SET_TOKEN}")
        if _is_cross_origin(headers) or not is_loopback(host_of(headers.get("host", ""))):
            return Unauthorized(f"admin routes take no requests of other web pages or by other names: {_SET_TOKEN}")
        return None

    def check_metrics(self, request: Request) -> KvproxyError | None:
        """Require the metrics token, or what `check_operator` requires."""
        token = self._settings.metrics_token
        if token is not None and any(_tokens_match(given, token) for given in _tokens_in_request(request)):
            return None
        refused = self.check_operator(request)
        return None if refused is None else type(refused)(f"{refused.message}{_METRICS_HINT}")

    def _has_session(self, request: Request) -> bool:
        proof, sessions = request.headers.get(SESSION_HEADER), self.sessions
        if proof is None or sessions is None or _is_cross_origin(request.headers):
            return False
        return sessions.is_valid(request.cookies, proof)

    def visible_error(self, request: Request, error: KvproxyError) -> KvproxyError:
        """Return the error to send: only the operator sees the address of an upstream, and commands."""
        if not isinstance(error, UpstreamError | UpstreamsDraining) or self.check_operator(request) is None:
            return error
        if isinstance(error, UpstreamsDraining):
            message = f"{error.cause}: send the request again later, or ask the operator"
            return Overloaded(message, retry_after=error.retry_after)
        return type(error)(
            "the upstream failed: kvproxy upstreams shows the operator why", retry_after=error.retry_after
        )

    def _detect_reverse_proxy(self, request: Request, headers: Mapping[str, str]) -> None:
        if not self._behind_proxy and _is_forwarded(request, headers):
            self._behind_proxy = True
            if self._settings.admin_token is None:
                _log.warning(
                    "a reverse proxy forwards requests: admin routes stay closed without the setting admin_token"
                )


def _header_values(request: Request) -> dict[str, str]:
    """Return the first value of each header. Starlette searches all headers for each value."""
    return {name.decode("latin-1"): value.decode("latin-1") for name, value in reversed(request.scope["headers"])}


def _is_forwarded(request: Request, headers: Mapping[str, str]) -> bool:
    named = any(name.startswith("x-forwarded-") or name in _PROXIED for name in headers)
    return named or request.scope["http_version"] == "1.0"


def _is_cross_origin(headers: Mapping[str, str]) -> bool:
    origin = headers.get("origin")
    foreign = headers.get("sec-fetch-site") in ("cross-site", "same-site")
    return foreign or (origin is not None and not _same_origin(origin, headers.get("host", "")))


def _may_be_browser(headers: Mapping[str, str]) -> bool:
    """Whether a browser may have sent a request. A page can change the values of these headers, but cannot omit them all."""
    return any(name in headers for name in _BROWSER_HEADERS) or headers.get("user-agent", "").startswith("Mozilla/")


def _same_origin(origin: str, host: str) -> bool:
    _, separator, authority = origin.lower().partition("://")
    return bool(separator) and authority == host.lower()


def _tokens_in_request(request: Request) -> list[str]:
    scheme, _, token = request.headers.get("authorization", "").partition(" ")
    own = request.headers.get(ADMIN_TOKEN_HEADER)
    bearer = [token.strip()] if scheme.lower() == "bearer" else []
    return bearer if own is None else [own, *bearer]


def _tokens_match(given: str, expected: str) -> bool:
    # Headers are latin-1 text. The comparison takes constant time.
    return hmac.compare_digest(given.encode("latin-1", "replace"), expected.encode())


class PageGuard:
    """ASGI middleware that refuses requests of foreign web pages and workers, and isolates the web pages of upstreams."""

    def __init__(self, app: ASGIApp, access: AccessRules) -> None:
        self._app = app
        self._access = access

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        request = Request(scope)
        headers = _header_values(request)
        refused = self._access.check_page(request, headers)
        if refused is not None:
            response = error_response(refused, scope)
            if requests_worker(headers):
                # Browsers request the script of a registered worker again before they use it for long.
                response.headers.update(CLEAR_STORAGE)
            await response(scope, receive, send)
            return

        async def send_isolated(message: Message) -> None:
            if message["type"] == "http.response.start":
                message = {**message, "headers": isolate_response(message["headers"], headers)}
            await send(message)

        await self._app(scope, receive, send if is_proxy_path(scope["path"]) else send_isolated)


class AdminGuard:
    """Requires the operator for admin routes, and logs requests that may change data.

    A request waits for pending writes first, so that it lists every response that a client has received. The log leaves out
    query parameters whose names `parameters` does not return: their values may be secrets.
    """

    def __init__(
        self,
        app: ASGIApp,
        access: AccessRules,
        writes: PendingWrites,
        parameters: Callable[[], Awaitable[Collection[str]]],
    ) -> None:
        self._app = app
        self._parameters = parameters
        self._access = access
        self._writes = writes

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        request = Request(scope)

        async def send_logged(message: Message) -> None:
            if message["type"] == "http.response.start":
                await self._log_change(request, message["status"])
            await send(message)

        refused = self._access.check_operator(request)
        if refused is None:
            await self._writes.wait_for_all(_WAIT_SECONDS)
        await (self._app if refused is None else error_response(refused, scope))(scope, receive, send_logged)

    async def _log_change(self, request: Request, status: int) -> None:
        path: str = request.scope["path"]
        if request.method not in _READ_METHODS and path != _READ_ONLY_POST:
            client = request.client.host if request.client is not None else "?"
            query = await self._known_query(request)
            _admin_log.info("%s %s%s from %s: %s", request.method, path, query, client, status)

    async def _known_query(self, request: Request) -> str:
        values = parse_qsl(query_of(request), keep_blank_values=True)
        names = await self._parameters() if values else ()
        known = [(name, value) for name, value in values if name in names]
        return f"?{urlencode(known)}" if known else ""


@lru_cache(maxsize=256)
def is_public_name(host: str, *, for_browser: bool = False) -> bool:
    """Whether somebody else may decide to which address a host name resolves (DNS rebinding).

    `for_browser` includes names for which any machine of the network can answer: without a dot, and of `.local` (mDNS, LLMNR).
    """
    try:
        ip_address(host)
    except ValueError:
        name = host.rstrip(".").lower()
        if name == "localhost" or name.endswith(".localhost"):
            return False
        if for_browser and ("." not in name or name.endswith(".local")):
            return True
        # A country may give its top-level domain an address.
        return not name.endswith(_PRIVATE_NAMES) if "." in name else len(name) == 2 or name.startswith("xn--")
    return False


def host_of(authority: str) -> str:
    if authority.startswith("["):
        return authority[1:].partition("]")[0]
    return authority.partition(":")[0].lower()
