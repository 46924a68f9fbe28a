"""Limits of clients: tokens and requests per minute, and concurrent requests. Clients do not share limits."""

import asyncio
import contextlib
import re
import threading
from collections.abc import AsyncIterator, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import httpx
import hypothesis
import pytest
from hypothesis import given
from hypothesis import strategies as st
from starlette.requests import Request
from starlette.responses import JSONResponse, Response, StreamingResponse

from kvproxy.clients.client_keys import add_client
from kvproxy.clients.quotas import Account, Quotas, TokenBucket
from kvproxy.clients.shared_state import MAX_DEBT_MINUTES
from kvproxy.http.metrics import Metrics
from kvproxy.http.services import Services
from kvproxy.journal.token_estimates import estimate_prompt_tokens
from kvproxy.settings.access import ClientSettings
from tests.http.test_request_heads import connected, post, until_closed
from tests.polling import until
from tests.requests import chat
from tests.servers import run_front, run_upstream
from tests.statuses import makes_entry

USED = {"prompt_tokens": 30, "completion_tokens": 20}


class Upstream:
    """Answers by the question: with its usage, without it, with an error, as a stream, or not before the gate opens."""

    def __init__(self) -> None:
        self.asked = 0
        self.gate = threading.Event()

    async def answer(self, request: Request) -> Response:
        body = await request.body()
        # The proxy may begin to forward a body that it then refuses.
        self.asked += request.method == "POST"
        if b"wait" in body:
            await asyncio.to_thread(self.gate.wait)
        if b"fail" in body:
            return JSONResponse({"error": {"message": "no"}}, 400)
        if b'"stream":true' in body:
            return StreamingResponse(self._events(), media_type="text/event-stream")
        message = {"role": "assistant", "content": "Hi"}
        whole = {"choices": [{"index": 0, "message": message, "finish_reason": "stop"}]}
        reuse = {"prompt_tokens_details": {"cached_tokens": 24}} if b"reused" in body else {}
        return JSONResponse(whole if b"silent" in body else {**whole, "usage": USED | reuse})

    async def _events(self) -> AsyncIterator[bytes]:
        for _ in range(9):
            yield b'data: {"choices": [{"index": 0, "delta": {"content": "a"}}]}\n\n'
        yield b'data: {"choices": [{"index": 0, "delta": {}, "finish_reason": "stop"}]}\n\ndata: [DONE]\n\n'


class Proxy:
    """A proxy whose buckets do not fill, and which finds new clients immediately."""

    def __init__(self, url: str, services: Services, upstream: Upstream) -> None:
        self.url, self.services, self.upstream = url, services, upstream

    def client(self, name: str, **limits: int) -> str:
        """Add a client; return its key."""
        return add_client(self.services.settings, name, **limits)

    def ask(
        self, key: str, question: str = "Hi", path: str = "/v1/chat/completions", **fields: object
    ) -> httpx.Response:
        return self.send(key, path, json=chat(question, **fields))

    def send(self, key: str, path: str, **request: Any) -> httpx.Response:
        headers = request.pop("headers", {}) | {"authorization": f"Bearer {key}"}
        return httpx.post(self.url + path, headers=headers, timeout=300, **request)

    def listed(self, tenant: str) -> list[str]:
        return [row["prompt"] for row in httpx.get(f"{self.url}/admin/cache", params={"tenant": tenant}).json()]

    def metric(self, sample: str) -> float:
        found = re.search(rf"^{re.escape(sample)} (\S+)$", self.services.metrics.render().decode(), re.MULTILINE)
        return float(found[1]) if found else 0.0


@contextlib.contextmanager
def run(data: Path, **limits: object) -> Iterator[Proxy]:
    upstream = Upstream()
    with (
        pytest.MonkeyPatch.context() as patch,
        run_upstream(upstream.answer) as url,
        run_front(data, url, limits=limits) as (proxy, services),
    ):
        patch.setattr("kvproxy.clients.quotas.TokenBucket", partial(TokenBucket, clock=lambda: 0.0))
        patch.setattr("kvproxy.http.client_authentication._CHECK_SECONDS", 0.0)
        yield Proxy(proxy, services, upstream)


@pytest.fixture(scope="module")
def proxy(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Proxy]:
    with run(tmp_path_factory.mktemp("quotas")) as running:
        yield running


