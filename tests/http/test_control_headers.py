"""Our own request headers: how long an answer is kept, and that they end here."""

import re
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from kvproxy.settings import Settings, load_settings
from tests.servers import run_proxy, run_upstream, until_stored
from tests.statuses import makes_entry

ANSWER = {
    "object": "chat.completion",
    "choices": [{"index": 0, "message": {"role": "assistant", "content": "Hello"}, "finish_reason": "stop"}],
}
Seen = list[dict[str, str]]


@pytest.fixture
def upstream() -> Iterator[tuple[str, Seen]]:
    """A server, and the headers that it saw."""
    seen: Seen = []

    async def answer(request: Request) -> Response:
        # Probes of the proxy's own are no requests of a client.
        if request.method == "POST":
            seen.append(dict(request.headers))
        return JSONResponse(ANSWER)

    with run_upstream(answer) as url:
        yield url, seen


def settings(data: Path, url: str, *, max_ttl: float | None = None, chain: bool = False) -> Settings:
    cache = {"semantic": False, "ttl": 1000.0, "max_ttl": max_ttl}
    return load_settings(data=data, upstream=url, cache=cache, forward={"chain": chain})


def ask(url: str, question: str = "hi", path: str = "chat/completions", **headers: str) -> httpx.Response:
    body: dict[str, Any] = {"model": "m", "messages": [{"role": "user", "content": question}]}
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    return httpx.post(f"{url}/v1/{path}", json=body, headers=named)


@pytest.mark.parametrize(
    ("max_ttl", "asked", "kept"),
    [(None, "60", 60), (None, "5000", 1000), (3000.0, "5000", 3000), (3000.0, "2000", 2000), (10.0, "60", 10)],
)
def test_a_request_sets_the_lifetime_within_the_limit(
    upstream: tuple[str, Seen], tmp_path: Path, max_ttl: float | None, asked: str, kept: float
) -> None:
    with run_proxy(settings(tmp_path, upstream[0], max_ttl=max_ttl)) as (url, services):
        assert "; stored" in ask(url, x_kvproxy_ttl=asked, cache_control="confirm").headers["cache-status"]
        (entry,) = services.answerer.store.list_entries()
        assert entry.expires - entry.created == pytest.approx(kept)
        # How long an answer is kept is no part of the question.
        assert "hit" in ask(url).headers["cache-status"]


def test_the_settings_limit_those_who_do_not_ask(upstream: tuple[str, Seen], tmp_path: Path) -> None:
    with run_proxy(settings(tmp_path, upstream[0], max_ttl=10.0)) as (url, services):
        ask(url, cache_control="confirm")
        (entry,) = services.answerer.store.list_entries()
        assert entry.expires - entry.created == pytest.approx(10.0)


def test_an_answer_is_gone_after_its_own_time(upstream: tuple[str, Seen], tmp_path: Path) -> None:
    with run_proxy(settings(tmp_path, upstream[0])) as (url, _):
        ask(url, "short", x_kvproxy_ttl="0.3")
        ask(url, "long")
        time.sleep(0.4)
        assert "fwd=uri-miss" in ask(url, "short").headers["cache-status"]
        assert re.search(r'hit; ttl=9\d\d; detail="exact"', ask(url, "long").headers["cache-status"])
        # The new answer was asked for without a lifetime of its own.
        assert re.search(r"hit; ttl=9\d\d\b", ask(url, "short").headers["cache-status"])


def test_a_lifetime_of_nothing_keeps_nothing(upstream: tuple[str, Seen], tmp_path: Path) -> None:
    with run_proxy(settings(tmp_path, upstream[0])) as (url, services):
        assert not makes_entry(ask(url, x_kvproxy_ttl="0").headers["cache-status"])
        assert services.answerer.store.count() == 0
        ask(url)
        # As with no-store, an answer that is there is served all the same.
        assert "hit" in ask(url, x_kvproxy_ttl="0").headers["cache-status"]


@pytest.mark.parametrize("asked", ["", "-1", "nan", "inf", "5x", "1e999"])
def test_an_invalid_ttl_is_refused(upstream: tuple[str, Seen], tmp_path: Path, asked: str) -> None:
    with run_proxy(settings(tmp_path, upstream[0])) as (url, _):
        answer = ask(url, x_kvproxy_ttl=asked)
        assert (answer.status_code, answer.json()["error"]["param"]) == (400, "x-kvproxy-ttl")
        assert upstream[1] == []


OURS = {"x_kvproxy_tags": "a", "x_kvproxy_ttl": "60", "X_KVProxy_Priority": "3"}


def test_an_unknown_header_of_our_own_is_refused(upstream: tuple[str, Seen], tmp_path: Path) -> None:
    with run_proxy(settings(tmp_path, upstream[0], chain=True)) as (url, _):
        for _ in range(2):
            refused = ask(url, X_KVProxy_Tll="60")
            assert (refused.status_code, refused.json()["error"]["param"]) == (400, "x-kvproxy-tll")
            assert "did you mean x-kvproxy-ttl?" in refused.json()["error"]["message"]
        out_of_range = ask(url, cache_control="min-similarity=2")
        assert (out_of_range.status_code, out_of_range.json()["error"]["param"]) == (400, "Cache-Control")
        assert upstream[1] == []


def test_our_headers_end_here(upstream: tuple[str, Seen], tmp_path: Path) -> None:
    with run_proxy(settings(tmp_path, upstream[0])) as (url, _):
        ask(url, cache_control="max-age=5", x_other="kept", **OURS)
        ask(url, path="audio/speech", cache_control="max-age=5", x_other="kept", **OURS)
    cached, passed = upstream[1]
    for headers in (cached, passed):
        assert not [name for name in headers if name.startswith("x-kvproxy-")]
        assert headers["x-other"] == "kept"
    # A route that is not cached here may be cached behind.
    assert ("cache-control" in cached, passed["cache-control"]) == (False, "max-age=5")


def test_a_chain_of_proxies_hands_them_on(upstream: tuple[str, Seen], tmp_path: Path) -> None:
    with (
        run_proxy(settings(tmp_path / "back", upstream[0])) as (back, behind),
        run_proxy(settings(tmp_path / "front", back, chain=True)) as (front, before),
    ):
        ask(front, **OURS)
        for services in (behind, before):
            until_stored(services)
            (entry,) = services.answerer.store.list_entries()
            assert (entry.tags, entry.expires - entry.created) == (("a",), pytest.approx(60.0))
        assert not [name for name in upstream[1][0] if name.startswith("x-kvproxy-")]
        # A fresh answer is fresh all the way.
        ask(front, cache_control="no-cache")
        assert len(upstream[1]) == 2
