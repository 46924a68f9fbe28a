"""The admin route of what people say about cached answers."""

import orjson
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from kvproxy.errors import InvalidRequest
from kvproxy.proxy.admin import guard
from kvproxy.proxy.admin_cache import find_entry
from kvproxy.proxy.services import services


async def cache_feedback(request: Request) -> Response:
    """`{"right": bool, "question": text or absent}`: reject an entry, or approve it; with the question, the policy learns too."""
    app = services(request)
    try:
        body = orjson.loads(await request.body())
    except orjson.JSONDecodeError as error:
        raise InvalidRequest(f'the body is not JSON ({error}): send {{"right": false}}') from None
    right, question = (body.get("right"), body.get("question")) if isinstance(body, dict) else (None, None)
    if not isinstance(right, bool) or not isinstance(question, str | None):
        raise InvalidRequest('say whether the answer was right: {"right": false}, with "question" if you know it')
    entry = await find_entry(app, request.path_params["id"])
    if app.answerer.semantic is None:
        raise InvalidRequest("semantic matching is off: there is nothing to reject or approve")
    await app.answerer.semantic.feedback(entry, right, question)
    return JSONResponse({"id": entry.id, "right": right})


ROUTES = [Route("/admin/cache/{id}/feedback", guard(cache_feedback), methods=["POST"])]
