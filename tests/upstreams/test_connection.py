"""Private attributes of aiohttp that `connection.py` uses, and closing idle connections."""

import asyncio

import aiohttp
import pytest
from starlette.applications import Starlette
from starlette.responses import PlainTextResponse
from starlette.routing import Route

from kvproxy.errors import UpstreamError
from kvproxy.upstreams.connection import ConnectionPool
from tests.servers import run_app


def test_private_attributes_of_aiohttp_exist() -> None:
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


async def _after(steps: int, transport: asyncio.BaseTransport) -> None:
    for _ in range(steps):
        await asyncio.sleep(0)
    transport.close()


@pytest.mark.parametrize("steps", range(8))
async def test_a_connection_closed_at_its_reuse_fails_no_request(steps: int) -> None:
    seen: list[bytes] = []

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while head := await reader.readline():
            while (line := await reader.readline()) not in (b"\r\n", b""):
                head += line
            seen.append(await reader.readexactly(4))
            writer.write(b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nok")
        writer.close()

    async with await asyncio.start_server(serve, "127.0.0.1", 0) as server:
        url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
        connection = ConnectionPool(url, 5.0, 5.0, 10)
        connection.open()
        first = await connection.request("POST", "/", [], b"warm")
        assert [part async for part in first.chunks] == [b"ok"]
        assert connection._session is not None
        assert isinstance(connection._session.connector, aiohttp.TCPConnector)
        ((idle, *_),) = connection._session.connector._conns.values()
        transport = idle[0].transport
        assert transport is not None
        asked = asyncio.ensure_future(connection.request("POST", "/", [], b"asks"))
        await asyncio.gather(_after(steps, transport))
        (answer,) = await asyncio.gather(asked, return_exceptions=True)
        if isinstance(answer, UpstreamError):
            # A request is repeated only if it was not sent.
            await asyncio.sleep(0.01)
            assert answer.unsent == (seen == [b"warm"])
        else:
            assert not isinstance(answer, BaseException)
            assert [part async for part in answer.chunks] == [b"ok"]
        await connection.close()
