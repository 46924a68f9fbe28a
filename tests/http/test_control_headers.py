"""Our own request headers: how long an answer is kept, and that they end here."""

from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from kvproxy.http.services import Services
from kvproxy.settings import Settings, load_settings
from tests.http.conftest import Recorder
from tests.requests import post
from tests.servers import run_proxy
from tests.statuses import makes_entry

Proxy = tuple[str, Services]


def settings(data: Path, url: str, *, max_ttl: float | None = None) -> Settings:
    return load_settings(data=data, upstream=url, cache={"semantic": False, "ttl": 1000.0, "max_ttl": max_ttl})


@pytest.fixture(scope="module")
def proxy(recording: Recorder, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Proxy]:
    with run_proxy(settings(tmp_path_factory.mktemp("control"), recording.url)) as running:
        yield running


@pytest.mark.parametrize(
    ("max_ttl", "kept"),
    [
        (None, {"60": 60, "5000": 5000, "90d": 2_592_000, "": 1000}),
        (3000, {"5000": 3000, "2000": 2000}),
        (10, {"60": 10, "": 10}),
    ],
)
def test_a_request_sets_the_lifetime_within_the_limit(
    recording: Recorder, tmp_path: Path, max_ttl: int | None, kept: dict[str, int]
) -> None:
    with run_proxy(settings(tmp_path, recording.url, max_ttl=max_ttl)) as (url, services):
        for asked, seconds in kept.items():
            control = {"x_kvproxy_ttl": asked} if asked else {}
            status = post(url, f"for {asked}", cache_control="confirm", **control).headers["cache-status"]
            # A client sees how much of its lifetime is granted.
            assert ("; stored" in status, f"; ttl={seconds};" in status) == (True, asked != "")
            entry = services.cache.store.list_entries(limit=1)[0]
            assert entry.expires - entry.created == pytest.approx(seconds)
            # How long an answer is kept is no part of the question; as with no-store, a stored answer is served.
            assert "hit" in post(url, f"for {asked}", x_kvproxy_ttl="0").headers["cache-status"]
        assert not makes_entry(post(url, "never", x_kvproxy_ttl="0").headers["cache-status"])


def test_cache_status_tells_why_a_request_was_forwarded(proxy: Proxy) -> None:
    url = proxy[0]

    def forwarded(**headers: str) -> str:
        return post(url, "why", **headers).headers["cache-status"].split("; ")[1]

    assert forwarded(cache_control="no-store") == forwarded(cache_control="no-cache, no-store") == "fwd=uri-miss"
    assert forwarded(cache_control="confirm") == "fwd=uri-miss"
    assert forwarded(cache_control="no-cache, no-store") == forwarded(cache_control="max-age=0") == "fwd=request"
    assert httpx.get(f"{url}/v1/other").headers["cache-status"] == "kvproxy; fwd=bypass"
    # Nothing was forwarded, so the response is the proxy's own (RFC 9211, section 2).
    refused = [
        post(url, "new", cache_control="only-if-cached"),
        post(url, x_kvproxy_ttl="x"),
        httpx.get(f"{url}/health"),
    ]
    assert [(answer.status_code, answer.headers.get("cache-status")) for answer in refused] == [
        (504, None),
        (400, None),
        (200, None),
    ]


OURS = {"x_kvproxy_tags": "a", "x_kvproxy_ttl": "60", "X_KVProxy_Priority": "3"}


def test_our_headers_end_here(proxy: Proxy, recorder: Recorder) -> None:
    for path in ("/v1/chat/completions", "/v1/audio/speech"):
        post(proxy[0], "ends here", path=path, cache_control="max-age=5", x_other="kept", **OURS)
    for headers in recorder.headers:
        assert not [name for name in headers if name.startswith("x-kvproxy-")]
        assert headers["x-other"] == "kept"
    # A route that is not cached here may be cached behind.
    assert [headers.get("cache-control") for headers in recorder.headers] == [None, "max-age=5"]
