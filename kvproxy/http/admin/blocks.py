"""Admin routes on blocks, chains, pins, and tiers."""

import asyncio
from collections.abc import Sequence
from dataclasses import asdict

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from kvproxy.blocks.row_types import BlockRow, ChainRow
from kvproxy.errors import InvalidRequest, NotFound
from kvproxy.http.admin.replies import (
    flat_fields,
    parse_duration,
    parse_limit_and_offset,
    parse_number,
    read_request,
    reply,
)
from kvproxy.http.services import services
from kvproxy.units import parse_bytes

_MAX_TOKEN_BYTES = 2**30
_MAX_TIER_BYTES = 2**60
_MAX_BRANCHES = 50
"""Maximum branches of the prefix tree in a response, because an upstream may have to detokenize each of them."""


async def blocks(request: Request) -> Response:
    """List the blocks of the prefix cache."""
    return await _reply_rows(await services(request).prefix.blocks())


async def queue(request: Request) -> Response:
    """List the idle blocks in eviction order."""
    return await _reply_rows(await services(request).prefix.eviction_queue())


async def _reply_rows(rows: Sequence[BlockRow | ChainRow]) -> Response:
    # The rows of a large pool would block the event loop.
    return await asyncio.to_thread(lambda: reply([flat_fields(row) for row in rows]))


async def stats(request: Request) -> Response:
    """Return statistics of the prefix cache."""
    figures = asdict(await services(request).prefix.stats())
    return reply({**figures.pop("pool"), **figures})


async def what_if(request: Request) -> Response:
    """Forecast each engine's hit rate for other pool sizes, and with an additional tier in host memory.

    `tier` is its size, such as 64GiB. For an upstream, the tier's forecast requires `bytes_per_token`, the size of a
    token's keys and values.
    """
    query = request.query_params
    token_bytes = query.get("bytes_per_token")
    try:
        tier_bytes = parse_bytes(query.get("tier", "64GiB"))
    except ValueError as error:
        raise InvalidRequest(str(error), param="tier") from None
    if tier_bytes > _MAX_TIER_BYTES:
        raise InvalidRequest("tier is at most 1 EiB", param="tier")
    known = None if token_bytes is None else parse_number(token_bytes, "bytes_per_token")
    if known is not None and not 1 <= known <= _MAX_TOKEN_BYTES:
        raise InvalidRequest(f"bytes_per_token is a number from 1 to {_MAX_TOKEN_BYTES:,}", param="bytes_per_token")
    return reply(await services(request).forecasts(known, tier_bytes))


async def chains(request: Request) -> Response:
    """List the chains: consecutive cached blocks from the start of a prompt to a block that no cached block follows."""
    return await _reply_rows(await services(request).prefix.chains())


async def pool_map(request: Request) -> Response:
    """Return all blocks of the pool as columns, one list per field."""
    return reply(await services(request).prefix.pool_map())


async def tree(request: Request) -> Response:
    """List the branches that follow block `parent` in the prefix tree, or all branches at its root, largest first."""
    query = request.query_params
    limit, start = parse_limit_and_offset(query, "50")
    found, total = await services(request).prefix.list_branches(
        query.get("parent") or None, start, min(limit, _MAX_BRANCHES)
    )
    return reply(found, {"x-total-count": str(total)})


async def show(request: Request) -> Response:
    """Show a block with its tokens and text, given its number or the beginning of its hash."""
    name: str = request.path_params["id"]
    content = await services(request).prefix.find_block(name)
    if content is None:
        raise NotFound(f"no block {name[:80]}: blocks ls lists them")
    return reply({**flat_fields(content.block), "tokens": content.tokens, "text": content.text})


async def reset(request: Request) -> Response:
    """Empty the prefix cache, unless a request is running."""
    return reply(await services(request).prefix.reset())


async def pins(request: Request) -> Response:
    """List the pins with their blocks and remaining seconds."""
    return reply(await services(request).prefix.pins())


async def pin(request: Request) -> Response:
    """Pin the cached blocks of a prompt for the time `ttl`.

    Pinned blocks are not evicted. The body is a request with the prompt, in the format of `api` (default: chat).
    """
    app, query = services(request), request.query_params
    name = query.get("name")
    if not name:
        raise InvalidRequest("a pin requires a name: add ?name=NAME", param="name")
    lifetime = query.get("ttl")
    ttl = None if lifetime is None else parse_duration(lifetime, "ttl")
    if ttl == 0:
        raise InvalidRequest("ttl must be above 0", param="ttl")
    tokens = await app.prefix.pin(name, ttl, await read_request(request))
    if tokens == 0:
        raise NotFound("no full block of this prompt is cached: send it once, then pin it")
    return reply({"name": name, "tokens": tokens, "ttl": ttl})


async def unpin(request: Request) -> Response:
    """Remove a pin."""
    name: str = request.path_params["name"]
    if not await services(request).prefix.unpin(name):
        raise NotFound(f"no pin {name[:80]!r}: blocks pins lists them")
    return reply({"unpinned": name})


async def tiers(request: Request) -> Response:
    """Return statistics of the tiers, the fastest first."""
    return reply(await services(request).prefix.tiers())


async def clear_tier(request: Request) -> Response:
    """Delete all chunks in a tier."""
    prefix, name = services(request).prefix, request.path_params["name"]
    cleared = await prefix.clear_tier(name)
    if cleared is None:
        known = ", ".join(row.name for row in await prefix.tiers())
        there = f"this proxy has {known}" if known else "serve with --tier-host, --tier-disk or --tier-redis"
        raise NotFound(f"no tier {name!r}: {there}")
    return reply({"tier": name, "cleared": cleared})


ROUTES = [
    Route("/blocks/tiers", tiers, methods=["GET"]),
    Route("/blocks/tiers/{name}", clear_tier, methods=["DELETE"]),
    Route("/blocks/pins", pins, methods=["GET"]),
    Route("/blocks/pins", pin, methods=["POST"]),
    Route("/blocks/pins/{name:path}", unpin, methods=["DELETE"]),
    Route("/blocks", blocks, methods=["GET"]),
    Route("/blocks/queue", queue, methods=["GET"]),
    Route("/blocks/chains", chains, methods=["GET"]),
    Route("/blocks/map", pool_map, methods=["GET"]),
    Route("/blocks/tree", tree, methods=["GET"]),
    Route("/blocks/what-if", what_if, methods=["GET"]),
    Route("/blocks/stats", stats, methods=["GET"]),
    Route("/blocks/reset", reset, methods=["POST"]),
    Route("/blocks/{id}", show, methods=["GET"]),
]
