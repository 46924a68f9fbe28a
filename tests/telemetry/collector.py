"""A collector that receives OTLP over HTTP, and keeps the received data."""

import contextlib
import gzip
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import SimpleNamespace

from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import ExportMetricsServiceRequest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.proto.common.v1.common_pb2 import KeyValue


class Span(SimpleNamespace):
    """A span as it came; ids are hexadecimal, `parent` is empty for a first one."""


@dataclass(slots=True)
class Collected:
    """The received spans, and the points of each metric with their attributes and counts."""

    url: str
    spans: list[Span] = field(default_factory=list)
    points: dict[str, list[tuple[dict[str, object], float]]] = field(default_factory=dict)


def _plain(pairs: "list[KeyValue]") -> dict[str, object]:
    return {pair.key: getattr(pair.value, pair.value.WhichOneof("value")) for pair in pairs}


def _take_spans(raw: bytes, into: Collected) -> None:
    for resource in ExportTraceServiceRequest.FromString(raw).resource_spans:
        service = str(_plain(resource.resource.attributes)["service.name"])
        for scope in resource.scope_spans:
            for each in scope.spans:
                ids = {"trace": each.trace_id.hex(), "id": each.span_id.hex(), "parent": each.parent_span_id.hex()}
                times = {"start": each.start_time_unix_nano, "end": each.end_time_unix_nano}
                known = {"name": each.name, "kind": each.kind, "failed": each.status.code == 2, **ids, **times}
                into.spans.append(Span(service=service, attributes=_plain(each.attributes), **known))


def _take_points(raw: bytes, into: Collected) -> None:
    for resource in ExportMetricsServiceRequest.FromString(raw).resource_metrics:
        for scope in resource.scope_metrics:
            for metric in scope.metrics:
                kept = into.points.setdefault(metric.name, [])
                kept.clear()
                kept += [(_plain(point.attributes), point.count) for point in metric.histogram.data_points]
                kept += [(_plain(point.attributes), point.as_int) for point in metric.sum.data_points]


@contextlib.contextmanager
def run_collector() -> Iterator[Collected]:
    """Serve one until the block ends."""

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            raw = self.rfile.read(int(self.headers["content-length"]))
            raw = gzip.decompress(raw) if self.headers.get("content-encoding") == "gzip" else raw
            {"/v1/traces": _take_spans, "/v1/metrics": _take_points}[self.path](raw, collected)
            self.send_response(200)
            self.send_header("content-length", "0")
            self.end_headers()

        def log_message(self, *_: object) -> None:
            """Say nothing."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    collected = Collected(f"http://127.0.0.1:{server.server_port}")
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True)
    thread.start()
    try:
        yield collected
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
