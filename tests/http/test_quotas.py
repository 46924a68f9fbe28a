"""What clients may use: tokens and requests a minute, and requests at once. One client's use is none of the others' business."""

import asyncio
import re
import socket
from collections.abc import AsyncIterator, Iterator
from functools import partial
from pathlib import Path

import httpx
import pytest
from hypothesis import given
from hypothesis import strategies as st
from starlette.requests import Request
from starlette.responses import JSONResponse, Response, StreamingResponse

from kvproxy.clients import add_client
from kvproxy.flow.quota_charges import estimate
from kvproxy.settings import Settings, load_settings
from kvproxy.token_bucket import TokenBucket, duration
from tests.polling import until
from tests.servers import run_proxy, run_upstream
from tests.statuses import makes_entry

USED = {"prompt_tokens": 30, "completion_tokens": 20}


class Upstream:
    """Answers as the question says: with its usage, without it, with an error, as a stream, or not before the gate opens."""

    def __init__(self) -> None:
        self.asked = 0
        self.gate = asyncio.Event()
        self.loop: asyncio.AbstractEventLoop | None = None

    def open(self) -> None:
        assert self.loop is not None
        self.loop.call_soon_threadsafe(self.gate.set)

    async def answer(self, request: Request) -> Response:
        self.loop = asyncio.get_running_loop()
        self.asked += request.method == "POST"
        body = await request.body()
        if b"wait" in body:
            await self.gate.wait()
        if b"fail" in body:
            return JSONResponse({"error": {"message": "no"}}, 400)
        if b'"stream":true' in body:
            return StreamingResponse(self._events(), media_type="text/event-stream")
        message = {"role": "assistant", "content": "Hi"}
        whole = {"choices": [{"index": 0, "message": message, "finish_reason": "stop"}]}
        return JSONResponse(whole if b"silent" in body else {**whole, "usage": USED})

    async def _events(self) -> AsyncIterator[bytes]:
        for _ in range(9):
            yield b'data: {"choices": [{"index": 0, "delta": {"content": "a"}}]}\n\n'
        yield b'data: {"choices": [{"index": 0, "delta": {}, "finish_reason": "stop"}]}\n\ndata: [DONE]\n\n'


@pytest.fixture(scope="module")
def upstream() -> Iterator[tuple[str, Upstream]]:
    server = Upstream()
    with run_upstream(server.answer) as url:
        yield url, server


def settings(data: Path, upstream: str, **fields: object) -> Settings:
    return load_settings(data=data, upstream=upstream, cache={"semantic": False}, **fields)


def ask(
    url: str, key: str, question: str = "Hi", path: str = "/v1/chat/completions", **fields: object
) -> httpx.Response:
    body = {"model": "m", "messages": [{"role": "user", "content": question}], **fields}
    return httpx.post(url + path, json=body, headers={"authorization": f"Bearer {key}"}, timeout=60)


def remaining(answer: httpx.Response) -> int:
    return int(answer.headers["x-ratelimit-remaining-tokens"])


@pytest.fixture
def no_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """Buckets do not fill while a test runs."""
    monkeypatch.setattr("kvproxy.quotas.TokenBucket", partial(TokenBucket, clock=lambda: 0.0))


@pytest.mark.usefixtures("no_time")
def test_tokens_are_what_was_used_in_the_end(tmp_path: Path, upstream: tuple[str, Upstream]) -> None:
    found = settings(tmp_path, upstream[0])
    key = add_client(found, "one", tokens_per_minute=1000)
    with run_proxy(found) as (url, services):
        first = ask(url, key, "x" * 400)
        assert first.headers["x-ratelimit-limit-tokens"] == "1000"
        assert re.fullmatch(r"\d+(ms|s)|\d+m\d+s", first.headers["x-ratelimit-reset-tokens"])
        left = 1000 - 50
        assert remaining(ask(url, key, "x" * 400)) == left, "a hit costs nothing"
        ask(url, key, "fail")
        assert remaining(ask(url, key, "x" * 400)) == left, "nor does an error"
        # Without usage: a quarter of the bytes of texts and names, and an event is about a token.
        ask(url, key, "y" * 400, stream=True)
        body = {"model": "m", "messages": [{"role": "user", "content": "y" * 400}], "stream": True}
        left -= estimate(body) + 11
        assert 100 < estimate(body) < 120
        assert remaining(ask(url, key, "x" * 400)) == left
        answer = ask(url, key, "silent" + "z" * 394)
        del body["stream"]
        assert remaining(ask(url, key, "x" * 400)) == left - estimate(body) - len(answer.content) // 4
        text = services.metrics.render().decode()
        assert float(re.search(r'kvproxy_client_tokens_total{client="one"} (\S+)', text)[1]) > 200  # type: ignore[index]
        assert 'kvproxy_client_requests_total{client="one",status="200"}' in text


