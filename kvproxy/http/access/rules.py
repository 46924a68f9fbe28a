"""Who may do what: web pages, the operator, everybody else. Each check gives the error to answer with, or None."""

import hmac
import logging
from urllib.parse import urlsplit

from starlette.requests import Request

from kvproxy.apis.control import ADMIN_TOKEN
from kvproxy.errors import Forbidden, KvproxyError, Unauthorized
from kvproxy.http.access.hosts import host_of, is_loopback, is_public_name
from kvproxy.settings import Settings

# A reverse proxy on the same host makes everybody's requests come from loopback, and tells so.
_PROXIED = ("forwarded", "via", "x-real-ip", "x-original-forwarded-for")
_READING = ("GET", "HEAD")
_log = logging.getLogger("kvproxy")


class Access:
    """The rules of one proxy."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._behind_proxy = False

    def page(self, request: Request) -> KvproxyError | None:
        """Whether a request comes from a web page that may not send it.

        A page of another origin can do nothing. A name that anybody could register is refused too: a page served from it may
        have had it rebound to this machine, and would count as of the same origin.
        """
        self._notice_proxy(request)
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
        # Without an origin a browser sends links that are followed, and what a page only shows.
        foreign = headers.get("sec-fetch-site") in ("cross-site", "same-site")
        followed = headers.get("sec-fetch-mode") == "navigate" and request.method in _READING
        if foreign and not followed and "*" not in allowed.origins:
            return Forbidden("pages of another origin may not use this proxy: add theirs to the setting access.origins")
        return None

    def admin(self, request: Request) -> KvproxyError | None:
        """Whether a request may use the operator's routes: with the token, or from this machine where none is set."""
        settings = self._settings
        if settings.admin_token is not None:
            if any(_equal(given, settings.admin_token) for given in _tokens(request)):
                return None
            return Unauthorized("this route needs the admin token: send Authorization: Bearer TOKEN")
        if not is_loopback(settings.host):
            return Unauthorized(
                "admin routes are closed beyond loopback: set admin_token and send it as a bearer token"
            )
        self._notice_proxy(request)
        if self._behind_proxy:
            return Forbidden(
                "admin routes are closed behind a reverse proxy: set admin_token and send it as a bearer token"
            )
        if _foreign(request) or not is_loopback(request.url.hostname or ""):
            return Unauthorized(
                "admin routes take no requests of other web pages or by other names: set admin_token to allow them"
            )
        return None

    def _notice_proxy(self, request: Request) -> None:
        """Remember that a reverse proxy stands in front. From then on, no request is local because it lacks a header."""
        if not self._behind_proxy and _forwarded(request):
            self._behind_proxy = True
            if self._settings.admin_token is None:
                _log.warning(
                    "a reverse proxy forwards requests: admin routes stay closed without the setting admin_token"
                )


def _forwarded(request: Request) -> bool:
    """Whether a reverse proxy sent a request. Many of them speak HTTP/1.0 to their upstreams, and hardly any client does."""
    named = any(name in _PROXIED or name.startswith("x-forwarded-") for name in request.headers)
    return named or request.scope["http_version"] == "1.0"


def _foreign(request: Request) -> bool:
    """Whether a page of another origin sends a request, also one that may use the other routes."""
    origin = request.headers.get("origin")
    foreign = request.headers.get("sec-fetch-site") in ("cross-site", "same-site")
    return foreign or (origin is not None and not _same_origin(origin, request.headers.get("host", "")))


def _same_origin(origin: str, host: str) -> bool:
    return urlsplit(origin).netloc.lower() == host.lower() and origin != "null"


def _tokens(request: Request) -> list[str]:
    """What a request gives as token: in our own header, or as a bearer token."""
    scheme, _, token = request.headers.get("authorization", "").partition(" ")
    own = request.headers.get(ADMIN_TOKEN)
    bearer = [token.strip()] if scheme.lower() == "bearer" else []
    return bearer if own is None else [own, *bearer]


def _equal(given: str, wanted: str) -> bool:
    # Headers are latin-1 text; the comparison takes the same time wherever they differ.
    return hmac.compare_digest(given.encode("latin-1", "replace"), wanted.encode())
