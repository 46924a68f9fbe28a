"""Hints to engines, and requests that continue a response that one engine stores."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, PlainTextResponse, Response
from starlette.routing import Route

from kvproxy.apis import APIS
from kvproxy.apis.api import ApiName
from kvproxy.apis.chat_completions_embeddings import Embeddings
from kvproxy.apis.json import loads
from kvproxy.settings import UpstreamServer, load_settings
from kvproxy.settings.upstreams import EngineHint
from kvproxy.upstreams import engine_hints
from kvproxy.upstreams.engine_hints import SESSION_HEADER, ResponseLocations, with_engine_hints, with_hints
from kvproxy.upstreams.fleet import Fleet
from kvproxy.upstreams.fleet_engine import FleetEngine
from kvproxy.upstreams.prompt_tokenizer import load_tokenizer
from tests.polling import until
from tests.requests import api_request, chat, post
from tests.servers import run_app, run_proxy
from tests.upstreams.fleets import WHOLE

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


def test_each_api_has_the_hints_unless_its_declaration_says_otherwise(monkeypatch: pytest.MonkeyPatch) -> None:
    headers = {"x-kvproxy-priority": "1", "x-claude-code-session-id": "mine"}
    every: list[EngineHint] = ["session_id", "cache_salt", "priority"]

    def hints(api: ApiName) -> set[str]:
        request = with_hints(api_request({"model": "m"}, api, headers=headers, tenant="a"), every)
        return set(with_engine_hints(request, every, "sglang").body) - {"model"}

    assert {api.name: hints(api.name) for api in APIS.values()} == {
        api.name: {"cache_salt", "priority", "session_id"} for api in APIS.values()
    }
    monkeypatch.setattr(Embeddings, "has_engine_fields", False)
    assert hints("embeddings") == set()


@pytest.mark.parametrize(("engine", "expected"), [("vllm", -7), ("sglang", 7), ("llama.cpp", None), (None, None)])
def test_a_priority_has_the_direction_of_the_engine(engine: str | None, expected: int | None) -> None:
    headers = {"x-kvproxy-priority": "7"}
    sent = with_engine_hints(api_request(chat(), headers=headers), ["priority"], engine)
    assert sent.body.get("priority") == loads(sent.raw).get("priority") == expected
    for unchanged in (api_request(chat()), api_request(chat(priority=3), headers=headers)):
        assert with_engine_hints(unchanged, ["priority"], engine) is unchanged
    assert "priority" not in with_engine_hints(api_request(chat(), headers=headers), ["session_id"], engine).body


def test_the_proxy_sends_the_priority_of_its_header(tmp_path: Path) -> None:
    received: list[dict[str, Any]] = []

    async def respond(request: Request) -> Response:
        received.append(await request.json())
        return JSONResponse(WHOLE)

    app = Starlette(
        routes=[
            Route("/v1/chat/completions", respond, methods=["POST"]),
            Route("/metrics", lambda request: PlainTextResponse("sglang:num_running_reqs 0\n")),
            Route("/health", lambda request: Response()),
        ]
    )
    with run_app(app) as upstream:
        settings = load_settings(
            data=tmp_path, upstream=upstream, routing={"hints": ["priority"], "health_interval": 0.1}
        )
        with run_proxy(settings) as (url, _):
            until(lambda: httpx.get(f"{url}/admin/upstreams").json()[0]["metrics"] is not None)
            assert post(url, x_kvproxy_priority="4").status_code == post(url, "other").status_code == 200
    assert [body.get("priority") for body in received] == [4, None]


def test_sglang_receives_the_session_in_its_body() -> None:
    request = with_hints(api_request(chat(), headers={"x-claude-code-session-id": "mine"}, tenant="a"), ["session_id"])
    sent = with_engine_hints(request, ["session_id"], "sglang")
    assert sent.body["session_id"] == loads(sent.raw)["session_id"] == request.headers[SESSION_HEADER]
    assert with_engine_hints(request, ["session_id"], "vllm") is request
    own = api_request(chat(session_id="own"), headers={SESSION_HEADER: "digest"})
    assert with_engine_hints(own, ["session_id"], "sglang") is own


def test_the_engines_of_stored_responses_are_bounded_and_separate_by_tenant(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(engine_hints, "MAX_RESPONSES", 2)
    stored = ResponseLocations()
    for number in range(3):
        stored.add("t", f"resp_{number}", f"http://{number}")

    def find(id: str, tenant: str = "t") -> str | None:
        return stored.find(api_request({"model": "m", "previous_response_id": id}, "responses", tenant=tenant))

    assert [find("resp_0"), find("resp_2"), find("resp_2", "other")] == [None, "http://2", None]
    paths = [
        "/v1/responses/resp_2",
        "/v1/responses/resp_2/cancel",
        "/v1/responses/resp_2?stream=true",
        "/v1/files/resp_2",
    ]
    assert [stored.find_path("t", path) for path in paths] == ["http://2"] * 3 + [None]
    assert stored.find_path("other", paths[0]) is stored.find_path(None, paths[0]) is None


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


def test_a_stored_response_is_read_and_deleted_at_its_engine(tmp_path: Path) -> None:
    received: list[tuple[str, str]] = []

    def engine(name: str) -> Starlette:
        async def create(request: Request) -> Response:
            return JSONResponse({"id": f"resp_{name}", "object": "response", "status": "completed", "output": []})

        async def find(request: Request) -> Response:
            received.append((name, request.method))
            is_known = request.path_params["id"] == f"resp_{name}"
            return JSONResponse({"id": f"resp_{name}"} if is_known else {}, 200 if is_known else 404)

        return Starlette(
            routes=[
                Route("/v1/responses", create, methods=["POST"]),
                Route("/v1/responses/{id}", find, methods=["GET", "DELETE"]),
                Route("/health", lambda request: Response()),
            ]
        )

    with run_app(engine("one")) as one, run_app(engine("two")) as two:
        settings = load_settings(data=tmp_path, upstreams=[{"url": one}, {"url": two}])
        with run_proxy(settings) as (url, services), httpx.Client(base_url=url, timeout=300) as client:
            fleet = services.backend
            assert isinstance(fleet, Fleet)
            for name, other in ((one, two), (two, one)):
                fleet.engines[other].health.draining = True
                stored = client.post("/v1/responses", json={"model": "m", "input": name}).json()["id"]
                fleet.engines[other].health.draining = False
                assert client.get(f"/v1/responses/{stored}").status_code == 200
                assert client.delete(f"/v1/responses/{stored}").status_code == 200
    assert received == [("one", "GET"), ("one", "DELETE"), ("two", "GET"), ("two", "DELETE")]
