"""Admin routes of the tiers: what lies beyond the pool."""

from typing import cast, get_args

from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from kvproxy.engine.tiering import Models
from kvproxy.engine.worker import EngineWorker
from kvproxy.errors import InvalidRequest, NotFound
from kvproxy.proxy.admin import guard, own_engine


def _worker(request: Request) -> EngineWorker:
    return own_engine(request, "no blocks and no tiers")


async def tiers_list(request: Request) -> Response:
    """Figures of each tier, the fastest first."""
    return JSONResponse(_worker(request).tier_stats())


async def tiers_clear(request: Request) -> Response:
    """Drop a tier's chunks: `?models=own` (those of the model that runs, the default), `others` or `all`."""
    worker, name = _worker(request), request.path_params["name"]
    models = request.query_params.get("models", "own")
    if models not in get_args(Models):
        raise InvalidRequest(f"models is own, others or all, not {models!r}", param="models")
    cleared = await worker.clear_tier(name, cast("Models", models))
    if cleared is None:
        known = ", ".join(row["name"] for row in worker.tier_stats())
        there = f"this proxy has {known}" if known else "serve with --tier-host, --tier-disk or --tier-redis"
        raise NotFound(f"no tier {name!r}: {there}")
    return JSONResponse({"tier": name, "models": models, "cleared": cleared})


ROUTES = [
    Route("/admin/blocks/tiers", guard(tiers_list), methods=["GET"]),
    Route("/admin/blocks/tiers/{name}", guard(tiers_clear), methods=["DELETE"]),
]
