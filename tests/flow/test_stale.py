"""Stale responses: served while they are revalidated or after errors, and only in their stale periods."""

import contextlib
import time
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import httpx
import orjson
import pytest

from kvproxy.apis.api_request import ApiRequest
from kvproxy.backends.protocol import RelayedResponse
from kvproxy.errors import (
    KvproxyError,
    ModelNotFound,
    Overloaded,
    TooManyRequests,
    UpstreamProtocolError,
    UpstreamTimeout,
    UpstreamUnreachable,
)
from kvproxy.http.services import Services
from kvproxy.index.entry import Entry
from kvproxy.index.policies.threshold import ThresholdPolicy
from kvproxy.index.store import EntryFilter
from kvproxy.journal.journal import StoredJournal
from kvproxy.journal.record import Record
from kvproxy.operations.record_query import RecordQuery
from tests.flow.proxies import Model, ask, explain
from tests.flow.proxies import proxy as run
from tests.polling import until
from tests.servers import until_stored
from tests.statuses import makes_entry

TTL, REVALIDATE, ERROR = 60, 30, 600


class Proxy:
    """A proxy with a settable clock."""

    url: str
    services: Services
    model: Model
    now = 1000.0

    def ask(self, question: str, control: str = "", **more: Any) -> httpx.Response:
        return ask(self.url, question, control, **more)

    def wait_until_stored(self, question: str) -> Entry:
        (entry,) = self.services.cache.store.list_entries(EntryFilter(prompt=question))
        return entry


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Proxy]:
    path, made = tmp_path_factory.mktemp("stale"), Proxy()
    cache = {"ttl": TTL, "stale_while_revalidate": REVALIDATE, "stale_if_error": ERROR, "judge": "none"}
    policy = ThresholdPolicy(0.8, guards=())
    with run(path, policy, clock=lambda: made.now, text="Answer {} it is.", **cache) as running:
        made.url, made.services, made.model = running
        yield made


@pytest.fixture
def proxy(running: Proxy) -> Proxy:
    running.model.status, running.model.headers = 200, {}
    running.model.asked.clear()
    return running


def said(answer: httpx.Response) -> str:
    if not answer.headers["content-type"].startswith("text/event-stream"):
        return str(answer.json()["choices"][0]["message"]["content"])
    events = [line[6:] for line in answer.text.splitlines() if line.startswith("data: {")]
    return "".join(orjson.loads(each)["choices"][0]["delta"].get("content") or "" for each in events)


def test_a_stale_response_is_served_and_revalidated_once(proxy: Proxy) -> None:
    proxy.ask("first of all", "confirm")
    proxy.now += TTL + 10
    proxy.model.go.clear()
    with ThreadPoolExecutor(8) as pool:
        answers = list(pool.map(lambda _: proxy.ask("first of all"), range(8)))
    proxy.model.go.set()
    for answer in answers:
        assert said(answer) == "Answer 1 it is."
        assert '; hit; ttl=-10; detail="exact stale-while-revalidate"' in answer.headers["cache-status"]
        assert answer.headers["age"] == "70"
    until(lambda: proxy.wait_until_stored("first of all").created == proxy.now)
    assert proxy.model.asked == ["first of all"] * 2
    fresh = proxy.ask("first of all")
    assert (said(fresh), "ttl=60" in fresh.headers["cache-status"]) == ("Answer 2 it is.", True)
    until(lambda: len(records(proxy, "first of all")) == 11)
    reasons = Counter(record.reason for record in records(proxy, "first of all"))
    assert reasons == {"miss-new": 1, "stale-while-revalidate": 8, "revalidated": 1, "hit-exact": 1}
    metrics = httpx.get(f"{proxy.url}/metrics").text
    assert 'kvproxy_stale_total{reason="stale-while-revalidate"} 8.0' in metrics
    assert 'kvproxy_stale_total{reason="revalidated"} 1.0' in metrics


