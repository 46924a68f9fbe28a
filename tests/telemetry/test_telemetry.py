"""Trace contexts, and spans and metrics as a collector receives them from proxies."""

import inspect
import re
import resource
import socket
import time
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path

import httpx
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from opentelemetry.semconv._incubating.attributes import gen_ai_attributes
from opentelemetry.semconv._incubating.metrics import gen_ai_metrics
from opentelemetry.semconv.attributes import error_attributes, http_attributes, server_attributes
from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from kvproxy.apis.trace_context import Trace
from kvproxy.exchange import Exchange
from kvproxy.settings import load_settings
from kvproxy.settings.telemetry import TelemetrySettings
from kvproxy.telemetry import otlp_export
from kvproxy.telemetry.otlp_export import Exporter
from tests.endless_upstream import DRIP, FLOOD, SILENCE, run_endless
from tests.plain_upstream import WHOLE
from tests.polling import until
from tests.requests import api_request
from tests.servers import run_front, run_proxy, run_upstream
from tests.telemetry.collector import Collected, Span, run_collector

PARENT = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"
SECRET = "the secret of the harbour"


class Upstream:
    """Records the trace headers of its requests, and fails on request."""

    def __init__(self) -> None:
        self.told: list[str | None] = []

    async def chat(self, request: Request) -> Response:
        if request.method == "POST":
            self.told.append(request.headers.get("traceparent"))
        if "fail" in (await request.body()).decode():
            return JSONResponse({"error": {"message": "no"}}, 500)
        details = {"cached_tokens": 8, "cache_write_tokens": 3}
        usage = {"prompt_tokens": 12, "completion_tokens": 3, "prompt_tokens_details": details}
        return JSONResponse(WHOLE | {"usage": usage})


# First, because Hypothesis refuses random numbers of other threads, which an exporter draws when it retries.
@settings(max_examples=30)
@given(st.text() | st.from_regex(r"[0-9a-f]{2}-[0-9a-f]{32}-[0-9a-f]{16}-[0-9a-f]{2}", fullmatch=True))
def test_any_header_makes_a_trace_of_the_right_form(header: str) -> None:
    trace = Trace.begin(header)
    again = Trace.begin(trace.header)
    assert (again.id, again.parent, again.sampled) == (trace.id, trace.call, trace.sampled)
    if trace.parent is not None:
        assert trace.parent in header
        assert trace.id in header


@pytest.fixture(scope="module")
def collected() -> Iterator[Collected]:
    with run_collector() as running:
        yield running


@pytest.fixture(scope="module")
def upstream() -> Iterator[tuple[str, Upstream]]:
    server = Upstream()
    with run_upstream(server.chat) as url:
        yield url, server


@pytest.fixture(scope="module")
def proxy(
    collected: Collected, upstream: tuple[str, Upstream], tmp_path_factory: pytest.TempPathFactory
) -> Iterator[str]:
    telemetry = {"endpoint": collected.url, "interval": 0.1, "service": "gateway"}
    data = tmp_path_factory.mktemp("telemetry")
    with run_proxy(load_settings(data=data, upstream=upstream[0], telemetry=telemetry)) as (url, _):
        yield url


def ask(url: str, question: str, traceparent: str | None = None, **more: object) -> httpx.Response:
    body = {"model": "m", "messages": [{"role": "user", "content": question}], **more}
    headers = {"cache-control": "confirm"} | ({"traceparent": traceparent} if traceparent else {})
    return httpx.post(f"{url}/v1/chat/completions", json=body, headers=headers, timeout=300)


def request_span(collected: Collected, answer: httpx.Response) -> Span:
    """The span of the request that an answer is to."""

    def those() -> list[Span]:
        id = answer.headers["x-request-id"]
        return [span for span in collected.spans if span.attributes.get("kvproxy.request_id") == id]

    until(lambda: bool(those()))
    (span,) = those()
    return span


def children(collected: Collected, span: Span, count: int) -> list[Span]:
    def those() -> list[Span]:
        return [each for each in collected.spans if each.parent == span.id and each.trace == span.trace]

    until(lambda: len(those()) >= count)
    return sorted(those(), key=lambda each: (each.start, each.end))


