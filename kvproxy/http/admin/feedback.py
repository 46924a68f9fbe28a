"""What people say about cached answers: right or wrong, and which of them to keep."""

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
    """`{"right": bool, "question": text or absent}`: reject an entry, or approve it; with the question, the policy learns too."""
    app = services(request)
    body = await parsed(await whole_body(request, app.settings.limits.body))
    right, question = body.get("right"), body.get("question")
    if not isinstance(right, bool) or not isinstance(question, str | None):
        raise InvalidRequest('say whether the answer was right: {"right": false}, with "question" if you know it')
    entry = await find_entry(app, request.path_params["id"])
    if app.answerer.semantic is None:
        raise InvalidRequest("semantic matching is off: there is nothing to reject or approve")
    await app.answerer.semantic.feedback(entry, right, question)
    return reply({"id": entry.id, "right": right})


async def pins(request: Request) -> Response:
    """Ids of the responses that are pinned."""
    return reply(await asyncio.to_thread(services(request).answerer.store.pinned))


async def pin(request: Request) -> Response:
    """Have a response make room after all others, while it is within its time."""
    return await _set_pinned(request, True)


async def unpin(request: Request) -> Response:
    """Have a pinned response make room like others."""
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