@pytest.mark.usefixtures("no_time")
def test_a_client_without_tokens_gets_cached_answers_and_no_others(
    tmp_path: Path, upstream: tuple[str, Upstream]
) -> None:
    found = settings(tmp_path, upstream[0])
    key, other = add_client(found, "one", tokens_per_minute=60), add_client(found, "other")
    with run_proxy(found) as (url, services):
        assert ask(url, key).status_code == 200
        asked = upstream[1].asked
        refused = ask(url, key, "x" * 200)
        assert (refused.status_code, refused.json()["error"]["code"]) == (429, "rate_limit_exceeded")
        assert 1 <= int(refused.headers["retry-after"]) <= 60
        assert refused.headers["x-ratelimit-remaining-tokens"].isdecimal()
        assert upstream[1].asked == asked
        assert "hit" in ask(url, key).headers["cache-status"]
        assert ask(url, key, "x" * 140, path="/v1/rerank").status_code == 429
        assert ask(url, other, "x" * 4000).status_code == 200
        # Waiting would not help.
        never = ask(url, key, "x" * 400)
        assert (never.status_code, "retry-after" in never.headers) == (413, False)
        assert 'kvproxy_limited_total{limit="tokens_per_minute"} 3.0' in services.metrics.render().decode()


def test_cached_answers_cost_tokens_where_the_settings_say_so(tmp_path: Path, upstream: tuple[str, Upstream]) -> None:
    found = settings(tmp_path, upstream[0], limits={"cached_tokens": True})
    key = add_client(found, "one", tokens_per_minute=110)
    with run_proxy(found) as (url, _):
        assert [ask(url, key).status_code for _ in range(3)] == [200, 200, 429]


def test_a_client_stores_so_much_and_no_more(tmp_path: Path, upstream: tuple[str, Upstream]) -> None:
    found = settings(tmp_path, upstream[0])
    key, other = add_client(found, "one", stored_bytes=2500), add_client(found, "other")
    none = add_client(found, "none", stored_bytes=0)

    def listed(url: str, tenant: str) -> list[str]:
        return [row["prompt"] for row in httpx.get(f"{url}/admin/cache", params={"tenant": tenant}).json()]

    with run_proxy(found) as (url, _):
        for number in range(20):
            for each in (key, other):
                assert makes_entry(ask(url, each, f"question {number}").headers["cache-status"])
        assert 2 < len(listed(url, "one")) < 20
        assert "question 19" in listed(url, "one")
        assert len(listed(url, "other")) == 20
        assert listed(url, "client:other") == listed(url, "other")
        assert not makes_entry(ask(url, none).headers["cache-status"])
        large = ask(url, key, "x" * 2500)
        assert (large.status_code, makes_entry(large.headers["cache-status"])) == (200, False)
        removed = httpx.delete(f"{url}/admin/cache", params={"tenant": "other"}).json()
        assert removed == {"removed": 20}
        assert len(listed(url, "one")) > 2
        assert httpx.delete(f"{url}/admin/cache", params={"tenant": "nobody"}).json() == {"removed": 0}


def test_requests_at_once(tmp_path: Path, upstream: tuple[str, Upstream]) -> None:
    found = settings(tmp_path, upstream[0])
    key, other = add_client(found, "one", concurrent_requests=2), add_client(found, "other")
    _, server = upstream
    before = server.asked

    async def all_of_them(url: str) -> list[int]:
        headers = {"authorization": f"Bearer {key}"}
        async with httpx.AsyncClient(base_url=url, headers=headers, timeout=60) as client:
            bodies = [{"model": "m", "messages": [{"role": "user", "content": f"wait {n}"}]} for n in range(4)]
            asked = [asyncio.create_task(client.post("/v1/chat/completions", json=body)) for body in bodies]
            waiting = set(asked)
            while len(waiting) > 2:
                _, waiting = await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
            assert (await asyncio.to_thread(ask, url, other)).status_code == 200
            await asyncio.to_thread(until, lambda: server.asked == before + 3)
            server.open()
            return [(await each).status_code for each in asked]

    with run_proxy(found) as (url, _):
        assert sorted(asyncio.run(all_of_them(url))) == [200, 200, 429, 429]
        assert ask(url, key).status_code == 200


