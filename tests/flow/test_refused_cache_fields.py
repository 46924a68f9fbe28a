"""An upstream that refuses the proxy's fields for its cache receives the client's own request."""

import json
from pathlib import Path
from typing import Any

import httpx
import pytest
from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from kvproxy.settings import load_settings
from tests.clients.agent_script import look_up_the_word
from tests.clients.openai_api import OpenAIApi
from tests.servers import run_proxy, run_upstream

LONG = "word " * 2_000
BODY: dict[str, Any] = {
    "model": "gpt-5.6",
    "messages": [{"role": "system", "content": LONG}, {"role": "user", "content": "one"}],
}


class Gateway:
    """Refuses fields that it does not know, as strict gateways do."""

    def __init__(self, is_strict: bool = True) -> None:
        self.is_strict = is_strict
        self.api = OpenAIApi(look_up_the_word)
        self.received: list[dict[str, Any]] = []

    async def answer(self, request: Request) -> Response:
        if request.method == "POST":
            body = json.loads(await request.body())
            self.received.append(body)
            is_unknown = (
                "prompt_cache_breakpoint" in json.dumps(body) or "prompt_cache_key" in body or body.get("n") == 0
            )
            if self.is_strict and is_unknown:
                return JSONResponse({"error": {"message": "Unknown parameter", "type": "invalid_request_error"}}, 400)
        return await self.api.answer(request)


@pytest.fixture
def gateway() -> Gateway:
    return Gateway()


def test_the_client_gets_an_answer_and_the_fields_are_not_sent_again(
    tmp_path: Path, gateway: Gateway, caplog: pytest.LogCaptureFixture
) -> None:
    rules = ({"name": "r", "breakpoints": "auto"},)
    with run_upstream(gateway.answer) as url:
        settings = load_settings(data=tmp_path, upstream=url, rules=rules, cache={"semantic": False})
        with run_proxy(settings) as (proxy, _), httpx.Client(base_url=proxy, timeout=300) as client:
            for number in range(2):
                body = BODY | {"user": str(number), "seed": number}
                assert client.post("/v1/chat/completions", json=body).status_code == 200
            # A request that the upstream refuses for another reason has the upstream's answer.
            bad = client.post("/v1/chat/completions", json=BODY | {"model": "gpt-6-sol", "n": 0})
            assert (bad.status_code, bad.json()["error"]["message"]) == (400, "Unknown parameter")
    marked = ["prompt_cache_key" in body for body in gateway.received]
    assert marked == [True, False, False, True, False]
    assert gateway.received[1] == BODY | {"user": "0", "seed": 0}
    assert "refuses breakpoints and diagnoses for gpt-5.6" in caplog.text
    assert "gpt-6-sol" not in caplog.text


def test_another_upstream_of_the_model_still_receives_the_fields(tmp_path: Path, gateway: Gateway) -> None:
    lenient = Gateway(is_strict=False)
    with run_upstream(gateway.answer) as strict_url, run_upstream(lenient.answer) as lenient_url:
        settings = load_settings(
            data=tmp_path,
            upstreams=[{"url": strict_url}, {"url": lenient_url}],
            rules=({"name": "r", "breakpoints": "auto"},),
            cache={"semantic": False},
        )
        with run_proxy(settings) as (proxy, services), httpx.Client(base_url=proxy, timeout=300) as client:
            assert services.built.fleet is not None
            engines = services.built.fleet.engines
            for number, (url, other) in enumerate([(strict_url, lenient_url), (lenient_url, strict_url)] * 2):
                engines[url].health.draining, engines[other].health.draining = False, True
                body = BODY | {"user": str(number), "seed": number}
                assert client.post("/v1/chat/completions", json=body).status_code == 200
    assert ["prompt_cache_key" in body for body in gateway.received] == [True, False, False]
    assert ["prompt_cache_key" in body for body in lenient.received] == [True, True]


def test_the_salt_of_a_tenant_stays_if_the_fields_are_refused(tmp_path: Path, gateway: Gateway) -> None:
    """Without its salt, a tenant would share the prefixes of others in the engine."""
    with run_upstream(gateway.answer) as url:
        settings = load_settings(
            data=tmp_path,
            upstream=url,
            rules=({"name": "r", "breakpoints": "auto"},),
            routing={"hints": ["cache_salt"]},
            cache={"semantic": False},
        )
        with run_proxy(settings) as (proxy, _), httpx.Client(base_url=proxy, timeout=300) as client:
            headers = {"authorization": "Bearer sk-ann"}
            assert client.post("/v1/chat/completions", json=BODY, headers=headers).status_code == 200
    marked, unmarked = gateway.received
    assert "prompt_cache_key" in marked
    assert "prompt_cache_key" not in unmarked
    assert unmarked["cache_salt"] == marked["cache_salt"]