def remaining(answer: httpx.Response) -> int:
    return int(answer.headers["x-ratelimit-remaining-tokens"])


def test_tokens_are_what_was_used_in_the_end(proxy: Proxy) -> None:
    key = proxy.client("used", tokens_per_minute=1000)
    first = proxy.ask(key, "x" * 400)
    assert first.headers["x-ratelimit-limit-tokens"] == "1000"
    assert re.fullmatch(r"\d+(ms|s)|\d+m\d+s", first.headers["x-ratelimit-reset-tokens"])
    left = 1000 - 50
    assert remaining(proxy.ask(key, "x" * 400)) == left, "a hit costs nothing"
    proxy.ask(key, "fail")
    assert remaining(proxy.ask(key, "x" * 400)) == left, "nor does an error"
    # Without usage: a quarter of the bytes of texts and names, and an event is about a token.
    proxy.ask(key, "y" * 400, stream=True)
    body = chat("y" * 400, stream=True)
    left -= estimate_prompt_tokens(body) + 11
    assert 100 < estimate_prompt_tokens(body) < 120
    assert remaining(proxy.ask(key, "x" * 400)) == left
    answer = proxy.ask(key, "silent" + "z" * 394)
    del body["stream"]
    assert remaining(proxy.ask(key, "x" * 400)) == left - estimate_prompt_tokens(body) - len(answer.content) // 4
    assert proxy.metric('kvproxy_client_tokens_total{client="used"}') > 200
    assert proxy.metric('kvproxy_client_requests_total{client="used",status="200"}') > 1


def test_reported_reuse_is_counted_for_each_client(proxy: Proxy) -> None:
    key = proxy.client("team")
    # The second question is a hit, and the third response reports nothing.
    for question in ("reused", "reused", "silent about the reuse", "reused again"):
        proxy.ask(key, question)
    until(lambda: proxy.metric('kvproxy_client_reported_prompt_tokens_total{client="team"}') == 2 * 30)
    assert proxy.metric('kvproxy_client_reused_tokens_total{client="team"}') == 2 * 24


def test_answers_of_other_routes_cost_their_usage_or_their_bytes(proxy: Proxy) -> None:
    key = proxy.client("reranks", tokens_per_minute=1000)
    proxy.ask(key, path="/v1/rerank")
    assert remaining(proxy.ask(key, "fail")) == 1000 - 50
    answer = proxy.ask(key, "silent", path="/v1/rerank")
    sent, received = len(answer.request.content), len(answer.content)
    assert remaining(proxy.ask(key, "fail")) == 1000 - 50 - sent // 4 - received // 4


def test_a_client_without_tokens_gets_cached_answers_and_no_others(proxy: Proxy) -> None:
    key, other = proxy.client("few", tokens_per_minute=60), proxy.client("many")
    limited = 'kvproxy_limited_total{limit="tokens_per_minute"}'
    before = proxy.metric(limited)
    assert proxy.ask(key).status_code == 200
    asked = proxy.upstream.asked
    refused = proxy.ask(key, "x" * 200)
    assert (refused.status_code, refused.json()["error"]["code"]) == (429, "rate_limit_exceeded")
    assert 1 <= int(refused.headers["retry-after"]) <= 60
    assert refused.headers["x-ratelimit-remaining-tokens"].isdecimal()
    assert "hit" in proxy.ask(key).headers["cache-status"]
    assert proxy.ask(key, "x" * 140, path="/v1/rerank").status_code == 429
    # Waiting would not help.
    never = proxy.ask(key, "x" * 400)
    assert (never.status_code, "retry-after" in never.headers) == (413, False)
    assert proxy.metric(limited) == before + 3
    none = proxy.client("none-left", tokens_per_minute=20)
    proxy.ask(none, "fewer")
    asked += 1
    for path in ("/v1/rerank", "/v1/moderations"):
        assert proxy.send(none, path).status_code == proxy.send(none, path, content=iter([b"a"])).status_code == 429
    assert proxy.upstream.asked == asked
    headers = {"authorization": f"Bearer {none}"}
    assert httpx.get(f"{proxy.url}/v1/models", headers=headers).status_code == 200
    assert proxy.ask(other, "x" * 4000).status_code == 200