def test_a_request_is_one_span_with_its_steps(collected: Collected, proxy: str, upstream: tuple[str, Upstream]) -> None:
    answer = ask(proxy, SECRET, PARENT, temperature=0, max_tokens=50)
    span = request_span(collected, answer)
    assert (span.service, span.name, span.kind) == ("gateway", "chat m", 2)
    assert (span.trace, span.parent) == (PARENT[3:35], PARENT[36:52])
    assert not span.failed
    wanted = {
        "gen_ai.operation.name": "chat",
        "gen_ai.provider.name": "openai",
        "gen_ai.request.model": "m",
        "gen_ai.request.max_tokens": 50,
        "gen_ai.request.temperature": 0,
        "gen_ai.request.stream": False,
        "gen_ai.usage.input_tokens": 12,
        "gen_ai.usage.output_tokens": 3,
        "gen_ai.usage.cache_read.input_tokens": 8,
        "gen_ai.usage.cache_creation.input_tokens": 3,
        "http.response.status_code": 200,
        "kvproxy.layer": "prefix",
        "kvproxy.reason": "miss-new",
    }
    assert {name: span.attributes.get(name) for name in wanted} == wanted
    steps = children(collected, span, 3)
    assert [step.name for step in steps] == ["lookup exact", "lookup semantic", "upstream"]
    assert steps[-1].kind == 3
    assert steps[-1].attributes["server.address"] == upstream[0]
    assert upstream[1].told[-1] == f"00-{span.trace}-{steps[-1].id}-01"
    for step, after in pairwise(steps):
        assert span.start <= step.start <= step.end <= after.start
    assert steps[-1].end <= span.end
    # Spans have no text of the prompt.
    assert not any(SECRET in str(each.attributes.values()) for each in collected.spans)

    hit = ask(proxy, SECRET, temperature=0, max_tokens=50)
    assert "hit" in hit.headers["cache-status"]
    span = request_span(collected, hit)
    assert span.attributes["kvproxy.layer"] == "exact"
    assert not {name for name in span.attributes if name.startswith("gen_ai.usage.cache")}
    assert span.parent == ""
    assert [step.name for step in children(collected, span, 1)] == ["lookup exact"]

    # An equal request has a trace of its own.
    other = f"00-{1:032x}-{'3' * 16}-01"
    again = request_span(collected, ask(proxy, SECRET, other, temperature=0, max_tokens=50))
    assert (again.trace, again.parent) == (other[3:35], "3" * 16)


def test_each_name_is_one_of_the_semantic_conventions(
    collected: Collected, proxy: str, upstream: tuple[str, Upstream]
) -> None:
    """Also the names of attributes that no test sends."""
    known = {
        value
        for module in (gen_ai_attributes, gen_ai_metrics, error_attributes, http_attributes, server_attributes)
        for value in vars(module).values()
        if isinstance(value, str)
    }
    source = inspect.getsource(otlp_export)
    named = set(re.findall(r'"((?:gen_ai|http|error|server)\.[a-z_.0-9]+)"', source))
    assert {
        gen_ai_attributes.GEN_AI_USAGE_CACHE_READ_INPUT_TOKENS,
        gen_ai_attributes.GEN_AI_USAGE_CACHE_CREATION_INPUT_TOKENS,
        gen_ai_metrics.GEN_AI_CLIENT_TOKEN_USAGE,
    } <= named
    assert named - known == set()
    span = request_span(collected, ask(proxy, "Which names?"))
    sent = {name for each in [span, *children(collected, span, 1)] for name in each.attributes}
    assert {name for name in sent if not name.startswith("kvproxy.")} <= known
    operations = {each.value for each in gen_ai_attributes.GenAiOperationNameValues}
    assert set(otlp_export._OPERATIONS.values()) <= operations
    providers = {each.value for each in gen_ai_attributes.GenAiProviderNameValues}
    assert set(otlp_export._PROVIDERS.values()) | {"openai"} <= providers


def test_errors_are_told(collected: Collected, proxy: str) -> None:
    answer = ask(proxy, "fail")
    assert answer.status_code == 500
    span = request_span(collected, answer)
    assert span.failed
    assert span.attributes["error.type"] == "500"
    refused = httpx.post(f"{proxy}/v1/chat/completions", json={"model": "m"}, headers={"x-kvproxy-ttl": "x"})
    assert refused.status_code == 400
    span = request_span(collected, refused)
    assert span.attributes["error.type"] == span.attributes["kvproxy.reason"] == "refused-invalid"