def records(proxy: Proxy, question: str) -> list[Record]:
    """Return the records of equal requests."""
    latest = proxy.services.journal.latest(1000)
    # An answer that was just stored may have no record as yet.
    prompts = {each.prompt for each in latest if each.entry == proxy.wait_until_stored(question).id}
    assert len(prompts) <= 1
    return [each for each in latest if each.prompt in prompts]


def test_a_revalidation_has_a_record_but_is_no_request_of_a_client(proxy: Proxy) -> None:
    proxy.ask("what does it cost", "confirm", stream=True)
    proxy.now += TTL + 1
    journal = proxy.services.journal
    assert isinstance(journal, StoredJournal)
    with contextlib.closing(journal.reader()) as reader:
        given = proxy.ask("what does it cost")
        # A stream's record may come after that of the request that followed it.
        until(lambda: len(records(proxy, "what does it cost")) == 3)
        until_stored(proxy.services)
        layers = {each.layer: each for each in records(proxy, "what does it cost")}
        renewed, stale = layers["revalidated"], layers["exact"]
        assert (renewed.reason, renewed.status) == ("revalidated", 200)
        assert renewed.request_id == f"renewal-{given.headers['x-request-id']}" == f"renewal-{stale.request_id}"
        assert renewed.entry == proxy.wait_until_stored("what does it cost").id
        assert renewed.total_ms
        assert renewed.upstream
        assert stale.reason == "stale-while-revalidate"

        proxy.model.status, proxy.now = 500, proxy.now + TTL + 1
        proxy.ask("what does it cost")
        until(lambda: journal.latest(1)[0].reason == "error-upstream")
        failed = journal.latest(1)[0]
        assert (failed.layer, failed.status) == ("revalidated", 500)

        everything = journal.latest(1000)
        clients = [each for each in everything if each.layer != "revalidated"]
        assert sum(row.requests for row in reader.totals("layer")) == len(clients) < len(everything)
        assert sum(row.requests for row in reader.totals("layer") if row.layer == "revalidated") == 0
        counts = reader.series("layer", 0, proxy.now + 1, 1).counts
        assert sum(map(sum, counts.values())) == len(clients)
        shares = {row.name: row for row in reader.groups(RecordQuery(), "layer", order="backend", limit=20)}
        assert shares["revalidated"].requests == len(everything) - len(clients)
        assert shares["revalidated"].seconds > 0
        (model,) = reader.groups(RecordQuery(), "model", order="backend", limit=20)
        assert model.requests == len(clients)


def test_a_semantic_hit_revalidates_the_stored_question(proxy: Proxy) -> None:
    asked = "please tell me what the second thing about all of the old blocks is"
    close = "please do tell me what the second thing about all of the old blocks is"
    proxy.ask(asked, "confirm", stream=True)
    proxy.now += TTL + 1
    answer = proxy.ask(close)
    assert said(answer) == "Answer 1 it is."
    assert "semantic similarity=" in answer.headers["cache-status"]
    assert "stale-while-revalidate" in answer.headers["cache-status"]
    until(lambda: proxy.wait_until_stored(asked).created == proxy.now)
    assert proxy.model.asked == [asked, asked]
    assert "stale" not in proxy.ask(close).headers["cache-status"]


@pytest.mark.parametrize(
    ("status", "stream", "similar"),
    [(500, False, False), (502, True, False), (503, False, True), (504, True, True), (529, False, False)],
)
def test_a_stale_response_is_served_after_an_error(proxy: Proxy, status: int, stream: bool, similar: bool) -> None:
    asked = f"please tell me what goes on with {status} {stream} {similar} in the third of all these tests now"
    close = asked.replace("please", "please do") if similar else asked
    proxy.ask(asked, "confirm")
    proxy.now += TTL + REVALIDATE + 5
    proxy.model.status = status
    num_lookups = sum(proxy.services.path.counts("lookups").values())
    answer = proxy.ask(close, stream=stream)
    assert sum(proxy.services.path.counts("lookups").values()) == num_lookups + 1
    assert answer.status_code == 200
    assert said(answer) == "Answer 1 it is."
    assert f"; hit; ttl={-REVALIDATE - 5};" in answer.headers["cache-status"]
    assert ("semantic" if similar else "exact") in answer.headers["cache-status"]
    assert 'stale-if-error"' in answer.headers["cache-status"]
    assert proxy.services.journal.latest(1)[0].reason == "stale-if-error"
    proxy.model.status = 200
    assert said(proxy.ask(close, "no-store", stream=stream)) == "Answer 3 it is."
    proxy.model.status = status
    # All stale periods have ended.
    proxy.now += ERROR
    assert proxy.ask(close, stream=stream).status_code == status


