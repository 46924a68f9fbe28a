"""Who may use the admin routes: one middleware in front of all of them."""

import hmac
from ipaddress import ip_address

from starlette.requests import Request
from starlette.responses import JSONResponse
from starlette.types import ASGIApp, Receive, Scope, Send

from kvproxy.apis.api import openai_error
from kvproxy.apis.control import ADMIN_TOKEN
from kvproxy.errors import Unauthorized
from kvproxy.settings import Settings


class Guard:
    """Admin routes are open on loopback; beyond it, or where a token is set, they need the token.

    Web pages are turned away on loopback too, also those that reach it under a name of their own.
    """

    def __init__(self, app: ASGIApp, settings: Settings) -> None:
        self._app = app
        self._settings = settings

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        refused = self._refusal(Request(scope)) if scope["type"] == "http" else None
        if refused is not None:
            await JSONResponse(openai_error(refused), refused.status)(scope, receive, send)
            return
        await self._app(scope, receive, send)

    def _refusal(self, request: Request) -> Unauthorized | None:
        settings = self._settings
        if settings.admin_token is not None:
            if any(_equal(given, settings.admin_token) for given in _tokens(request)):
                return None
            return Unauthorized("this route needs the admin token: send Authorization: Bearer TOKEN")
        if not is_loopback(settings.host):
            return Unauthorized(
                "admin routes are closed beyond loopback: set admin_token and send it as a bearer token"
            )
        if "origin" in request.headers or not is_loopback(request.url.hostname or ""):
            return Unauthorized(
                "admin routes take no requests of web pages or by other names: set admin_token to allow them"
            )
        return None


def is_loopback(host: str) -> bool:
    """Whether an address can be reached from this machine only."""
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def _tokens(request: Request) -> list[str]:
    """What a request gives as token: in our own header, or as a bearer token."""
    scheme, _, token = request.headers.get("authorization", "").partition(" ")
    own = request.headers.get(ADMIN_TOKEN)
    bearer = [token.strip()] if scheme.lower() == "bearer" else []
    return bearer if own is None else [own, *bearer]


def _equal(given: str, wanted: str) -> bool:
    # Headers are latin-1 text; the comparison takes the same time wherever they differ.
    return hmac.compare_digest(given.encode("latin-1", "replace"), wanted.encode())
