"""Access rules for web pages and for the operator. A check returns the error to send, or None to allow the request."""

import hmac
import logging
from urllib.parse import urlsplit

from starlette.requests import Request

from kvproxy.apis.request_directives import ADMIN_TOKEN_HEADER
from kvproxy.errors import Forbidden, KvproxyError, Unauthorized
from kvproxy.http.access.host_names import host_of, is_loopback, is_public_name
from kvproxy.settings import Settings

# Behind a local reverse proxy, every request comes from loopback. It adds one of these headers.
_PROXIED = ("forwarded", "via", "x-real-ip", "x-original-forwarded-for")
READ_METHODS = ("GET", "HEAD")
_log = logging.getLogger("kvproxy")


class AccessRules:
    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._behind_proxy = False

    def check_page(self, request: Request) -> KvproxyError | None:
        """Reject web pages of other origins, and public host names that `access.hosts` does not list.

        An unlisted name indicates DNS rebinding: a page's host name resolves to the proxy, so both have the same
        origin.
        """
        self._detect_reverse_proxy(request)
        headers, allowed = request.headers, self._settings.access
        host = headers.get("host", "")
        name = host_of(host)
        if is_public_name(name) and name not in allowed.hosts:
            return Forbidden(f"this proxy is not known by the name {name[:80]!r}: add it to the setting access.hosts")
        origin = headers.get("origin")
        if origin is not None:
            if not _same_origin(origin, host) and not {origin, "*"} & set(allowed.origins):
                return Forbidden(
                    f"pages of {origin[:80]!r} may not use this proxy: add it to the setting access.origins"
                )
            return None
        # Browsers send navigation and embedded content without an origin.
        followed = headers.get("sec-fetch-mode") == "navigate" and request.method in READ_METHODS
        if _is_foreign(request) and not followed and "*" not in allowed.origins:
            return Forbidden("pages of another origin may not use this proxy: add theirs to the setting access.origins")
        return None

    def check_operator(self, request: Request) -> KvproxyError | None:
        """Require the admin token, or a direct request from this machine if `admin_token` is not set."""
        settings = self._settings
        if settings.admin_token is not None:
            tokens = _given_tokens(request)
            if any(_tokens_match(given, settings.admin_token) for given in tokens):
                return None
            if tokens:
                return Unauthorized("the given token is not the admin token: check --token or KVPROXY_ADMIN_TOKEN")
            return Unauthorized(
                "this route needs the admin token: send Authorization: Bearer TOKEN; commands read KVPROXY_ADMIN_TOKEN"
            )
        if not is_loopback(settings.host):
            return Unauthorized(
                "admin routes are closed beyond loopback: set admin_token and send it as a bearer token"
            )
        self._detect_reverse_proxy(request)
        if self._behind_proxy:
            return Forbidden(
                "admin routes are closed behind a reverse proxy: set admin_token and send it as a bearer token"
            )
        if _is_foreign(request) or not is_loopback(request.url.hostname or ""):
            return Unauthorized(
                "admin routes take no requests of other web pages or by other names: set admin_token to allow them"
            )
        return None

    def _detect_reverse_proxy(self, request: Request) -> None:
        if not self._behind_proxy and _is_forwarded(request):
            self._behind_proxy = True
            if self._settings.admin_token is None:
                _log.warning(
                    "a reverse proxy forwards requests: admin routes stay closed without the setting admin_token"
                )


def _is_forwarded(request: Request) -> bool:
    named = any(name in _PROXIED or name.startswith("x-forwarded-") for name in request.headers)
    return named or request.scope["http_version"] == "1.0"


def _is_foreign(request: Request) -> bool:
    origin = request.headers.get("origin")
    foreign = request.headers.get("sec-fetch-site") in ("cross-site", "same-site")
    return foreign or (origin is not None and not _same_origin(origin, request.headers.get("host", "")))


def _same_origin(origin: str, host: str) -> bool:
    return urlsplit(origin).netloc.lower() == host.lower() and origin != "null"


def _given_tokens(request: Request) -> list[str]:
    scheme, _, token = request.headers.get("authorization", "").partition(" ")
    own = request.headers.get(ADMIN_TOKEN_HEADER)
    bearer = [token.strip()] if scheme.lower() == "bearer" else []
    return bearer if own is None else [own, *bearer]


def _tokens_match(given: str, expected: str) -> bool:
    # Headers are latin-1 text. The comparison takes constant time.
    return hmac.compare_digest(given.encode("latin-1", "replace"), expected.encode())