def test_the_time_of_a_failed_upstream_is_not_that_of_the_semantic_lookup(
    proxy: Proxy, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Gate:
        reached = 0.0

        def wait(self, seconds: float) -> None:
            self.reached = time.perf_counter()
            time.sleep(0.1)

    gate, proxy.model.status = Gate(), 500
    monkeypatch.setattr(proxy.model, "go", gate)
    asked = time.perf_counter()
    assert proxy.ask("how slow is an upstream that fails").status_code == 500
    semantic = proxy.services.journal.latest(1)[0].semantic_ms
    assert semantic is not None
    assert semantic / 1_000 < gate.reached - asked


def test_a_request_may_refuse_stale_responses(proxy: Proxy) -> None:
    proxy.ask("the fifth", "confirm")
    proxy.now += TTL + 5
    proxy.model.status = 500
    assert proxy.ask("the fifth", "max-age=1000").status_code == 500
    assert proxy.ask("the fifth", "no-cache").status_code == 500
    proxy.now += REVALIDATE
    assert proxy.ask("the fifth", "stale-if-error=34").status_code == 500
    assert proxy.ask("the fifth", "stale-if-error=36").status_code == 200
    assert proxy.ask("the fifth", "max-age=10, stale-if-error=36").status_code == 200
    assert proxy.ask("the fifth", "only-if-cached").status_code == 504


def test_a_failed_revalidation_keeps_the_stale_response(proxy: Proxy) -> None:
    proxy.ask("the sixth", "confirm")
    proxy.now += TTL + 5
    proxy.model.status = 500
    before = proxy.services.path.counts("stale").get("failed", 0)
    assert "stale-while-revalidate" in proxy.ask("the sixth").headers["cache-status"]
    until(lambda: proxy.services.path.counts("stale").get("failed", 0) == before + 1)
    assert "stale-while-revalidate" in proxy.ask("the sixth").headers["cache-status"]


@pytest.mark.parametrize(
    ("headers", "times", "tags"),
    [
        ({"cache-control": "max-age=7, stale-while-revalidate=8, stale-if-error=9"}, (7, 8, 9), ()),
        ({"cache-control": "public, s-maxage=70, max-age=7, must-revalidate"}, (70, 0, 0), ()),
        ({"cache-control": "max-age=soon, stale-if-error=-3"}, (TTL, REVALIDATE, ERROR), ()),
        ({"surrogate-key": "a b", "x-kvproxy-tags": "c, d"}, (TTL, REVALIDATE, ERROR), ("a", "b", "c", "d")),
        ({"surrogate-key": "x" * 129}, (TTL, REVALIDATE, ERROR), ()),
        ({"cache-control": "max-age=0, must-revalidate"}, None, ()),
    ],
)
def test_cache_headers_of_the_upstream_apply(
    proxy: Proxy, headers: dict[str, str], times: tuple[int, int, int] | None, tags: tuple[str, ...]
) -> None:
    proxy.model.headers = headers
    question = f"the seventh {headers}"
    answer = proxy.ask(question, "confirm")
    if times is None:
        assert not makes_entry(answer.headers["cache-status"])
        return
    entry = proxy.wait_until_stored(question)
    assert (entry.expires - entry.created, entry.stale_while_revalidate, entry.stale_if_error) == times
    assert entry.tags == tags


def test_a_soft_purge_starts_the_stale_periods(proxy: Proxy) -> None:
    proxy.model.headers = {"surrogate-key": "soft"}
    proxy.ask("the ninth", "confirm")
    proxy.now += 5
    where = {"tag": "soft", "soft": "true"}
    assert httpx.delete(f"{proxy.url}/admin/cache", params=where).json() == {"expired": 1}
    proxy.now += 1
    answer = proxy.ask("the ninth")
    assert '; hit; ttl=-1; detail="exact stale-while-revalidate"' in answer.headers["cache-status"]
    until(lambda: proxy.wait_until_stored("the ninth").created == proxy.now)
    assert proxy.wait_until_stored("the ninth").tags == ("soft",)


def test_a_response_that_is_too_stale_to_serve_is_named(proxy: Proxy) -> None:
    proxy.ask("the tenth", "confirm")
    proxy.now += TTL + REVALIDATE + 5
    assert "; fwd=stale; " in proxy.ask("the tenth", "confirm").headers["cache-status"]
    assert "; hit" in proxy.ask("the tenth").headers["cache-status"]


def failing(error: KvproxyError) -> Callable[[ApiRequest], Awaitable[RelayedResponse]]:
    async def chunks() -> AsyncIterator[bytes]:
        yield b'{"choices": '
        raise error

    async def send(request: ApiRequest) -> RelayedResponse:
        if isinstance(error, UpstreamProtocolError):
            return RelayedResponse(200, [("content-type", "application/json")], chunks())
        raise error

    return send


@pytest.mark.parametrize(
    ("error", "is_served"),
    [
        (UpstreamUnreachable("refused"), True),
        (UpstreamTimeout("too late"), True),
        (UpstreamProtocolError("broke off"), True),
        (Overloaded("too many wait"), True),
        (TooManyRequests("the client's quota"), False),
        (ModelNotFound("no such model"), False),
    ],
)
def test_some_errors_permit_a_stale_response(
    proxy: Proxy, monkeypatch: pytest.MonkeyPatch, error: KvproxyError, is_served: bool
) -> None:
    question = f"the tenth {type(error).__name__}"
    proxy.ask(question, "confirm")
    proxy.now += TTL + REVALIDATE + 1
    monkeypatch.setattr(proxy.services.backend, "send", failing(error))
    assert proxy.ask(question).status_code == (200 if is_served else error.status)


def test_no_request_is_sent_if_all_upstreams_are_down(proxy: Proxy, monkeypatch: pytest.MonkeyPatch) -> None:
    proxy.ask("the eleventh", "confirm")
    proxy.now += TTL + REVALIDATE + 1
    monkeypatch.setattr(proxy.services.backend, "failure", lambda: "all are down")
    assert "stale-if-error" in proxy.ask("the eleventh").headers["cache-status"]
    assert proxy.model.asked == ["the eleventh"]
    assert proxy.ask("nothing like it").status_code == 200


def test_explain_shows_the_freshness(proxy: Proxy) -> None:
    proxy.ask("the fourteenth", "confirm")

    def told() -> tuple[str, str | None, bool]:
        found = explain(proxy.url, "the fourteenth")
        return found["layer"], found["exact"]["freshness"], found["exact"]["hit"]

    assert told() == ("exact", "fresh", True)
    proxy.now += TTL + 1
    assert told() == ("exact", "stale-while-revalidate", True)
    proxy.now += REVALIDATE
    assert told() == ("none", "stale-if-error", False)
    proxy.now += ERROR
    assert told() == ("none", None, False)


def test_a_short_timeout_selects_the_stale_response(proxy: Proxy) -> None:
    proxy.ask("the fifteenth", "confirm")
    proxy.now += TTL + REVALIDATE + 1
    proxy.model.go.clear()
    try:
        body = {"model": "m", "messages": [{"role": "user", "content": "the fifteenth"}]}
        headers = {"x-kvproxy-timeout": "2"}
        answer = httpx.post(f"{proxy.url}/v1/chat/completions", json=body, headers=headers, timeout=300)
    finally:
        proxy.model.go.set()
    assert "stale-if-error" in answer.headers["cache-status"]
