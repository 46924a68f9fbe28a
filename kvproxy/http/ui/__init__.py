"""Serves the static files of the dashboard, which reads its data from the admin routes."""

from pathlib import Path

from starlette.datastructures import Headers
from starlette.requests import Request
from starlette.responses import RedirectResponse, Response
from starlette.routing import BaseRoute, Mount, Route
from starlette.staticfiles import StaticFiles
from starlette.types import ASGIApp, Receive, Scope, Send

from kvproxy.http.page_isolation import CLEAR_STORAGE

# Allow own scripts and styles only, and forbid frames and the injection of HTML.
_HEADERS = {
    "content-security-policy": "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self';"
    " worker-src 'none';"
    " base-uri 'none'; form-action 'none'; frame-ancestors 'none'; require-trusted-types-for 'script'; trusted-types 'none'",
    "x-content-type-options": "nosniff",
    "referrer-policy": "same-origin",
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
    # Browsers must revalidate files, because an upgrade may change them.
    "cache-control": "no-cache",
}


_CLEARED_COOKIE = "kvproxy-cleared"
_YEAR = 365 * 86400


class _PageFiles(StaticFiles):
    async def get_response(self, path: str, scope: Scope) -> Response:
        request, response = Request(scope), await super().get_response(path, scope)
        response.headers.update(_HEADERS)
        # Servers on one host share their cookies.
        port = request.headers.get("host", "").rpartition(":")[2]
        cookie = f"{_CLEARED_COOKIE}-{port if port.isdecimal() else 0}"
        if response.media_type == "text/html" and cookie not in request.cookies:
            # Another server at this address may have registered a worker. The cookie keeps the chosen theme afterwards.
            response.headers.update(CLEAR_STORAGE)
            response.set_cookie(cookie, "1", max_age=_YEAR, path=None, httponly=True, samesite="strict")
        return response


async def _redirect(request: Request) -> Response:
    return RedirectResponse("ui/", status_code=308)


class BrowserRedirect:
    """ASGI middleware that redirects browsers from `/` to the dashboard, also without an API key."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        is_root = scope["type"] == "http" and scope["path"] == "/" and scope["method"] in ("GET", "HEAD")
        if is_root and "text/html" in Headers(scope=scope).get("accept", ""):
            # Relative, because a reverse proxy may serve this one under a path.
            await RedirectResponse("ui/", status_code=307)(scope, receive, send)
        else:
            await self._app(scope, receive, send)


def routes() -> list[BaseRoute]:
    files = _PageFiles(directory=Path(__file__).parent / "static", html=True)
    return [Route("/ui", _redirect, methods=["GET"], include_in_schema=False), Mount("/ui", app=files)]
