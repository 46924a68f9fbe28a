"""Reading again what can be changed while the proxy runs."""

import asyncio

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from kvproxy.errors import InvalidRequest, SettingsError
from kvproxy.http.admin.replies import reply
from kvproxy.http.services import services


async def reload(request: Request) -> Response:
    """Read the rules again; 400 with the cause, and no change, where the file cannot be used."""
    rules = services(request).rules
    try:
        restart = await asyncio.to_thread(rules.reload)
    except SettingsError as error:
        raise InvalidRequest(f"the rules stay as they were: {error.message}") from None
    return reply({"rules": len(rules), "restart": restart})


ROUTES = [Route("/reload", reload, methods=["POST"])]
