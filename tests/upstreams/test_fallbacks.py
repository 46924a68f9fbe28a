"""Fallbacks while all upstreams of a model refuse requests: no attempt is wasted, and metrics and the log show it."""

from collections.abc import AsyncIterator, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import httpx
import pytest
from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from kvproxy.apis import APIS
from kvproxy.apis.api_request import ApiRequest
from kvproxy.backends.protocol import RelayedResponse
from kvproxy.installation.checks.servers import check_proxy
from kvproxy.settings import load_settings
from kvproxy.upstreams import model_routes, retry_log
from kvproxy.upstreams.model_routes import ModelRoutes
from kvproxy.upstreams.retry_log import RetryLog
from tests.servers import run_proxy, run_upstream
from tests.upstreams.fleets import WHOLE

LARGE, SMALL = "large", "small"


@dataclass
class Refusing:
    """An upstream that answers, or refuses requests."""

    status: int = 200
    headers: dict[str, str] = field(default_factory=dict)
    got: int = 0

    async def answer(self, request: Request) -> Response:
        if request.method == "GET":
            return Response()
        self.got += 1
        if self.status != 200:
            return JSONResponse({"error": {"message": "no"}}, self.status, self.headers)
        return JSONResponse(WHOLE)


@dataclass
class Running:
    url: str
    urls: list[str]
    large: list[Refusing]
    small: Refusing

    def ask(self, **fields: object) -> int:
        body = {"model": LARGE, "messages": [{"role": "user", "content": "x"}], **fields}
        return httpx.post(f"{self.url}/v1/chat/completions", json=body, timeout=300).status_code

    def metric(self, name: str, label: str) -> float:
        lines = httpx.get(f"{self.url}/metrics").raise_for_status().text.splitlines()
        return next(float(line.split()[-1]) for line in lines if line.startswith(f"kvproxy_{name}{{{label}}}"))

    def upstream_metric(self, name: str, index: int) -> float:
        return self.metric(f"upstream_{name}", f'upstream="{self.urls[index]}"')


@contextmanager
def running(data: Path) -> Iterator[Running]:
    """Run two upstreams of a model, and one of its fallback."""
    large, small = [Refusing(), Refusing()], Refusing()
    with ExitStack() as stack:
        urls = [stack.enter_context(run_upstream(each.answer)) for each in (*large, small)]
        upstreams = [{"url": url, "models": [model]} for url, model in zip(urls, (LARGE, LARGE, SMALL), strict=True)]
        settings = load_settings(
            data=data,
            upstreams=upstreams,
            cache={"enabled": False},
            routing={"health_interval": 60.0, "fallbacks": {LARGE: [SMALL]}},
        )
        url, _ = stack.enter_context(run_proxy(settings))
        yield Running(url, urls, large, small)


def test_a_cooldown_of_all_upstreams_sends_requests_to_the_fallback_at_once(tmp_path: Path) -> None:
    with running(tmp_path) as proxy:
        assert proxy.ask() == 200
        before = [each.got for each in proxy.large]
        for each in proxy.large:
            each.status, each.headers = 503, {"Retry-After": "60"}
        assert [proxy.ask() for _ in range(4)] == [200] * 4
        # Only the first request was refused, by both.
        assert [each.got - count for each, count in zip(proxy.large, before, strict=True)] == [1, 1]
        # The conversation may be stored, but no upstream of the model received this request.
        assert proxy.ask(store=True) == 200
        assert [proxy.upstream_metric("retried_total", index) for index in (0, 1, 2)] == [1, 1, 0]
        assert [proxy.upstream_metric("cooldown", index) for index in (0, 1, 2)] == [1, 1, 0]
        assert proxy.metric("fallback_requests_total", 'model="large"') == 6
        assert proxy.metric("fallback_answered_total", 'model="large"') == 5
        health = httpx.get(f"{proxy.url}/admin/health").json()
        assert health["status"] == "degraded"
        assert [(each["url"], each["state"]) for each in health["upstreams"]] == [
            *((url, "cooldown") for url in proxy.urls[:2]),
            (proxy.urls[2], "up"),
        ]
        assert "answers at" in check_proxy(proxy.url, None)
        # Without a healthy fallback, the upstreams of the model are tried again.
        proxy.small.status, proxy.small.headers = 429, {"Retry-After": "60"}
        assert proxy.ask() == 429
        # An outage of all is no answer of the model.
        assert proxy.metric("fallback_requests_total", 'model="large"') == 6
        proxy.large[0].status = proxy.large[1].status = 200
        assert proxy.ask() == 200
        assert proxy.metric("fallback_answered_total", 'model="large"') == 5


def test_a_route_that_an_upstream_lacks_does_not_eject_it(tmp_path: Path) -> None:
    with running(tmp_path) as proxy:
        for status in (404, 405, 501):
            for each in proxy.large:
                each.status = status
            assert [proxy.ask() for _ in range(5)] == [status] * 5
        assert proxy.small.got == 0
        for index in (0, 1):
            assert (proxy.upstream_metric("up", index), proxy.upstream_metric("ejections_total", index)) == (1, 0)


