"""The private parts of aiohttp that `connection.py` touches are still what it takes them for."""

import asyncio

import aiohttp
from starlette.applications import Starlette
from starlette.responses import PlainTextResponse
from starlette.routing import Route

from tests.servers import run_app


def test_a_response_has_a_buffer_and_a_connection_that_tells_of_its_end() -> None:
    async def look(url: str) -> None:
        async with aiohttp.ClientSession() as session, session.get(url) as answer:
            assert hasattr(answer.content._buffer, "popleft")
            assert answer.content.exception() is None
            assert answer.connection is not None
            protocol = answer.connection.protocol
            assert protocol is not None
            assert asyncio.isfuture(protocol.closed)
            await answer.read()

    app = Starlette(routes=[Route("/", lambda request: PlainTextResponse("x" * 2**18))])
    with run_app(app) as url:
        asyncio.run(look(url))
