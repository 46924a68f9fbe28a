"""A proxy whose exchanges with clients are recorded, to compare them with its exchanges with the upstream."""

import contextlib
import re
from collections.abc import Iterator, Sequence
from typing import Any, cast

from starlette.types import ASGIApp

from kvproxy.http.serve import make_server
from kvproxy.http.services import Services, build_services
from kvproxy.settings import Settings
from tests.clients.scripted_upstream import Exchange, ExchangeRecorder
from tests.servers import end_after_report, run_server

_REQUESTED_USAGE = b'{"stream_options":{"include_usage":true},'
_USAGE_CHUNK = re.compile(rb'data: [^\n]*"choices": \[\], "usage": \{[^\n]*\n\n')


@contextlib.contextmanager
def run_recorded_proxy(settings: Settings, port: int = 0) -> Iterator[tuple[str, Services, list[Exchange]]]:
    """Run a proxy; yield its URL, its services, and its exchanges with clients."""
    limits = settings.limits.model_copy(update={"drain_seconds": 0.0})
    services = build_services(settings.model_copy(update={"limits": limits}))
    server = make_server(services)
    recorder = ExchangeRecorder(end_after_report(cast("ASGIApp", server.config.app)))
    server.config.app = cast("Any", recorder)
    with run_server(server, port) as url:
        yield url, services, recorder.exchanges


def request_id(exchange: Exchange) -> str:
    """Return the proxy's id of an exchange with a client."""
    headers = exchange.response_headers
    return headers.get("x-kvproxy-request-id") or headers.get("x-request-id", "")


def forwarded_pairs(clients: Sequence[Exchange], upstreams: Sequence[Exchange]) -> Iterator[tuple[Exchange, Exchange]]:
    """Yield each exchange with a client that was forwarded, with its exchange with the upstream.

    Cached routes are matched by the proxy's request id, which the proxy does not add to other routes: these are matched
    by method and path, in order.
    """
    by_id = {each.headers.get("x-request-id"): each for each in upstreams}
    others = [each for each in upstreams if "x-request-id" not in each.headers]
    for client in clients:
        upstream = by_id.get(request_id(client))
        if upstream is None and not is_hit(client):
            upstream = next((each for each in others if (each.method, each.path) == (client.method, client.path)), None)
            if upstream is not None:
                others.remove(upstream)
        if upstream is not None:
            yield client, upstream


def without_requested_usage(client: Exchange, upstream: Exchange) -> tuple[bytes, bytes]:
    """Return the upstream's request and response without the usage of the stream that only the proxy asked for."""
    if not upstream.body.startswith(_REQUESTED_USAGE) or client.body.startswith(_REQUESTED_USAGE):
        return upstream.body, upstream.content
    return b"{" + upstream.body.removeprefix(_REQUESTED_USAGE), _USAGE_CHUNK.sub(b"", upstream.content)


def is_hit(exchange: Exchange) -> bool:
    return "kvproxy; hit" in exchange.response_headers.get("cache-status", "")
