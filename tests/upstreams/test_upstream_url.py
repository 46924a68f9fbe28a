"""URLs of upstreams: no path changes the host, and credentials are not shown."""

import logging
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest
from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from kvproxy.errors import InvalidRequest
from kvproxy.settings import UpstreamServer, UpstreamSettings
from kvproxy.upstreams.client import UpstreamClient
from tests.plain_upstream import WHOLE
from tests.requests import chat
from tests.servers import run_front, run_upstream


async def test_a_path_without_a_slash_is_rejected() -> None:
    upstream = UpstreamClient(UpstreamServer(url="http://127.0.0.1:9"), UpstreamSettings())
    for each in ("", " /x", "\\x", "%2F@evil", "@evil/x", ".evil", ":80", "http://evil/"):
        with pytest.raises(InvalidRequest, match="slash"):
            await upstream.forward("GET", each, {}, b"")


@pytest.fixture
def seen() -> Iterator[tuple[str, list[dict[str, str]]]]:
    headers: list[dict[str, str]] = []

    async def answer(request: Request) -> Response:
        headers.append(dict(request.headers))
        return JSONResponse(WHOLE)

    with run_upstream(answer) as url:
        yield url, headers


def test_credentials_of_the_url_are_sent_but_not_shown(
    tmp_path: Path, seen: tuple[str, list[dict[str, str]]], caplog: pytest.LogCaptureFixture
) -> None:
    url = seen[0].replace("http://", "http://user:SECRET@")
    with caplog.at_level(logging.DEBUG), run_front(tmp_path, url) as (proxy, _), httpx.Client(base_url=proxy) as asking:
        for client in ({}, {"authorization": "Bearer mine"}, {"x-api-key": "mine", "api-key": "mine"}):
            assert asking.post("/v1/chat/completions", json=chat(), headers=client).status_code == 200
        told = [asking.get(path).text for path in ("/health", "/ready", "/metrics", "/admin/upstreams", "/admin/cache")]
    for headers in seen[1]:
        assert headers["authorization"].startswith("Basic ")
        assert "mine" not in str(headers)
    assert "SECRET" not in "".join(told) + caplog.text
    assert "user" not in told[0] + told[3]


def test_errors_do_not_show_the_credentials(tmp_path: Path) -> None:
    with run_front(tmp_path, "http://user:SECRET@127.0.0.1:9") as (proxy, services):
        down = httpx.post(f"{proxy}/v1/chat/completions", json=chat())
        assert (down.status_code, services.cache.store.count()) == (502, 0)
        assert "cannot reach the upstream" in down.json()["error"]["message"]
        assert "(Connection refused)" in down.json()["error"]["message"]
        assert "SECRET" not in down.text
        assert httpx.get(f"{proxy}/health").status_code == 200


def test_only_the_operator_sees_the_address_of_an_upstream(tmp_path: Path) -> None:
    with run_front(tmp_path, "http://127.0.0.1:9", admin_token="TOKEN") as (proxy, _):
        for path, body in (("/v1/chat/completions", chat()), ("/v1/other", {})):
            shown = [
                httpx.post(proxy + path, json=body, headers={"x-kvproxy-admin-token": token}).json()["error"]
                for token in ("TOKEN", "")
            ]
            assert ["127.0.0.1:9" in error["message"] for error in shown] == [True, False]
            assert [error["code"] for error in shown] == ["upstream_unreachable"] * 2
