"""Tenants are isolated: prompts, priorities, errors, and cookies, also with a shared cache."""

import asyncio
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import pytest
from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from kvproxy.engine.backend import EmbeddedBackend
from kvproxy.flow.tenants import tenant_of
from kvproxy.http.services import Services
from kvproxy.settings import load_settings
from tests.plain_upstream import WHOLE
from tests.polling import until
from tests.requests import api_request
from tests.servers import run_front, run_proxy, run_upstream, until_stored
from tests.statuses import makes_entry

SYSTEM = "You are the agent of a company whose secrets nobody may guess. " * 8


def cached(url: str, question: str, key: str | None, **fields: Any) -> int:
    """Tokens of the prompt that came from blocks."""
    messages = [{"role": "system", "content": SYSTEM}, {"role": "user", "content": question}]
    body = {"model": "demo", "max_tokens": 2, "messages": messages} | fields
    headers = {"x-goog-api-key": key} if key else {}
    answer = httpx.post(f"{url}/v1/chat/completions", json=body, headers=headers, timeout=300).json()
    found: int = answer["usage"]["prompt_tokens_details"]["cached_tokens"]
    return found


def test_tenants_share_no_prefix_blocks(demo: tuple[str, Services]) -> None:
    url = demo[0]
    assert cached(url, "one", "a") == 0
    assert cached(url, "two", "a") > 100
    for other in ("b", None):
        assert cached(url, "three", other) == 0
        assert cached(url, "four", other) > 100
    # A salt keeps requests of one tenant apart, and opens no way to another's.
    assert cached(url, "five", "a", cache_salt="s") == 0
    assert cached(url, "six", "b", cache_salt="s") == 0
    assert cached(url, "seven", None, cache_salt="s") == 0
    assert cached(url, "eight", None, cache_salt="s") > 100
    for salt in (f"{tenant_of({'x-goog-api-key': 'a'})}:", f"{tenant_of({'x-goog-api-key': 'a'})}:s"):
        assert cached(url, "nine", None, cache_salt=salt) == 0


def test_tenants_that_share_answers_share_blocks(tmp_path: Path) -> None:
    with run_proxy(load_settings(data=tmp_path, cache={"shared": True, "semantic": False})) as (url, _):
        assert cached(url, "one", "a") == 0
        assert cached(url, "two", "b") > 100


@pytest.fixture(scope="module")
def varying(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[str, dict[str, str]]]:
    """A proxy in front of a server that answers with the headers in the dict."""
    headers: dict[str, str] = {}

    async def answer(request: Request) -> Response:
        return JSONResponse(WHOLE, headers=headers)

    with run_upstream(answer) as upstream, run_front(tmp_path_factory.mktemp("varying"), upstream) as (url, _):
        yield url, headers


@pytest.mark.parametrize(
    ("sent", "kept"),
    [
        ({"cache-control": "no-store"}, False),
        ({"cache-control": "max-age=0, Private"}, False),
        ({"cache-control": 'private="set-cookie"'}, False),
        ({"vary": "*"}, False),
        ({"vary": "Accept-Encoding, X-Region"}, False),
        ({"vary": "X-Absent"}, False),
        ({"vary": "Accept-Language"}, False),
        ({"vary": "User-Agent"}, False),
        ({"vary": "Cookie, , OpenAI-Organization,anthropic-version"}, True),
        ({"vary": "Origin, Accept-Encoding, Authorization"}, True),
        ({"cache-control": "no-cache"}, True),
        ({}, True),
    ],
)
def test_an_upstream_may_forbid_storing(varying: tuple[str, dict[str, str]], sent: dict[str, str], kept: bool) -> None:
    url, headers = varying
    headers.clear()
    headers.update(sent)
    body = {"model": "m", "messages": [{"role": "user", "content": f"hi {sent}"}]}
    asked = {"x-region": "eu", "origin": url}
    first = httpx.post(f"{url}/v1/chat/completions", json=body, headers=asked)
    assert makes_entry(first.headers["cache-status"]) == kept
    assert {name: first.headers[name] for name in sent} == sent
    again = httpx.post(f"{url}/v1/chat/completions", json=body, headers=asked)
    assert ("hit" in again.headers["cache-status"]) == kept