def test_a_client_stores_so_much_and_no_more(proxy: Proxy) -> None:
    key, other = proxy.client("small", stored_bytes=2500), proxy.client("large")
    for number in range(20):
        body = chat(f"question {number}")
        # Users of one client share what it may store.
        for each, headers in ((key, {"cookie": f"user={number % 3}"}), (other, {})):
            answer = proxy.send(each, "/v1/chat/completions", json=body, headers=headers)
            assert makes_entry(answer.headers["cache-status"])
    assert 2 < len(proxy.listed("small")) < 20
    assert "question 19" in proxy.listed("small")
    assert len(proxy.listed("large")) == 20
    assert proxy.listed("client:large") == proxy.listed("large")
    assert not makes_entry(proxy.ask(proxy.client("nothing", stored_bytes=0)).headers["cache-status"])
    large = proxy.ask(key, "x" * 2500)
    assert (large.status_code, makes_entry(large.headers["cache-status"])) == (200, False)
    for tenant, removed in (("large", 20), ("nobody", 0)):
        done = httpx.delete(f"{proxy.url}/admin/cache", params={"tenant": tenant})
        assert done.json() == {"removed": removed}
    assert len(proxy.listed("small")) > 2


def test_requests_at_once(proxy: Proxy) -> None:
    key, other = proxy.client("two-at-once", concurrent_requests=2), proxy.client("other")
    before = proxy.upstream.asked

    async def all_of_them() -> list[int]:
        asked = [asyncio.create_task(asyncio.to_thread(proxy.ask, key, f"wait {n}")) for n in range(4)]
        waiting = set(asked)
        while len(waiting) > 2:
            _, waiting = await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
        assert (await asyncio.to_thread(proxy.ask, other)).status_code == 200
        await asyncio.to_thread(until, lambda: proxy.upstream.asked == before + 3)
        proxy.upstream.gate.set()
        return [(await each).status_code for each in asked]

    assert sorted(asyncio.run(all_of_them())) == [200, 200, 429, 429]
    assert proxy.ask(key).status_code == 200


ODD_BODIES = {
    "no JSON": b'{"model": "m", "seed": NaN, "messages": [{"role": "user", "content": "%s"}]}',
    "a long integer": b'{"model": "m", "seed": 99999999999999999999999, "messages": [{"role": "user", "content": "%s"}]}',
    "plain text": b"%s",
}


@pytest.mark.parametrize("chunked", [False, True])
@pytest.mark.parametrize("odd", ODD_BODIES)
@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/rerank"])
def test_no_body_passes_without_its_price(proxy: Proxy, path: str, odd: str, chunked: bool) -> None:
    key = proxy.client(re.sub(r"\W", "-", f"a{path} {odd} {chunked}"), tokens_per_minute=1000)
    headers = {"content-type": "text/plain" if odd == "plain text" else "application/json"}

    def send(text: bytes) -> httpx.Response:
        whole = ODD_BODIES[odd] % text
        return proxy.send(key, path, content=iter([whole[:50], whole[50:]]) if chunked else whole, headers=headers)

    assert send(b"silent" + b"x" * 2400).status_code == 200
    assert remaining(proxy.ask(key, "fail")) <= 1000 - 600
    asked = proxy.upstream.asked
    refused = [send(b"silent" + b"y" * 1900).status_code for _ in range(2)]
    assert refused[-1] in (413, 429)
    assert proxy.upstream.asked <= asked + 1


def test_a_chat_that_exceeds_the_quota_is_not_forwarded(proxy: Proxy) -> None:
    key, asked = proxy.client("images", tokens_per_minute=900), proxy.upstream.asked
    image = {"type": "image_url", "image_url": {"url": "data:image/png;base64,AA"}}
    body = {"model": "m", "messages": [{"role": "user", "content": [image]}]}
    assert proxy.send(key, "/v1/chat/completions", json=body).status_code == 413
    assert proxy.upstream.asked == asked


def test_other_spellings_of_a_cached_route_are_refused(proxy: Proxy) -> None:
    host, key = httpx.URL(proxy.url), proxy.client("spells")
    for spelling in (b"/chat/completions/", b"//chat/completions", b"/x/../chat/completions", b"/./messages"):
        with connected(host.port or 0) as client:
            client.sendall(post(b"/v1" + spelling, b"{}", b"Connection: close", b"X-Api-Key: " + key.encode()))
            answer = until_closed(client)
        assert answer.startswith(b"HTTP/1.1 404 "), spelling
        assert b"/v1/" in answer.partition(b"\r\n\r\n")[2]


