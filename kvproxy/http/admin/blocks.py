"""The prefix cache: its blocks, their order of eviction, its chains and figures."""

import asyncio
from collections.abc import Sequence
from dataclasses import asdict

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from kvproxy.blocks.rows import BlockRow, ChainRow
from kvproxy.errors import NotFound
from kvproxy.http.admin.replies import flat, flat_content, number, reply
from kvproxy.http.services import services

_MOST_WAYS = 50
"""Each chain requires a text, which an upstream may have to decode."""


async def blocks(request: Request) -> Response:
    return await _rows(await services(request).prefix.blocks())


async def queue(request: Request) -> Response:
    return await _rows(await services(request).prefix.queue())


async def _rows(rows: Sequence[BlockRow | ChainRow]) -> Response:
    """Rows as JSON, in a thread: a large pool would block the event loop."""
    return await asyncio.to_thread(lambda: reply([flat(row) for row in rows]))


async def stats(request: Request) -> Response:
    figures = asdict(await services(request).prefix.figures())
    return reply({**figures.pop("pool"), **figures})


async def chains(request: Request) -> Response:
    return await _rows(await services(request).prefix.chains())


async def map(request: Request) -> Response:
    return reply(await services(request).prefix.map())


async def tree(request: Request) -> Response:
    """Children of a block, or the roots of all chains, largest first: `?parent=HASH&offset=N&limit=N`."""
    query = request.query_params
    start = int(number(query.get("offset", "0"), "offset"))
    limit = int(number(query.get("limit", "50"), "limit"))
    found, total = await services(request).prefix.tree(query.get("parent") or None, start, min(limit, _MOST_WAYS))
    return reply(found, {"x-total-count": str(total)})


async def show(request: Request) -> Response:
    name: str = request.path_params["id"]
    content = await services(request).prefix.show(name)
    if content is None:
        raise NotFound(f"no block {name[:80]}: blocks ls lists them")
    return reply(flat_content(content))


async def reset(request: Request) -> Response:
    return reply(await services(request).prefix.reset())


ROUTES = [
    Route("/blocks", blocks, methods=["GET"]),
    Route("/blocks/queue", queue, methods=["GET"]),
    Route("/blocks/chains", chains, methods=["GET"]),
    Route("/blocks/map", map, methods=["GET"]),
    Route("/blocks/tree", tree, methods=["GET"]),
    Route("/blocks/stats", stats, methods=["GET"]),
    Route("/blocks/reset", reset, methods=["POST"]),
    Route("/blocks/{id}", show, methods=["GET"]),
]
