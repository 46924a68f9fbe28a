"""Pinned chains."""

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from kvproxy.apis import APIS, by_name
from kvproxy.errors import InvalidRequest, NotFound
from kvproxy.http.admin.replies import reply
from kvproxy.http.bodies import api_request, whole_body
from kvproxy.http.services import services


async def pins(request: Request) -> Response:
    """Pins with their blocks and remaining seconds."""
    return reply(await services(request).prefix.pins())


async def pin(request: Request) -> Response:
    """Pin the cached blocks of a prompt, or of the chain `&leaf=HASH`: `?name=NAME&ttl=SECONDS`.

    The body is a request to the API `&api=NAME` (default: chat). At a mirrored upstream the whole prompt is pinned: it is
    computed again after its eviction.
    """
    app, query = services(request), request.query_params
    name, leaf = query.get("name"), query.get("leaf")
    if not name:
        raise InvalidRequest("a pin requires a name: add ?name=NAME", param="name")
    ttl = _seconds(query.get("ttl"))
    asked = None
    if not leaf:
        raw = await whole_body(request, app.settings.limits.body_bytes)
        api = by_name(query.get("api", "chat"))
        if api is None:
            raise InvalidRequest(f"api is one of {', '.join(APIS)}, not {query['api'][:40]!r}", param="api")
        asked = await api_request(request, api, raw, app.settings, check=True)
    tokens = await app.prefix.pin(name, ttl, asked, leaf)
    if tokens == 0:
        raise NotFound("nothing of this prompt is cached: send it once, then pin it")
    return reply({"name": name, "tokens": tokens, "ttl": ttl})


def _seconds(text: str | None) -> float | None:
    if text is None:
        return None
    try:
        value = float(text)
    except ValueError:
        value = 0.0
    if not 0 < value < float("inf"):
        raise InvalidRequest(f"ttl is a number of seconds above 0, not {text[:40]!r}", param="ttl")
    return value


async def unpin(request: Request) -> Response:
    """Unpin blocks."""
    name: str = request.path_params["name"]
    if not await services(request).prefix.unpin(name):
        raise NotFound(f"no pin {name[:80]!r}: blocks pins lists them")
    return reply({"unpinned": name})


ROUTES = [
    Route("/blocks/pins", pins, methods=["GET"]),
    Route("/blocks/pins", pin, methods=["POST"]),
    Route("/blocks/pins/{name}", unpin, methods=["DELETE"]),
]
