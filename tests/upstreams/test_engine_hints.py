"""Hints to engines, and requests that continue a response that one engine stores."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from kvproxy.settings import UpstreamServer, load_settings
from kvproxy.settings.upstreams import EngineHint
from kvproxy.upstreams import engine_hints
from kvproxy.upstreams.engine_hints import SESSION_HEADER, ResponseLocations, with_hints
from kvproxy.upstreams.fleet import Fleet
from kvproxy.upstreams.fleet_engine import FleetEngine
from kvproxy.upstreams.prompt_tokenizer import load_tokenizer
from tests.requests import api_request, chat

HINTS: list[EngineHint] = ["session_id", "cache_salt"]


def test_without_a_session_and_for_the_public_tenant_nothing_is_added() -> None:
    request = api_request(chat())
    assert with_hints(request, HINTS) is request


def test_a_session_has_a_digest_per_tenant() -> None:
    headers = {"x-claude-code-session-id": "mine"}
    found = [
        with_hints(api_request(chat(), headers=headers, tenant=tenant), ["session_id"]).headers[SESSION_HEADER]
        for tenant in ("a", "a", "b")
    ]
    assert found[0] == found[1] != found[2]
    assert "mine" not in found[0]
    own = with_hints(api_request(chat(), headers=headers | {SESSION_HEADER: "own"}), HINTS)
    assert own.headers[SESSION_HEADER] == "own"


def test_tenants_have_salts_of_their_own_that_contain_the_clients() -> None:
    salts = [
        with_hints(api_request(chat(**fields), tenant=tenant), ["cache_salt"])
        for tenant in ("a", "b")
        for fields in ({}, {"cache_salt": "s"})
    ]
    assert len({request.body["cache_salt"] for request in salts}) == 4
    assert all(str(request.body["cache_salt"]).encode() in request.raw for request in salts)
    again = with_hints(api_request(chat(), tenant="a"), ["cache_salt"])
    assert again.body["cache_salt"] == salts[0].body["cache_salt"]


def test_the_engines_of_stored_responses_are_bounded_and_separate_by_tenant(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(engine_hints, "MAX_RESPONSES", 2)
    stored = ResponseLocations()
    for number in range(3):
        stored.add("t", f"resp_{number}", f"http://{number}")

    def find(id: str, tenant: str = "t") -> str | None:
        return stored.find(api_request({"model": "m", "previous_response_id": id}, "responses", tenant=tenant))

    assert [find("resp_0"), find("resp_2"), find("resp_2", "other")] == [None, "http://2", None]


@pytest.mark.parametrize("size", [1, 7, 1000])
async def test_a_continued_response_goes_to_its_engine(size: int, tmp_path: Path) -> None:
    urls = [f"http://127.0.0.1:{port}" for port in (1, 2, 3)]
    servers = [UpstreamServer(url=url) for url in urls]
    settings = load_settings(data=tmp_path, upstreams=servers)
    fleet = Fleet([FleetEngine(each, settings) for each in servers], load_tokenizer("upstream"), settings.routing)
    body = b'event: response.created\ndata: {"response": {"object": "response", "id": "resp_7"}}\n\n' + b"x" * 3000

    async def chunks() -> AsyncIterator[bytes]:
        for start in range(0, len(body), size):
            await asyncio.sleep(0)
            yield body[start : start + size]

    for url in urls:
        received = b"".join([chunk async for chunk in fleet._remember_response(chunks(), "public", url)])
        assert received == body
        first, *others = await fleet._route(
            api_request({"model": "m", "input": "hi", "previous_response_id": "resp_7"}, "responses")
        )
        assert (first.engine.url, len(others)) == (url, 2)