def test_a_trace_that_is_not_sampled_is_passed_on_and_not_sent(
    collected: Collected, proxy: str, upstream: tuple[str, Upstream]
) -> None:
    trace = "1" * 32
    ask(proxy, "Unsampled?", f"00-{trace}-{'2' * 16}-00")
    told = upstream[1].told[-1]
    assert told is not None
    assert told.startswith(f"00-{trace}-")
    assert told.endswith("-00")
    assert told[36:52] != "2" * 16
    request_span(collected, ask(proxy, "Sampled, and after it."))
    assert trace not in {span.trace for span in collected.spans}


def test_metrics_count_what_was_asked(collected: Collected, proxy: str) -> None:
    ask(proxy, "Counted?")
    ask(proxy, "Counted?")

    def hits() -> float:
        points = collected.points.get("gen_ai.server.request.duration", [])
        return sum(count for labels, count in points if labels["kvproxy.layer"] == "exact")

    until(lambda: hits() >= 1)
    for name in ("gen_ai.server.time_to_first_token", "gen_ai.client.token.usage", "kvproxy.reused_tokens"):
        assert collected.points[name], name
    kinds = {str(labels["gen_ai.token.type"]) for labels, _ in collected.points["gen_ai.client.token.usage"]}
    assert kinds == {"input", "output"}


def test_spans_are_sent_when_the_proxy_stops(
    collected: Collected, upstream: tuple[str, Upstream], tmp_path: Path
) -> None:
    with run_front(tmp_path, upstream[0], telemetry={"endpoint": collected.url, "interval": 600}) as (url, _):
        answer = ask(url, "Sent at the end?")
    assert request_span(collected, answer).attributes["gen_ai.usage.output_tokens"] == 3


def test_the_embedded_engine_is_a_step(collected: Collected) -> None:
    exporter = Exporter(TelemetrySettings(endpoint=collected.url))
    request = api_request({"model": "m", "messages": []})
    exporter.add(Exchange("chat", "id", request=request, layer="forward", exact_done=1.0, semantic_done=2.0))
    exporter.close()
    trace = next(span.trace for span in collected.spans if span.attributes.get("kvproxy.request_id") == "id")
    names = [span.name for span in collected.spans if span.trace == trace]
    assert names == ["chat m", "lookup exact", "lookup semantic", "engine"]


def test_a_collector_that_is_away_harms_nobody(upstream: tuple[str, Upstream], tmp_path: Path) -> None:
    telemetry = {"endpoint": "http://127.0.0.1:9", "interval": 0.1}
    with run_front(tmp_path, upstream[0], telemetry=telemetry) as (url, _):
        for _ in range(3):
            assert ask(url, "Is anybody there?").status_code == 200


@pytest.mark.parametrize(
    ("status", "body"), [("200 OK", FLOOD), ("307 Moved", FLOOD), ("503 Busy", DRIP), ("200 OK", SILENCE)]
)
def test_a_collector_neither_fills_the_memory_nor_delays_the_end(status: str, body: str) -> None:
    with run_endless(body, status) as (url, asked):
        exporter = Exporter(TelemetrySettings(endpoint=url, interval=0.05), timeout=0.5)
        before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        add_exchanges(exporter)
        until(lambda: set(asked) == {"/v1/traces", "/v1/metrics"})
        began = time.monotonic()
        exporter.close()
        assert time.monotonic() - began < 30
        assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 150 * 1024
    # It follows no redirect.
    assert "/elsewhere" not in asked


def test_a_collector_that_accepts_and_never_answers_does_not_delay_the_end() -> None:
    with socket.create_server(("127.0.0.1", 0), backlog=64) as listener:
        url = f"http://127.0.0.1:{listener.getsockname()[1]}"
        exporter = Exporter(TelemetrySettings(endpoint=url, interval=0.05), timeout=0.5)
        add_exchanges(exporter)
        began = time.monotonic()
        exporter.close()
        assert time.monotonic() - began < 30


def add_exchanges(exporter: Exporter) -> None:
    """Fill several batches."""
    for _ in range(2000):
        exchange = Exchange("chat", "id", request=api_request({"model": "m", "messages": []}), layer="forward")
        exchange.ended = time.perf_counter()
        exporter.add(exchange)


def test_the_share_of_traces_that_begin_here_is_as_set() -> None:
    assert not any(Trace.begin(None, 0.0).sampled for _ in range(100))
    assert all(Trace.begin(None, 1.0).sampled for _ in range(100))
    assert 300 < sum(Trace.begin(None, 0.5).sampled for _ in range(1000)) < 700