def test_other_limits_hold_from_the_next_request_on(tmp_path: Path, upstream: tuple[str, Upstream]) -> None:
    """They are read from the file without a restart; what was used stays used."""
    from kvproxy.http.metrics import Metrics
    from kvproxy.quotas import Quotas
    from kvproxy.settings.clients import ClientSettings

    quotas = Quotas(Metrics().client_tokens, cached=False)
    client = ClientSettings(name="one", key_sha256="0" * 64, tokens_per_minute=100, requests_per_minute=5)
    quotas.of(client).take(60)
    more = client.model_copy(update={"requests_per_minute": 6})
    told = quotas.of(more).headers()
    assert told["x-ratelimit-limit-requests"] == "6"
    assert int(told["x-ratelimit-remaining-tokens"]) < 50


def test_the_names_of_clients_in_metrics_are_bounded() -> None:
    from kvproxy.http.metrics import Metrics

    metrics = Metrics()
    for number in range(300):
        metrics.client(f"c{number}", 200)
    text = metrics.render().decode()
    assert text.count("kvproxy_client_requests_total{") == 201
    assert 'client="(others)",status="200"} 100.0' in text


@given(st.integers(1, 10_000), st.lists(st.tuples(st.floats(0, 100), st.integers(-500, 2000))))
def test_a_bucket_against_its_definition(per_minute: int, steps: list[tuple[float, int]]) -> None:
    now = [0.0]
    bucket = TokenBucket(per_minute, lambda: now[0])
    level = float(per_minute)
    for seconds, units in steps:
        now[0] += seconds
        level = min(per_minute, level + seconds * per_minute / 60)
        assert bucket.level == pytest.approx(level, abs=1e-6)
        wait = bucket.wait(units)
        assert (wait == 0) == (level >= units) or wait < 1e-6
        bucket.take(units)
        level = min(per_minute, level - units)
        told = bucket.headers("tokens")
        assert 0 <= int(told["x-ratelimit-remaining-tokens"]) <= per_minute


@pytest.mark.parametrize(
    ("seconds", "text"), [(0.0, "0ms"), (0.35, "350ms"), (12.2, "12s"), (60, "1m0s"), (75.4, "1m15s")]
)
def test_durations_are_written_as_openai_does(seconds: float, text: str) -> None:
    assert duration(seconds) == text


def test_an_estimate_counts_what_is_asked_and_no_pictures() -> None:
    text = {"messages": [{"role": "user", "content": "x" * 400}], "metadata": {"a": "y" * 4000}}
    assert 100 <= estimate(text) <= 110
    assert estimate({"prompt": list(range(1000))}) in range(1000, 1003)
    picture = {"type": "image_url", "image_url": {"url": "data:image/png;base64," + "A" * 10**6}}
    assert estimate({"messages": [{"role": "user", "content": [picture]}]}) < 1100
    anthropic = {"type": "image", "source": {"type": "base64", "data": "A" * 10**6}}
    assert estimate({"messages": [{"role": "user", "content": [anthropic]}]}) < 1100


ODD_BODIES = {
    "no JSON": (b'{"model": "m", "seed": NaN, "messages": [{"role": "user", "content": "%s"}]}', "application/json"),
    "a long integer": (
        b'{"model": "m", "seed": 99999999999999999999999, "messages": [{"role": "user", "content": "%s"}]}',
        "application/json",
    ),
    "plain text": (b"%s", "text/plain"),
}


