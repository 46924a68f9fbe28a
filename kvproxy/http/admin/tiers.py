"""The tiers beyond the GPU pool."""

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from kvproxy.errors import NotFound
from kvproxy.http.admin.replies import reply
from kvproxy.http.services import services


async def tiers(request: Request) -> Response:
    """Figures of each tier, the fastest first."""
    return reply(await services(request).prefix.tiers())


async def clear(request: Request) -> Response:
    """Delete the chunks of a tier: `?models=own` (the running model, default), `others`, or `all`."""
    prefix, name = services(request).prefix, request.path_params["name"]
    models = request.query_params.get("models", "own")
    cleared = await prefix.clear_tier(name, models)
    if cleared is None:
        known = ", ".join(row.name for row in await prefix.tiers())
        there = f"this proxy has {known}" if known else "serve with --tier-host, --tier-disk or --tier-redis"
        raise NotFound(f"no tier {name!r}: {there}")
    return reply({"tier": name, "models": models, "cleared": cleared})


ROUTES = [
    Route("/blocks/tiers", tiers, methods=["GET"]),
    Route("/blocks/tiers/{name}", clear, methods=["DELETE"]),
]
