"""Reads the body of admin requests, and writes JSON."""

from dataclasses import replace

from starlette.requests import Request
from starlette.responses import Response

from kvproxy.apis import APIS
from kvproxy.apis.api_request import ApiRequest
from kvproxy.apis.json import dumps
from kvproxy.http.admin_sessions import SESSION_HEADER
from kvproxy.http.request_bodies import decode_body, read_api_request, read_body
from kvproxy.http.services import services


def reply(value: object, headers: dict[str, str] | None = None) -> Response:
    """Return a JSON response; the value may contain dataclasses."""
    return Response(dumps(value), media_type="application/json", headers=headers)


async def read_request(request: Request, api_name: str) -> ApiRequest:
    """Read a request in the format of an API."""
    api = APIS[api_name]
    app = services(request)
    limit = app.settings.limits.body_bytes
    raw = await decode_body(request, await read_body(request, limit), limit)
    if SESSION_HEADER in request.headers:
        # The cookies belong to the dashboard, not to a tenant.
        headers = [header for header in request.scope["headers"] if header[0] != b"cookie"]
        request = Request({**request.scope, "headers": headers}, request.receive)
    # The query belongs to the admin route.
    return replace(await read_api_request(request, api, raw, app.tenants, check_fields=True), query="", path="")
