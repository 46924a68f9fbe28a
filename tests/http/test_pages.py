"""Web pages: those of another origin can do nothing, on any route, by whatever name they reach the proxy."""

from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from kvproxy.http.access_rules import host_of, is_public_name
from tests.http.conftest import Recorder
from tests.servers import run_front

BODY = b'{"model": "m", "messages": [{"role": "user", "content": "hi"}]}'
ROUTES = [
    ("POST", "/v1/chat/completions"),
    ("POST", "/v1/embeddings"),
    ("DELETE", "/v1/files/f1"),
    ("GET", "/v1/models"),
    ("OPTIONS", "/v1/chat/completions"),
    ("GET", "/metrics"),
    ("DELETE", "/admin/cache?all=true"),
]


@pytest.fixture(scope="module")
def url(tmp_path_factory: pytest.TempPathFactory, recording: Recorder) -> Iterator[str]:
    data: Path = tmp_path_factory.mktemp("pages")
    access = {"origins": ["https://chat.example.org"], "hosts": ["llm.example.org"]}
    with run_front(data, recording.url, forward={"api_key": "operators"}, access=access) as (proxy, _):
        yield proxy


@pytest.mark.parametrize(("method", "path"), ROUTES)
@pytest.mark.parametrize(
    "headers",
    [
        {"origin": "https://evil.example"},
        {"origin": "null"},
        {"origin": "http://127.0.0.1:1"},
        {"origin": "http://evil.example", "host": "evil.example"},
        {"host": "evil.example"},
        {"host": "llm.example.org.evil.example:8484"},
        {"sec-fetch-site": "cross-site", "sec-fetch-mode": "no-cors"},
    ],
)
def test_a_foreign_page_reaches_nothing(
    url: str, recorder: Recorder, method: str, path: str, headers: dict[str, str]
) -> None:
    """A form of another page deleted a file of the operator's at the upstream."""
    answer = httpx.request(method, url + path, headers=headers, content=BODY)
    assert (answer.status_code, answer.json()["error"]["code"]) == (403, "forbidden")
    assert recorder.requests == []


def test_other_requests_do(url: str) -> None:
    for headers in (
        {},
        {"origin": url},
        {"origin": "https://chat.example.org"},
        {"host": "llm.example.org"},
        {"host": "kvproxy:8484"},
        {"host": "box.local"},
        {"host": "192.168.1.7:8484"},
        {"host": "[::1]:8484"},
        {"sec-fetch-site": "same-origin"},
        {"sec-fetch-site": "cross-site", "sec-fetch-mode": "navigate"},
    ):
        assert httpx.get(f"{url}/v1/models", headers=headers).status_code == 200, headers


@pytest.mark.parametrize("host", ["ai", "evil.local", "box:8484", "uz.", "xn--p1ai"])
@pytest.mark.parametrize(
    "headers", [{"accept-language": ""}, {"user-agent": "Mozilla/5.0 (X11)"}, {"sec-fetch-mode": "navigate"}]
)
def test_a_browser_reaches_a_loopback_proxy_by_no_name_that_a_neighbour_can_answer_for(
    url: str, host: str, headers: dict[str, str]
) -> None:
    assert httpx.get(f"{url}/v1/models", headers={"host": host, **headers}).status_code == 403
    for own in ("localhost:8484", "a.localhost", "127.0.0.1", "llm.example.org"):
        assert httpx.get(f"{url}/v1/models", headers={"host": own, **headers}).status_code == 200


@pytest.mark.parametrize(
    "origin", ["http://]", "http://[", "[", "http://[::1", "http://a]b", "://", "http:", "\xff", "http://\x80]"]
)
@pytest.mark.parametrize("path", ["/v1/models", "/health", "/admin/cache", "/ui/"])
def test_a_malformed_origin_is_refused(url: str, path: str, origin: str) -> None:
    refused = httpx.get(url + path, headers=[(b"origin", origin.encode("latin-1"))])
    assert (refused.status_code, refused.json()["error"]["code"]) == (403, "forbidden")


@pytest.mark.parametrize("host", ["[", "[::1", "]", "a]", "[x]", "a:b", "a:123456", "[::1]x", "a b", "a@b", "a:1:2"])
def test_a_malformed_host_is_refused(url: str, host: str) -> None:
    for path in ("/v1/models", "/admin/cache", "/ui/", "/health"):
        assert httpx.get(url + path, headers={"host": host}).status_code == 400, path


def test_names_that_anybody_could_register() -> None:
    for authority in ("ai", "uz.:80", "xn--p1ai"):
        assert is_public_name(host_of(authority))
    for authority in ("evil.example", "EVIL.example.:80", "local.evil.example"):
        assert is_public_name(host_of(authority))
    for authority in ("localhost:8484", "a.localhost", "kvproxy", "10.0.0.1:80", "[fe80::1]:80", "box.home.arpa"):
        assert not is_public_name(host_of(authority))
