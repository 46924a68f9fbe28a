"""What people say about cached answers."""

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


ROUTES = [Route("/cache/{id}/feedback", feedback, methods=["POST"])]
