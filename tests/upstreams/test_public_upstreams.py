"""A public API is not probed with requests that it refuses: its clients' requests report its health."""

import itertools
from collections import Counter
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from kvproxy.errors import UpstreamUnreachable
from kvproxy.settings import UpstreamServer, load_settings
from kvproxy.upstreams.client import UpstreamClient
from kvproxy.upstreams.fleet_engine import FleetEngine
from kvproxy.upstreams.health import Health
from tests.servers import run_upstream

PATHS = Counter[str]()


async def answer(request: Request) -> Response:
    """Answer like a public API: it requires a key, and has no routes of engines."""
    PATHS[request.url.path] += 1
    return JSONResponse({"type": "error"}, 404)


@pytest.fixture
def api() -> Iterator[str]:
    PATHS.clear()
    with run_upstream(answer) as url:
        yield url


@asynccontextmanager
async def engine(folder: Path, url: str, connected_to: str) -> AsyncIterator[FleetEngine]:
    found = FleetEngine(UpstreamServer(url=url), load_settings(data=folder))
    await found.start()
    # A certificate would test only aiohttp.
    found.client._connections._set_server(connected_to)
    try:
        yield found
    finally:
        await found.close()


async def run_cycles(found: FleetEngine, number: int) -> None:
    for _ in range(number):
        await found.probe()
        await found.monitor()


async def test_a_public_api_is_asked_once_for_routes_that_it_lacks(tmp_path: Path, api: str) -> None:
    async with engine(tmp_path, "https://api.example.com", api) as found:
        await run_cycles(found, 100)
        assert max(PATHS.values()) == 1
        assert found.health.state == "up"
        assert set(PATHS) <= {"/health", "/metrics", "/props", "/slots"}


async def test_a_server_at_home_is_probed_although_it_lacks_the_route(tmp_path: Path, api: str) -> None:
    async with engine(tmp_path, api, api) as found:
        await run_cycles(found, 10)
        assert PATHS["/health"] == 10


async def test_a_failed_request_starts_the_probes_of_a_public_api_until_it_responds(tmp_path: Path, api: str) -> None:
    async with engine(tmp_path, "https://api.example.com", api) as found:
        await run_cycles(found, 1)
        found.client._connections._set_server("http://127.0.0.1:9")
        with pytest.raises(UpstreamUnreachable):
            await found.client.forward("POST", "/v1/messages", {}, b"{}")
        found.health.record_failure("unreachable")
        await run_cycles(found, 2)
        # The second probe waits for its pause.
        assert found.health.failures == 2
        found.client._connections._set_server(api)
        found.health._next_probe = 0.0
        await run_cycles(found, 5)
        assert found.health.state == "up"
        assert found.health.failures == 0
        assert PATHS["/health"] == 2


class _Scripted(UpstreamClient):
    """A public API whose edge server begins to fail."""

    def __init__(self) -> None:
        super().__init__(UpstreamServer(url="https://api.example.com"), load_settings().forward)
        self.statuses: list[int] = []

    async def probe(self, path: str, *, seconds: float) -> int:
        return self.statuses.pop(0)


async def test_the_pauses_between_probes_of_a_failing_api_double_up_to_a_minute() -> None:
    client, now = _Scripted(), 0.0
    client.statuses = [404] + [503] * 8
    health = Health(client, 3, 5.0, 2.0, lambda: now)
    await health.probe()
    health.record_failure("reset")
    times = []
    while client.statuses:
        if health.is_probe_due:
            times.append(now)
            await health.probe()
        now += 1
    assert [later - sooner for sooner, later in itertools.pairwise(times)] == [8, 16, 32, 60, 60, 60, 60]
    assert health.state == "ejected"
