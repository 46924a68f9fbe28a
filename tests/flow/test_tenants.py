"""Tenants never touch: no one's prompt shows in another's figures, and no one chooses a rank among all."""

import asyncio
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from kvproxy.backends.embedded import EmbeddedBackend
from kvproxy.http.services import Services
from kvproxy.settings import load_settings
from tests.plain_upstream import WHOLE
from tests.requests import api_request
from tests.servers import run_front, run_proxy, run_upstream
from tests.statuses import makes_entry

SYSTEM = "You are the agent of a company whose secrets nobody may guess. " * 8


def cached(url: str, question: str, key: str | None, **fields: Any) -> int:
    """Tokens of the prompt that came from blocks."""
    messages = [{"role": "system", "content": SYSTEM}, {"role": "user", "content": question}]
    body = {"model": "demo", "max_tokens": 2, "messages": messages} | fields
    headers = {"x-goog-api-key": key} if key else {}
    answer = httpx.post(f"{url}/v1/chat/completions", json=body, headers=headers, timeout=60).json()
    found: int = answer["usage"]["prompt_tokens_details"]["cached_tokens"]
    return found


def test_one_tenant_cannot_tell_what_another_sent(demo: tuple[str, Services]) -> None:
    """It read `prefix 240/255` for another's system prompt."""
    url = demo[0]
    assert cached(url, "one", "a") == 0
    assert cached(url, "two", "a") > 100
    for other in ("b", None):
        assert cached(url, "three", other) == 0
        assert cached(url, "four", other) > 100
    # A salt keeps requests of one tenant apart, and opens no way to another's.
    assert cached(url, "five", "a", cache_salt="s") == 0
    assert cached(url, "six", "b", cache_salt="s") == 0


def test_tenants_that_share_answers_share_blocks(tmp_path: Path) -> None:
    with run_proxy(load_settings(data=tmp_path, cache={"shared": True, "semantic": False})) as (url, _):
        assert cached(url, "one", "a") == 0
        assert cached(url, "two", "b") > 100


@pytest.fixture
def varying(tmp_path: Path) -> Iterator[tuple[str, dict[str, str]]]:
    """A proxy in front of a server that answers with the headers in the dict."""
    headers: dict[str, str] = {}

    async def answer(request: Request) -> Response:
        return JSONResponse(WHOLE, headers=headers)

    with run_upstream(answer) as upstream, run_front(tmp_path, upstream) as (url, _):
        yield url, headers


@pytest.mark.parametrize(
    ("sent", "kept"),
    [
        ({"cache-control": "no-store"}, False),
        ({"cache-control": "max-age=0, Private"}, False),
        ({"cache-control": 'private="set-cookie"'}, False),
        ({"vary": "*"}, False),
        ({"vary": "Accept-Encoding, X-Region"}, False),
        ({"vary": "X-Absent"}, True),
        ({"vary": "Origin, Accept-Encoding, Authorization"}, True),
        ({"cache-control": "no-cache"}, True),
        ({}, True),
    ],
)
def test_what_an_upstream_forbids_is_not_kept(
    varying: tuple[str, dict[str, str]], sent: dict[str, str], kept: bool
) -> None:
    url, headers = varying
    headers.update(sent)
    body = {"model": "m", "messages": [{"role": "user", "content": "hi"}]}
    asked = {"x-region": "eu", "origin": url}
    first = httpx.post(f"{url}/v1/chat/completions", json=body, headers=asked)
    assert makes_entry(first.headers["cache-status"]) == kept
    assert {name: first.headers[name] for name in sent} == sent
    again = httpx.post(f"{url}/v1/chat/completions", json=body, headers=asked)
    assert ("hit" in again.headers["cache-status"]) == kept


def test_a_rank_counts_among_ones_own_requests_only(demo: tuple[str, Services]) -> None:
    """A hundred clients that asked for `priority: -1e9` starved everybody."""
    _, services = demo
    backend = services.answerer.backend
    seen: list[tuple[int, int, int]] = []

    async def look() -> None:
        body = {"model": "demo", "messages": [{"role": "user", "content": "x"}], "priority": -5}
        for ranked in (False, True):
            own = EmbeddedBackend(backend.worker, global_priorities=ranked)  # type: ignore[attr-defined]
            request = await own.generation_request(api_request(body, headers={"x-kvproxy-priority": "7"}))  # type: ignore[arg-type]
            seen.append((request.queue_priority, request.tenant_priority, request.priority))

    asyncio.run(look())
    assert seen == [(0, -5, 0), (-5, 0, 7)]
