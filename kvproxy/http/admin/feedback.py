"""Verdicts of people on cached responses, and pinned responses."""

import asyncio

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from kvproxy.errors import InvalidRequest
from kvproxy.http.admin.cache import find_entry
from kvproxy.http.admin.replies import reply
from kvproxy.http.bodies import parsed, whole_body
from kvproxy.http.services import services


async def feedback(request: Request) -> Response:
    """Approve or reject an entry: `{"right": bool, "question": text}`. With the question, the policy learns, too."""
    app = services(request)
    body = await parsed(await whole_body(request, app.settings.limits.body_bytes))
    right, question = body.get("right"), body.get("question")
    if not isinstance(right, bool) or not isinstance(question, str | None):
        raise InvalidRequest('the body must be {"right": true} or {"right": false}, with an optional "question"')
    entry = await find_entry(app, request.path_params["id"])
    if app.answerer.semantic is None:
        raise InvalidRequest("semantic matching is off: there is nothing to reject or approve")
    await app.answerer.semantic.feedback(entry, right, question)
    return reply({"id": entry.id, "right": right})


async def pins(request: Request) -> Response:
    """Ids of pinned responses."""
    return reply(await asyncio.to_thread(services(request).answerer.store.pinned))


async def pin(request: Request) -> Response:
    """Pin a response: until it expires, it is evicted last."""
    return await _set_pinned(request, True)


async def unpin(request: Request) -> Response:
    """Unpin a response."""
    return await _set_pinned(request, False)


async def _set_pinned(request: Request, pinned: bool) -> Response:
    app = services(request)
    entry = await find_entry(app, request.path_params["id"])
    await asyncio.to_thread(app.answerer.store.pin, entry.id, pinned=pinned)
    return reply({"id": entry.id, "pinned": pinned})


ROUTES = [
    Route("/cache/{id}/feedback", feedback, methods=["POST"]),
    Route("/cache/pins", pins, methods=["GET"]),
    Route("/cache/{id}/pin", pin, methods=["POST"]),
    Route("/cache/{id}/pin", unpin, methods=["DELETE"]),
]
