"""Sign-in of the dashboard: exchanges the admin token for a session."""

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from kvproxy.errors import InvalidRequest
from kvproxy.http.admin.replies import reply
from kvproxy.http.admin_sessions import SESSION_SECONDS, AdminSessions
from kvproxy.http.services import services


async def sign_in(request: Request) -> Response:
    """Begin a session of the dashboard: set its cookie, and return the value of `x-kvproxy-session`."""
    sessions = _sessions(request)
    session = sessions.begin(request.cookies)
    response = reply({"session": session.proof, "seconds": SESSION_SECONDS}, {"cache-control": "no-store"})
    _set_cookie(request, response, sessions.cookie_name, session.cookie, SESSION_SECONDS)
    return response


async def sign_out(request: Request) -> Response:
    """End the session of the dashboard in this browser."""
    response = reply({})
    _set_cookie(request, response, _sessions(request).cookie_name, "", 0)
    return response


def _set_cookie(request: Request, response: Response, name: str, value: str, seconds: int) -> None:
    # Without a path, the cookie is limited to the admin routes, also under a path of a reverse proxy.
    is_secure = request.scope["scheme"] == "https" or request.headers.get("origin", "").startswith("https:")
    response.set_cookie(name, value, max_age=seconds, path=None, secure=is_secure, httponly=True, samesite="strict")


def _sessions(request: Request) -> AdminSessions:
    sessions = services(request).access.sessions
    if sessions is None:
        raise InvalidRequest("admin_token is not set, so the dashboard needs no session")
    return sessions


ROUTES = [Route("/session", sign_in, methods=["POST"]), Route("/session", sign_out, methods=["DELETE"])]
