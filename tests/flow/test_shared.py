"""Answers that every tenant is given from one cache: errors and cookies still belong to who asked."""

import asyncio
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest
from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from kvproxy.settings import load_settings
from tests.plain_upstream import WHOLE
from tests.servers import run_proxy, run_upstream

BODY = {"model": "m", "messages": [{"role": "user", "content": "hi"}]}


@pytest.fixture
def shared(tmp_path: Path) -> Iterator[str]:
    """A proxy with `cache.shared` in front of a slow server that knows one key and sets a cookie for it."""

    async def answer(request: Request) -> Response:
        await asyncio.sleep(1.0)
        if request.headers.get("authorization") != "Bearer good":
            return JSONResponse({"error": {"message": "who are you?"}}, 401)
        return JSONResponse(WHOLE, headers={"set-cookie": "session=good"})

    with run_upstream(answer) as url:
        settings = load_settings(data=tmp_path, upstream=url, cache={"semantic": False, "shared": True})
        with run_proxy(settings) as (proxy, _):
            yield proxy


async def ask(url: str, *keys: str) -> list[httpx.Response]:
    async with httpx.AsyncClient(base_url=url) as client:
        return await asyncio.gather(
            *(
                client.post("/v1/chat/completions", json=BODY, headers={"authorization": f"Bearer {key}"})
                for key in keys
            )
        )


def test_nobody_gets_anothers_refusal_or_cookie(shared: str) -> None:
    bad, good = asyncio.run(ask(shared, "bad", "good"))
    assert (bad.status_code, good.status_code) == (401, 200)
    assert "set-cookie" not in bad.headers
    (other,) = asyncio.run(ask(shared, "other"))
    assert 'detail="exact"' in other.headers["cache-status"]
    assert "set-cookie" not in other.headers


def test_one_tenants_own_requests_share_a_flight(shared: str) -> None:
    answers = asyncio.run(ask(shared, "good", "good"))
    assert sum("collapsed" in answer.headers["cache-status"] for answer in answers) == 1