def test_the_error_names_the_requested_model_if_its_fallback_drains_too(tmp_path: Path) -> None:
    with running(tmp_path) as proxy:
        for number in (1, 2, 3):
            assert httpx.post(f"{proxy.url}/admin/upstreams/drain", params={"name": number}).is_success
        body: dict[str, object] = {"model": LARGE, "messages": [{"role": "user", "content": "x"}]}
        refused = httpx.post(f"{proxy.url}/v1/chat/completions", json=body)
        assert (refused.status_code, refused.json()["error"]["message"]) == (
            503,
            "no upstream takes requests for large (all its upstreams are draining), and all upstreams of its fallback small are"
            " draining: restore one with kvproxy upstreams undrain",
        )
        # A reverse proxy forwards requests of clients.
        for model, cause in (
            (LARGE, "no upstream takes requests for large, and all upstreams of its fallback small are draining"),
            (SMALL, "all upstreams of the model small are draining"),
        ):
            body["model"], forwarded = model, {"x-forwarded-for": "192.0.2.1"}
            error = httpx.post(f"{proxy.url}/v1/chat/completions", json=body, headers=forwarded).json()["error"]
            assert (error["code"], error["message"]) == (
                "overloaded",
                f"{cause}: send the request again later, or ask the operator",
            )


def test_the_hand_over_to_a_fallback_counts_as_a_retry(tmp_path: Path) -> None:
    with running(tmp_path) as proxy:
        for each in proxy.large:
            each.status = 500
        assert proxy.ask() == 200
        assert [proxy.upstream_metric("retried_total", index) for index in (0, 1, 2)] == [1, 1, 0]
        # The error of the last fallback goes to the client.
        proxy.small.status = 500
        assert proxy.ask() == 500
        assert [proxy.upstream_metric("retried_total", index) for index in (0, 1, 2)] == [2, 2, 0]
        assert proxy.metric("fallback_answered_total", 'model="large"') == 1


def test_retries_in_an_outage_are_logged_once_with_the_fields_of_the_request(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level("WARNING", "kvproxy"), running(tmp_path) as proxy:
        for each in proxy.large:
            each.status = 429
        for _ in range(5):
            assert proxy.ask() == 200
    retries = [record for record in caplog.records if "trying" in record.message]
    first, second = (record.message for record in retries)
    assert first in [f"HTTP 429 of {url}: trying another upstream" for url in proxy.urls[:2]]
    assert second == "large: HTTP 429; trying the fallback small"
    fields = [record.fields for record in retries]  # type: ignore[attr-defined]
    assert {each["model"] for each in fields} == {LARGE}
    assert all(each["request_id"] for each in fields)
    assert fields[0]["upstream"] in proxy.urls[:2]


def test_a_repeated_cause_is_logged_once_a_minute_with_its_count(caplog: pytest.LogCaptureFixture) -> None:
    now = 100.0
    log = RetryLog(lambda: now)
    request = ApiRequest(APIS["chat"], {"model": LARGE}, b"", {}, "public", "id-1")
    with caplog.at_level("WARNING", "kvproxy"):
        for _ in range(4):
            log.warn(request, "429", "refused", upstream="http://u")
        log.warn(request, "500", "broken", upstream="http://u")
        now += 61.0
        log.warn(request, "429", "refused", upstream="http://u")
    assert caplog.messages == ["refused", "broken", "refused (and 3 more since the last such line)"]


def test_causes_of_retries_are_bounded(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    monkeypatch.setattr(retry_log, "_MAX_CAUSES", 3)
    log = RetryLog()
    request = ApiRequest(APIS["chat"], {"model": LARGE}, b"", {}, "public", "id-1")
    with caplog.at_level("WARNING", "kvproxy"):
        for kind in ("a", "b", "c", "d", "d", "a"):
            log.warn(request, kind, kind, upstream="http://u")
    assert caplog.messages == ["a", "b", "c", "d", "a"]
    assert len(log._causes) == 2


async def test_models_of_a_pattern_are_summed_beyond_the_bound(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(model_routes, "_MAX_COUNTED_MODELS", 2)
    upstreams = [{"url": "http://127.0.0.1:1", "models": ["m*"]}, {"url": "http://127.0.0.1:2", "models": [SMALL]}]
    settings = load_settings(data=tmp_path, upstreams=upstreams, routing={"fallbacks": {"m*": [SMALL]}})
    routes = ModelRoutes(settings.servers, settings.routing)

    async def no_chunks() -> AsyncIterator[bytes]:
        yield b""

    async def send(request: ApiRequest, is_final: bool) -> RelayedResponse:
        return RelayedResponse(200, [], no_chunks())

    for number in range(5):
        request = ApiRequest(APIS["chat"], {"model": f"m{number}"}, b"{}", {}, "public", "id")
        await routes.send(request, send, lambda route: True)
    assert {name: counts.requests for name, counts in routes.fallback_counts.items()} == {
        "m0": 1,
        "m1": 1,
        "(others)": 3,
    }