@pytest.mark.parametrize(
    ("settings", "name"),
    [
        ({"cache": {"semantic": False, "shared": True}}, "authorization"),
        ({"cache": {"semantic": False, "shared": True}}, "cookie"),
        ({"cache": {"semantic": False, "shared": True}}, "x-api-key"),
        ({"access": {"tenant_headers": ["x-user"]}, "cache": {"semantic": False}}, "authorization"),
    ],
)
def test_a_header_outside_of_the_key_varies_the_response(tmp_path: Path, settings: dict[str, Any], name: str) -> None:
    async def answer(request: Request) -> Response:
        message = {"role": "assistant", "content": f"secret for {request.headers.get(name)}"}
        choices = [{"index": 0, "message": message, "finish_reason": "stop"}]
        return JSONResponse(WHOLE | {"choices": choices}, headers={"vary": name.title()})

    with (
        run_upstream(answer) as upstream,
        run_proxy(load_settings(data=tmp_path, upstream=upstream, **settings)) as found,
    ):
        proxy, services = found
        for value in (None, "Bearer AAA", "Bearer BBB"):
            headers = {} if value is None else {name: value}
            response = httpx.post(f"{proxy}/v1/chat/completions", json=BODY, headers=headers)
            assert response.json()["choices"][0]["message"]["content"] == f"secret for {value}"
        until_stored(services)
        assert services.cache.store.count() == 0


def test_requests_in_other_languages_share_no_response_in_flight(tmp_path: Path) -> None:
    gate = threading.Event()

    async def answer(request: Request) -> Response:
        await asyncio.to_thread(gate.wait)
        message = {"role": "assistant", "content": request.headers["accept-language"]}
        choices = [{"index": 0, "message": message, "finish_reason": "stop"}]
        return JSONResponse(WHOLE | {"choices": choices}, headers={"vary": "accept-language"})

    def ask(language: str) -> str:
        headers = {"accept-language": language}
        response = httpx.post(f"{proxy}/v1/chat/completions", json=BODY, headers=headers, timeout=300)
        found: str = response.json()["choices"][0]["message"]["content"]
        return found

    with (
        run_upstream(answer) as upstream,
        run_front(tmp_path, upstream) as (proxy, services),
        ThreadPoolExecutor(2) as threads,
    ):
        answers = [threads.submit(ask, language) for language in ("de", "fr")]
        until(lambda: len(services.path.requests_in_flight) == 2)
        gate.set()
        assert [each.result() for each in answers] == ["de", "fr"]


def test_a_priority_applies_within_the_tenant(demo: tuple[str, Services]) -> None:
    _, services = demo
    backend = services.backend
    seen: list[tuple[int, int, int]] = []

    async def look() -> None:
        body = {"model": "demo", "messages": [{"role": "user", "content": "x"}], "priority": -5}
        for ranked in (False, True):
            own = EmbeddedBackend(backend.worker, global_priorities=ranked)  # type: ignore[attr-defined]
            request = await own.generation_request(api_request(body, headers={"x-kvproxy-priority": "7"}))  # type: ignore[arg-type]
            seen.append((request.queue_priority, request.tenant_priority, request.priority))

    asyncio.run(look())
    assert seen == [(0, -5, 0), (-5, 0, 7)]


BODY = {"model": "m", "messages": [{"role": "user", "content": "hi"}]}


@pytest.fixture
def shared(tmp_path: Path) -> Iterator[str]:
    """A proxy with `cache.shared` in front of a slow server that knows one key and sets a cookie for it."""

    async def answer(request: Request) -> Response:
        await asyncio.sleep(0.3)
        if request.headers.get("authorization") != "Bearer good":
            return JSONResponse({"error": {"message": "unknown key"}}, 401)
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


def test_tenants_of_a_shared_cache_share_no_errors_and_cookies(shared: str) -> None:
    bad, good = asyncio.run(ask(shared, "bad", "good"))
    assert (bad.status_code, good.status_code) == (401, 200)
    assert "set-cookie" not in bad.headers
    (other,) = asyncio.run(ask(shared, "other"))
    assert 'detail="exact"' in other.headers["cache-status"]
    assert "set-cookie" not in other.headers
