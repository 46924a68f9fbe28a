"""Prediction of a request's path through the caches."""

from dataclasses import replace

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from kvproxy.apis import APIS, by_name
from kvproxy.errors import InvalidRequest
from kvproxy.flow.explain import explain
from kvproxy.http.admin.replies import reply
from kvproxy.http.bodies import api_request, whole_body
from kvproxy.http.services import services


async def explain_request(request: Request) -> Response:
    """Predict which layer answers a request, and explain why earlier layers do not.

    The body is a request to the API `api` (default: chat), with the credentials of its client.
    """
    app = services(request)
    name = request.query_params.get("api", "chat")
    api = by_name(name)
    if api is None:
        raise InvalidRequest(f"no API {name[:40]!r}: api is one of {', '.join(APIS)}", param="api")
    raw = await whole_body(request, app.settings.limits.body_bytes)
    # The query belongs to this route, not to the explained request.
    asked = replace(await api_request(request, api, raw, app.settings, check=True), query="")
    return reply(await explain(app.answerer, app.prefix, app.apply_rules(asked)))


ROUTES = [Route("/explain", explain_request, methods=["POST"])]
