"""Counted requests, also those without a response, and the health of a broken engine."""

import asyncio
import contextlib
import re
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest
from prometheus_client.parser import text_string_to_metric_families
from starlette.requests import Request
from starlette.responses import JSONResponse, Response

import kvproxy
from kvproxy.http.metrics import Metrics
from kvproxy.http.services import Services
from kvproxy.telemetry.initial_series import LIMITS
from tests.plain_upstream import WHOLE
from tests.polling import until
from tests.requests import chat
from tests.servers import run_front, run_upstream


@pytest.fixture(scope="module")
def url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    async def answer(request: Request) -> Response:
        if b"slow" in await request.body():
            await asyncio.sleep(30)
        usage = {"prompt_tokens": 9, "completion_tokens": 7, "total_tokens": 16}
        if b"reused" in await request.body():
            usage |= {"prompt_tokens_details": {"cached_tokens": 4}}
        return JSONResponse(WHOLE | {"usage": usage})

    data: Path = tmp_path_factory.mktemp("metrics")
    with run_upstream(answer) as upstream, run_front(data, upstream) as (proxy, _):
        yield proxy


def counted(url: str) -> dict[tuple[str, str], float]:
    """Requests by layer and status."""
    text = httpx.get(f"{url}/metrics").text
    found: dict[tuple[str, str], float] = {}
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            if sample.name == "kvproxy_requests_total":
                key = (sample.labels["layer"], sample.labels["status"])
                found[key] = found.get(key, 0) + sample.value
    return {key: value for key, value in found.items() if value}


def test_usual_series_exist_before_their_first_event(url: str) -> None:
    samples = httpx.get(f"{url}/metrics").text.splitlines()
    for series in (
        'kvproxy_requests_total{endpoint="messages",layer="forward",status="500"}',
        'kvproxy_requests_total{endpoint="embeddings",layer="error",status="504"}',
        'kvproxy_limited_total{limit="queue_size"}',
        'kvproxy_not_stored_total{cause="empty"}',
    ):
        assert f"{series} 0.0" in samples
    metrics = Metrics()
    metrics.begin_clients({"quiet"})
    samples = metrics.render().decode().splitlines()
    assert 'kvproxy_client_requests_total{client="quiet",status="200"} 0.0' in samples
    assert 'kvproxy_client_tokens_total{client="quiet"} 0.0' in samples


def test_the_series_of_each_limit_exists_from_the_start() -> None:
    source = Path(kvproxy.__file__).parent
    named = {name for file in source.rglob("*.py") for name in re.findall(r'\blimit="(\w+)"', file.read_text())}
    assert {"routes", "overload_seconds"} <= named <= set(LIMITS)


def test_a_client_that_hangs_up_is_gone_and_no_error(url: str) -> None:
    with contextlib.suppress(httpx.ReadTimeout):
        httpx.post(f"{url}/v1/chat/completions", json=chat("slow"), timeout=0.3)
    until(lambda: ("disconnected", "499") in counted(url))
    assert counted(url)["disconnected", "499"] == 1
    assert not [key for key in counted(url) if key[0] == "error"]


def test_response_tokens_and_durations_are_counted_by_layer(url: str) -> None:
    for _ in range(2):
        assert httpx.post(f"{url}/v1/chat/completions", json=chat("counted"), timeout=300).status_code == 200

    def lines() -> list[str]:
        return httpx.get(f"{url}/metrics").text.splitlines()

    # The end of a request is counted a moment after its response.
    until(lambda: 'kvproxy_completion_tokens_total{layer="exact"} 7.0' in lines())
    assert 'kvproxy_completion_tokens_total{layer="forward"} 7.0' in lines()
    assert 'kvproxy_request_seconds_count{layer="exact"} 1.0' in lines()
    (seconds,) = (line for line in lines() if line.startswith('kvproxy_request_seconds_sum{layer="exact"}'))
    assert 0 < float(seconds.split()[1]) < 300


def test_the_layers_are_those_of_the_journal(url: str) -> None:
    before = counted(url).get(("prefix", "200"), 0)
    assert httpx.post(f"{url}/v1/chat/completions", json=chat("reused"), timeout=300).status_code == 200
    until(lambda: counted(url).get(("prefix", "200"), 0) == before + 1)


def test_a_broken_engine_is_told(demo: tuple[str, Services], monkeypatch: pytest.MonkeyPatch) -> None:
    """A device error that stays left `/health` ok, while every request failed."""
    url, services = demo
    assert httpx.get(f"{url}/health").json()["status"] == "ok"
    assert httpx.get(f"{url}/ready").json() == {"status": "ready"}
    monkeypatch.setattr(type(services.built.worker), "failure", property(lambda worker: "CUDA error: device lost"))
    for path in ("/health", "/ready"):
        answer = httpx.get(url + path)
        assert (answer.status_code, answer.json()["error"]) == (503, "CUDA error: device lost")
    assert httpx.get(f"{url}/metrics").status_code == 200