def test_nothing_under_the_proxys_own_paths_is_forwarded(proxy: Proxy) -> None:
    key = proxy.client("any")
    asked = proxy.upstream.asked
    paths = ("/ui", "/ui/", "/ui/app.js", "/health", "/ready", "/metrics", "/openapi.json", "/admin", "/admin/x")
    with httpx.Client(base_url=proxy.url) as client:
        for path in paths:
            for method in ("POST", "PUT", "DELETE", "OPTIONS", "PATCH"):
                for headers in ({}, {"authorization": f"Bearer {key}"}):
                    answer = client.request(method, path, content=b"{}", headers=headers)
                    assert answer.status_code in (401, 403, 404, 405), (method, path)
    assert proxy.upstream.asked == asked


async def test_other_limits_hold_from_the_next_request_on() -> None:
    """They are read from the file without a restart, and the use so far is kept."""
    quotas = Quotas(Metrics().count_client_tokens)
    client = ClientSettings(name="one", key_sha256="0" * 64, tokens_per_minute=100, requests_per_minute=5)
    await Account(quotas.get(client)).reserve(60)
    more = client.model_copy(update={"requests_per_minute": 6})
    told = quotas.get(more).headers()
    assert told["x-ratelimit-limit-requests"] == "6"
    assert int(told["x-ratelimit-remaining-tokens"]) < 50


def test_the_names_of_clients_in_metrics_are_bounded() -> None:
    metrics = Metrics()
    for number in range(300):
        metrics.count_client_request(f"c{number}", 200)
    text = metrics.render().decode()
    assert text.count("kvproxy_client_requests_total{") == 201
    assert 'client="(others)",status="200"} 100.0' in text


@hypothesis.settings(max_examples=40)
@given(st.integers(1, 10_000), st.lists(st.tuples(st.floats(0, 100), st.integers(-500, 2000))))
def test_a_bucket_against_its_definition(per_minute: int, steps: list[tuple[float, int]]) -> None:
    now = [0.0]
    bucket = TokenBucket(per_minute, lambda: now[0])
    level = float(per_minute)
    for seconds, units in steps:
        now[0] += seconds
        level = min(per_minute, level + seconds * per_minute / 60)
        assert bucket.available_units == pytest.approx(level, abs=1e-6)
        wait = bucket.seconds_until_available(units)
        assert (wait == 0) == (level >= units) or wait < 1e-6
        bucket.take(units)
        level = min(per_minute, max(-MAX_DEBT_MINUTES * per_minute, level - units))
        told = bucket.headers("tokens")
        assert 0 <= int(told["x-ratelimit-remaining-tokens"]) <= per_minute


def test_an_estimate_counts_every_field_that_may_reach_the_model_and_no_pictures() -> None:
    text = {"messages": [{"role": "user", "content": "x" * 400}], "metadata": {"a": "y" * 4000}}
    assert 100 <= estimate_prompt_tokens(text) <= 110
    assert estimate_prompt_tokens({"prompt": list(range(1000))}) in range(1000, 1003)
    picture = {"type": "image_url", "image_url": {"url": "data:image/png;base64," + "A" * 10**6}}
    assert estimate_prompt_tokens({"messages": [{"role": "user", "content": [picture]}]}) < 1100
    linked = {"type": "image", "source": {"type": "url", "url": "https://example.com/a.png"}}
    assert 1000 <= estimate_prompt_tokens({"messages": [{"role": "user", "content": [linked]}]}) < 1100
    note = {"type": "document", "source": {"type": "text", "media_type": "text/plain", "data": "x" * 20_000}}
    assert 5000 <= estimate_prompt_tokens({"messages": [{"role": "user", "content": [note]}]}) < 5100
    anthropic = {"type": "image", "source": {"type": "base64", "data": "A" * 10**6}}
    assert estimate_prompt_tokens({"messages": [{"role": "user", "content": [anthropic]}]}) < 1100
    assert estimate_prompt_tokens({"model": "m", "documents": [{"text": "x" * 20_000}]}) >= 5000
    assert estimate_prompt_tokens({"guided_json": {f"field {number}": 1 for number in range(1000)}}) >= 2000