@pytest.mark.usefixtures("no_time")
@pytest.mark.parametrize("chunked", [False, True])
@pytest.mark.parametrize("odd", ODD_BODIES)
@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/rerank"])
def test_no_body_passes_without_its_price(
    tmp_path: Path, upstream: tuple[str, Upstream], path: str, odd: str, chunked: bool
) -> None:
    template, kind = ODD_BODIES[odd]
    found = settings(tmp_path, upstream[0])
    key = add_client(found, "one", tokens_per_minute=1000)
    headers = {"authorization": f"Bearer {key}", "content-type": kind}

    def send(text: bytes) -> httpx.Response:
        whole = template % text
        content = iter([whole[:50], whole[50:]]) if chunked else whole
        return httpx.post(url + path, content=content, headers=headers)

    with run_proxy(found) as (url, _):
        first = send(b"silent" + b"x" * 2400)
        assert first.status_code == 200
        left = remaining(ask(url, key, "fail"))
        assert left <= 1000 - 600
        asked = upstream[1].asked
        refused = [send(b"silent" + b"y" * 1900).status_code for _ in range(2)]
        assert refused[-1] in (413, 429)
        assert upstream[1].asked <= asked + 1


@pytest.mark.usefixtures("no_time")
def test_answers_of_other_routes_cost_their_usage_or_their_bytes(
    tmp_path: Path, upstream: tuple[str, Upstream]
) -> None:
    found = settings(tmp_path, upstream[0])
    key = add_client(found, "one", tokens_per_minute=1000)
    with run_proxy(found) as (url, _):
        ask(url, key, path="/v1/rerank")
        assert remaining(ask(url, key, "fail")) == 1000 - 50
        size = len(ask(url, key, "silent", path="/v1/rerank").content)
        body = {"model": "m", "messages": [{"role": "user", "content": "silent"}]}
        sent = len(httpx.Request("POST", url, json=body).content)
        assert remaining(ask(url, key, "fail")) == 1000 - 50 - sent // 4 - size // 4


@pytest.mark.usefixtures("no_time")
def test_a_client_without_tokens_has_nothing_forwarded(tmp_path: Path, upstream: tuple[str, Upstream]) -> None:
    found = settings(tmp_path, upstream[0])
    key = add_client(found, "one", tokens_per_minute=20)
    headers = {"authorization": f"Bearer {key}"}
    with run_proxy(found) as (url, _):
        assert ask(url, key).status_code == 200
        asked = upstream[1].asked
        for path in ("/v1/rerank", "/v1/anything"):
            assert httpx.post(url + path, headers=headers).status_code == 429
            assert httpx.post(url + path, content=iter([b"a"]), headers=headers).status_code == 429
        assert upstream[1].asked == asked
        assert httpx.get(f"{url}/v1/models", headers=headers).status_code == 200


def test_other_spellings_of_a_cached_route_are_refused(tmp_path: Path, upstream: tuple[str, Upstream]) -> None:
    body = b'{"model":"m","messages":[{"role":"user","content":"Hi"}]}'
    with run_proxy(settings(tmp_path, upstream[0])) as (url, _):
        host = httpx.URL(url)
        for spelling in ("/chat/completions/", "//chat/completions", "/x/../chat/completions", "/./messages"):
            with socket.create_connection((host.host, host.port or 0)) as client:
                head = f"POST /v1{spelling} HTTP/1.1\r\nHost: a\r\nConnection: close\r\nContent-Length: {len(body)}\r\n\r\n"
                client.sendall(head.encode() + body)
                answer = b"".join(iter(lambda client=client: client.recv(65_536), b""))  # type: ignore[misc]
            assert answer.startswith(b"HTTP/1.1 404 "), spelling
            assert b"/v1/" in answer.partition(b"\r\n\r\n")[2]


def test_nothing_under_the_proxys_own_paths_is_forwarded(tmp_path: Path, upstream: tuple[str, Upstream]) -> None:
    found = settings(tmp_path, upstream[0])
    add_client(found, "one")
    asked = upstream[1].asked
    paths = ("/ui", "/ui/", "/ui/app.js", "/health", "/ready", "/metrics", "/openapi.json", "/admin", "/admin/x")
    with run_proxy(found) as (url, _), httpx.Client(base_url=url) as client:
        for path in paths:
            for method in ("POST", "PUT", "DELETE", "OPTIONS", "PATCH"):
                assert client.request(method, path, content=b"{}").status_code in (401, 403, 404, 405)
    assert upstream[1].asked == asked


def test_an_estimate_counts_every_field_that_may_reach_the_model() -> None:
    assert estimate({"model": "m", "documents": [{"text": "x" * 20_000}]}) >= 5000
    assert estimate({"guided_json": {f"field {number}": 1 for number in range(1000)}}) >= 2000
