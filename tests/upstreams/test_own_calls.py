"""The proxy's own calls end at a limit of bytes and of time, whatever an upstream or a collector sends."""

import resource
import time
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from kvproxy.errors import KvproxyError, UpstreamProtocolError, UpstreamTimeout
from kvproxy.installation.checks.servers import check_upstream
from kvproxy.settings import UpstreamServer, UpstreamSettings, load_settings
from kvproxy.upstreams.client import UpstreamClient
from kvproxy.upstreams.limited_fetch import FetchError, fetch
from tests.endless_upstream import DRIP, FLOOD, run_endless
from tests.servers import run_front


@pytest.fixture(scope="module")
def flood() -> Iterator[str]:
    with run_endless(FLOOD) as (url, _):
        yield url


@pytest.fixture(scope="module")
def slow() -> Iterator[str]:
    with run_endless(DRIP) as (url, _):
        yield url


async def call(url: str, seconds: float) -> None:
    client = UpstreamClient(UpstreamServer(url=url), UpstreamSettings())
    client.open()
    try:
        await client.call_json("POST", "/tokenize", {"prompt": "a"}, seconds=seconds)
    finally:
        await client.close()


async def test_a_call_ends_at_its_limits(flood: str, slow: str) -> None:
    with pytest.raises(UpstreamProtocolError, match="/tokenize sent more than 8,388,"):
        await call(flood, 60.0)
    with pytest.raises(UpstreamTimeout, match=r"0\.2 s"):
        await call(slow, 0.2)


def test_a_fetch_of_a_command_ends_at_its_limits(flood: str, slow: str, tmp_path: Path) -> None:
    with pytest.raises(FetchError, match="more than 8,388,608 bytes"):
        fetch(flood, 60.0)
    began = time.monotonic()
    with pytest.raises(FetchError, match="did not end"):
        fetch(slow, 0.3)
    assert time.monotonic() - began < 30
    settings = load_settings(data=tmp_path, upstream=flood)
    with pytest.raises(KvproxyError, match="more than"):
        check_upstream(settings.servers[0], settings)


def test_a_running_proxy_keeps_its_memory(flood: str, slow: str, tmp_path: Path) -> None:
    """Every route of the upstreams is endless: models, metrics, health, properties, slots, and tokens."""
    routing = {"metrics_interval": 0.05, "health_interval": 0.05, "health_timeout": 5.0}
    servers = [{"url": flood}, {"url": f"{flood}/b"}, {"url": slow}]
    with run_front(tmp_path, "", upstreams=servers, routing=routing) as (url, services):
        fleet = services.built.fleet
        assert fleet is not None
        before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        time.sleep(2)
        assert httpx.get(f"{url}/health", timeout=300).status_code == 200
        grown = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before
    # The upstream runs in this process, too.
    assert grown < 150 * 1024
