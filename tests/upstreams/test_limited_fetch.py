"""What `fetch` receives, and to whom it sends headers."""

import asyncio

import pytest
from starlette.requests import Request
from starlette.responses import JSONResponse, RedirectResponse, Response, StreamingResponse

from kvproxy.upstreams.limited_fetch import FetchError, fetch
from tests.servers import run_connections, run_upstream


async def _answer(request: Request) -> Response:
    headers = dict(request.headers)
    if "to" in request.query_params:
        return RedirectResponse(request.query_params["to"])
    if request.url.path == "/chunks":
        return StreamingResponse(iter([b'{"a"', b": 1}"]))
    return JSONResponse(headers, 404 if request.url.path == "/none" else 200)


def test_a_response_of_any_status_is_returned_whole() -> None:
    with run_upstream(_answer) as url:
        assert fetch(f"{url}/chunks", 9).json() == {"a": 1}
        missing = fetch(f"{url}/none", 9, {"x-own": "1"})
        assert (missing.status, missing.json()["x-own"]) == (404, "1")
        assert fetch(f"{url}/?to=/none", 9).status == 307
        assert fetch(f"{url}/?to=/chunks", 9, follow_redirects=True).json() == {"a": 1}


def test_credentials_reach_only_the_server_of_the_url() -> None:
    with run_upstream(_answer) as url, run_upstream(_answer) as other:
        with_credentials = url.replace("://", "://user:p%40ss@")
        assert fetch(with_credentials, 9).json()["authorization"] == "Basic dXNlcjpwQHNz"
        followed = fetch(f"{with_credentials}/?to={other}/", 9, {"x-own": "1"}, follow_redirects=True).json()
        assert {"authorization", "x-own"} & set(followed) == set()


@pytest.mark.parametrize(
    "url",
    ["file:///etc/hostname", "http://", "nonsense", "http://127.0.0.1:1", "http://a b/", "http://[/", "ftp://a/b"],
)
def test_other_urls_and_servers_have_a_known_error(url: str) -> None:
    with pytest.raises(FetchError):
        fetch(url, 2)


async def _cut(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    await reader.readuntil(b"\r\n\r\n")
    writer.write(b"HTTP/1.1 200 OK\r\ncontent-length: 9\r\n\r\nabc")
    writer.close()


def test_a_cut_response_has_a_known_error() -> None:
    with run_connections(_cut) as url, pytest.raises(FetchError, match="closed the connection"):
        fetch(url, 9)
