"""Responses for errors, in the format of the API to which the path belongs."""

import math
from collections.abc import Callable, Coroutine
from typing import Any, TypeAlias

from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import BaseRoute, Match, Route
from starlette.types import Scope

from kvproxy.apis import is_messages_path
from kvproxy.apis.api import openai_error
from kvproxy.apis.json import JsonObject
from kvproxy.apis.messages import anthropic_error
from kvproxy.apis.sse import encode_event
from kvproxy.errors import KvproxyError
from kvproxy.http.content_encoding import CODINGS
from kvproxy.http.exchange_middleware import request_id_of

ErrorHandler: TypeAlias = Callable[[Request, Exception], Coroutine[Any, Any, Response]]
# Headers that RFC 9110 requires with a status.
_HEADERS = {415: ("accept-encoding", ", ".join(CODINGS)), 426: ("upgrade", "HTTP/1.1")}


def error_response(error: KvproxyError, scope: Scope) -> Response:
    return JSONResponse(error_body(error, scope["path"], request_id_of(scope)), error.status, error_headers(error))


def error_headers(error: KvproxyError) -> dict[str, str]:
    headers = dict([_HEADERS[error.status]] if error.status in _HEADERS else [])
    if error.retry_after is not None:
        headers["retry-after"] = str(math.ceil(error.retry_after))
    if not error.is_retryable:
        # The SDKs of OpenAI and Anthropic retry some statuses without this header.
        headers["x-should-retry"] = "false"
    return headers


def error_event(error: KvproxyError, scope: Scope) -> bytes:
    return encode_event(error_body(error, scope["path"], request_id_of(scope)), "error")


def error_body(error: KvproxyError, path: str, request_id: str | None = None) -> JsonObject:
    """Return an error in Anthropic's format for `/v1/messages` and the routes below it, otherwise in OpenAI's."""
    return anthropic_error(error, request_id) if is_messages_path(path) else openai_error(error)


def refuse_wrong_method(request: Request) -> None:
    """Raise an HTTPException if the path has a route, but not with this method."""
    routes: list[BaseRoute] = request.app.routes
    found = [route for route in routes if isinstance(route, Route) and route.matches(request.scope)[0] is Match.PARTIAL]
    if methods := ", ".join(sorted({method for route in found for method in route.methods or ()})):
        raise HTTPException(405, f"the methods of this route are {methods}", {"allow": methods})
