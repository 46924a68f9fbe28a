"""Admin routes of pinned chains."""

from typing import Any

from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from kvproxy.blocks.manager import KVCacheManager
from kvproxy.blocks.pins import Pins, PinsFull
from kvproxy.blocks.request import CacheRequest
from kvproxy.blocks.view import chain_to
from kvproxy.engine.worker import EngineWorker
from kvproxy.errors import InvalidRequest, NotFound
from kvproxy.proxy.admin import guard, own_engine
from kvproxy.proxy.dialects import DIALECTS
from kvproxy.proxy.local import LocalBackend
from kvproxy.proxy.routes import parse_body, read_call
from kvproxy.proxy.services import services


def _worker(request: Request) -> EngineWorker:
    return own_engine(request, "no blocks to pin")


async def pins_list(request: Request) -> Response:
    """The pins with their blocks and the seconds they have left."""
    return JSONResponse(await _worker(request).pins(Pins.list))


async def pins_add(request: Request) -> Response:
    """`?name=NAME&ttl=SECONDS`: pin what is cached of a prompt (the body: a chat request), or of the chain `&leaf=HASH`."""
    worker, query = _worker(request), request.query_params
    name = query.get("name")
    if not name:
        raise InvalidRequest("a pin needs a name to take it back by: give name=", param="name")
    ttl = _seconds(query.get("ttl"))
    wanted = await _chain(request, worker)

    def pin(pins: Pins) -> int:
        try:
            return pins.pin(name, wanted, ttl)
        except PinsFull as error:
            raise InvalidRequest(f"{error}: unpin others, or start with more blocks (--num-blocks)") from None

    tokens = await worker.pins(pin)
    if tokens == 0:
        raise NotFound("nothing of this prompt is cached: send it once, then pin it")
    return JSONResponse({"name": name, "tokens": tokens, "ttl": ttl})


async def _chain(request: Request, worker: EngineWorker) -> CacheRequest:
    leaf = request.query_params.get("leaf")
    if leaf:

        def find(manager: KVCacheManager) -> CacheRequest | None:
            return chain_to(manager, leaf)

        found = await worker.inspect(find)
        if found is None:
            raise NotFound(f"no cached block's hash begins with {leaf!r}: blocks chains lists the leaves")
        return found
    parse_body(await request.body())
    call = await read_call(request, DIALECTS["chat"])
    backend: Any = services(request).answerer.backend
    assert isinstance(backend, LocalBackend)
    assert not isinstance(call, bytes)
    asked = backend.request(call)
    # One token more than the prompt, since a lookup leaves one token to compute.
    return CacheRequest("pin", [*asked.tokens, 0], salt=asked.salt)


def _seconds(text: str | None) -> float | None:
    if text is None:
        return None
    try:
        value = float(text)
        if not 0 < value < float("inf"):
            raise ValueError
        return value
    except ValueError:
        raise InvalidRequest(f"ttl is a number of seconds above 0, not {text!r}", param="ttl") from None


async def pins_remove(request: Request) -> Response:
    """Let a pin's blocks go."""
    name = request.path_params["name"]
    if not await _worker(request).pins(lambda pins: pins.unpin(name)):
        raise NotFound(f"no pin {name!r}: blocks pins lists them")
    return JSONResponse({"unpinned": name})


ROUTES = [
    Route("/admin/blocks/pins", guard(pins_list), methods=["GET"]),
    Route("/admin/blocks/pins", guard(pins_add), methods=["POST"]),
    Route("/admin/blocks/pins/{name}", guard(pins_remove), methods=["DELETE"]),
]
