"""Budgets in money: the charges of a client equal `savings`, and beyond its budget it gets hits only."""

import asyncio
import contextlib
import csv
import json
import re
import socket
import threading
import time
from collections.abc import AsyncIterator, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager
from datetime import UTC, datetime, timedelta
from http.client import HTTPConnection
from pathlib import Path
from typing import Any

import httpx
import openai
import pytest
from starlette.requests import Request
from starlette.responses import JSONResponse, Response, StreamingResponse

from kvproxy.clients.client_keys import (
    add_client,
    all_clients,
    remove_client,
    reset_counts,
    set_disabled,
    set_limits,
    spent_and_reserved,
)
from kvproxy.clients.spending_tables import SpendingFile, read_spent
from kvproxy.clients.spent_money import SpentMoney
from kvproxy.errors import BudgetExceeded, InvalidRequest, SettingsError, TooManyRequests
from kvproxy.http.client_authentication import Clients
from kvproxy.http.services import Services
from kvproxy.index.errors import CacheStoreError
from kvproxy.index.store.database import Transaction
from kvproxy.installation.backup import restore_backup, write_backup
from kvproxy.journal.bill import bill
from kvproxy.journal.sums_filter import SumsFilter
from kvproxy.journal.token_estimates import UNLIMITED_OUTPUT_TOKENS, most_output_tokens
from kvproxy.operations.keys import ListedClient, list_clients
from kvproxy.providers import published_prices
from kvproxy.settings import load_settings
from kvproxy.settings.access import ClientSettings
from tests.commands.run import kvproxy
from tests.polling import until
from tests.requests import chat
from tests.servers import run_front, run_proxy, run_upstream

USAGE = {"prompt_tokens": 1_000, "completion_tokens": 100, "prompt_tokens_details": {"cached_tokens": 400}}
TIERS = {"flex": 0.5, "priority": 2.0}
PRICES: dict[str, Any] = {
    "m": {"input": 100.0, "cached": 10.0, "output": 1_000.0, "service_tiers": TIERS},
    "n": {"input": 1.0},
}
COST = (600 * 100 + 400 * 10 + 100 * 1_000) / 1e6
"""The price of a response with the usage above: 0.164."""


class Upstream:
    """Answers with the usage above, as a stream if the request has `stream`, and after the gate opens if its text is `wait`."""

    def __init__(self) -> None:
        self.asked = 0
        self.gate = threading.Event()

    async def answer(self, request: Request) -> Response:
        if request.method == "GET":
            names = ("m", "n", "unpriced")
            return JSONResponse({"object": "list", "data": [{"id": name, "object": "model"} for name in names]})
        body = await request.body()
        self.asked += 1
        if b"wait" in body:
            await asyncio.to_thread(self.gate.wait)
        named = re.search(rb"served as (\w+)", body)
        tier = "default" if named is None else named[1].decode()
        if b'"stream":true' in body:
            events = self._events(tier, is_endless=b"endless" in body, is_paced=b"paced" in body)
            return StreamingResponse(events, media_type="text/event-stream")
        if b"breaks" in body and not self.gate.is_set():
            return StreamingResponse(self._broken(), media_type="application/json")
        if b"fail" in body:
            return JSONResponse({"error": {"message": "no"}}, 400)
        message = {"role": "assistant", "content": "Hi"}
        whole = {"choices": [{"index": 0, "message": message, "finish_reason": "stop"}], "service_tier": tier}
        return JSONResponse(whole if b"silent" in body else {**whole, "usage": USAGE})

    async def _broken(self) -> AsyncIterator[bytes]:
        yield b'{"choices": [ {' + b" " * 5
        raise ConnectionError("the upstream breaks off")

    async def _events(self, tier: str, *, is_endless: bool, is_paced: bool) -> AsyncIterator[bytes]:
        choice = {"index": 0, "delta": {"content": "a"}}
        while is_paced:
            yield b"data: " + json.dumps({"choices": [choice], "service_tier": tier}).encode() + b"\n\n"
            await asyncio.sleep(0.02)
        for _ in range(9):
            yield b"data: " + json.dumps({"choices": [choice], "service_tier": tier}).encode() + b"\n\n"
        if is_endless:
            await asyncio.Event().wait()
        yield b'data: {"choices": [{"index": 0, "delta": {}, "finish_reason": "stop"}]}\n\n'
        yield b"data: " + json.dumps({"choices": [], "usage": USAGE}).encode() + b"\n\ndata: [DONE]\n\n"


def abort(proxy: "Proxy", path: str, key: str, body: dict[str, Any]) -> None:
    """Send a request, and close its connection when the upstream has it."""
    asked = proxy.upstream.asked
    with contextlib.closing(HTTPConnection(proxy.url.removeprefix("http://"), timeout=60)) as connection:
        headers = {"authorization": f"Bearer {key}", "content-type": "application/json"}
        connection.request("POST", path, json.dumps(body), headers)
        until(lambda: proxy.upstream.asked == asked + 1)


class Proxy:
    def __init__(self, url: str, services: Services, upstream: Upstream) -> None:
        self.url, self.services, self.upstream = url, services, upstream
        self.settings = services.settings

    def ask(
        self, key: str, question: object = "Hi", path: str = "/v1/chat/completions", **fields: Any
    ) -> httpx.Response:
        headers = {"authorization": f"Bearer {key}"}
        return httpx.post(self.url + path, headers=headers, json=chat(question, **fields), timeout=60)

    def spent(self, name: str) -> float:
        spent = spent_and_reserved(self.settings)[0]
        return spent[name].today if name in spent else 0.0


@contextlib.contextmanager
def run(data: Path) -> Iterator[Proxy]:
    upstream = Upstream()
    with (
        pytest.MonkeyPatch.context() as patch,
        run_upstream(upstream.answer) as url,
        run_front(data, url, journal={"prices": PRICES}) as (proxy, services),
    ):
        patch.setattr("kvproxy.http.client_authentication._CHECK_SECONDS", 0.0)
        yield Proxy(proxy, services, upstream)


@pytest.fixture(scope="module")
def proxy(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Proxy]:
    with run(tmp_path_factory.mktemp("budgets")) as running:
        yield running


def test_a_client_spends_what_savings_says_and_then_gets_hits_only(proxy: Proxy) -> None:
    key, other = add_client(proxy.settings, "one", budget_per_day=0.4), add_client(proxy.settings, "two")
    assert proxy.ask(key).status_code == 200
    until(lambda: proxy.spent("one") == pytest.approx(COST))
    assert proxy.ask(key).headers["cache-status"].startswith("kvproxy; hit")
    # A stream is charged at its end, by its usage.
    assert "[DONE]" in proxy.ask(key, "second", stream=True).text
    until(lambda: proxy.spent("one") == pytest.approx(2 * COST))
    assert proxy.ask(key, "third").status_code == 200
    until(lambda: proxy.spent("one") == pytest.approx(3 * COST))
    asked = proxy.upstream.asked
    refused = proxy.ask(key, "fourth")
    error = refused.json()["error"]
    assert (refused.status_code, error["type"], error["code"]) == (429, "insufficient_quota", "insufficient_quota")
    assert "spent its budget of 0.4 USD a day" in error["message"]
    assert "kvproxy keys set one --budget-per-day" in error["message"]
    assert 0 < int(refused.headers["retry-after"]) <= 86_400
    with (
        openai.OpenAI(base_url=f"{proxy.url}/v1", api_key=key) as client,
        pytest.raises(openai.RateLimitError, match="budget"),
    ):
        client.chat.completions.create(**chat("fifth"))
    assert proxy.upstream.asked == asked, "neither the proxy nor the SDK tried again"
    assert proxy.ask(key).status_code == proxy.ask(other, "fourth").status_code == 200
    # The metric counts clients without a budget, too, and no hit.
    until(lambda: 'client_spent_total{client="two",model="m"} 0.16' in proxy.services.metrics.render().decode())
    assert proxy.ask(other, "free", model="unpriced").status_code == 200
    # The journal's sums agree.
    until(lambda: list_clients(proxy.settings)[0].spent == pytest.approx(3 * COST))
    listed = list_clients(proxy.settings)[0]
    assert (listed.spent_today, listed.left_today) == (pytest.approx(3 * COST), 0.0)
    # The list and the metric count the tokens that a quota charges, also reused ones.
    assert listed.tokens == 3 * 1_100
    assert 'client_tokens_total{client="one"} 3300.0' in proxy.services.metrics.render().decode()
    assert (listed.budget_per_month, listed.left_this_month, list_clients(proxy.settings)[1].left_today) == (None,) * 3
    set_limits(proxy.settings, "one", {"budget_per_day": 0.6})
    assert proxy.ask(key, "fourth").status_code == 200
    until(lambda: proxy.spent("one") == pytest.approx(4 * COST))
    reset_counts(proxy.settings, "one")
    assert proxy.spent("one") == 0


@pytest.mark.parametrize(
    ("name", "fields", "sent"),
    # The estimate of each prompt costs over 0.1 of 0.25, and 100 tokens of output cost as much.
    [("input", {"max_tokens": 0}, 3), ("output", {"max_completion_tokens": 100}, 2), ("unlimited", {}, 1)],
)
def test_requests_in_flight_reserve_their_prompt_and_the_limit_of_their_output(
    proxy: Proxy, name: str, fields: dict[str, Any], sent: int
) -> None:
    key = add_client(proxy.settings, name, budget_per_day=0.25)
    asked = proxy.upstream.asked
    with ThreadPoolExecutor(8) as threads:
        answers = [threads.submit(proxy.ask, key, f"wait {number} {'x' * 4_400}", **fields) for number in range(8)]
        until(lambda: sum(answer.done() for answer in answers) == 8 - sent)
        refused = [answer.result() for answer in answers if answer.done()]
        # The list shows why.
        listed = next(client for client in list_clients(proxy.settings) if client.name == name)
        assert listed.reserved is not None
        assert listed.reserved > 0.25 - 0.11
        proxy.upstream.gate.set()
    proxy.upstream.gate.clear()
    until(lambda: all(client.reserved in (0.0, None) for client in list_clients(proxy.settings)))
    # The SDKs try again soon, unlike after a spent budget.
    errors = {(answer.status_code, answer.json()["error"]["code"], answer.headers["retry-after"]) for answer in refused}
    assert errors == {(429, "rate_limit_exceeded", "5")}
    assert (
        "requests in flight have reserved the rest of the budget of 0.25 USD a day"
        in refused[0].json()["error"]["message"]
    )
    assert proxy.upstream.asked == asked + sent
    until(lambda: proxy.spent(name) == pytest.approx(sent * COST))
    # Nothing is reserved any more.
    assert proxy.ask(key, "more", **fields).status_code == (200 if sent * COST < 0.25 else 429)


def test_failed_requests_spend_nothing_and_reserve_nothing(proxy: Proxy) -> None:
    key = add_client(proxy.settings, "failing", budget_per_day=0.01)
    for number in range(3):
        assert proxy.ask(key, f"fail {number}").status_code == 400
    assert proxy.spent("failing") == 0


@pytest.mark.parametrize(
    ("path", "body", "tokens"),
    [
        ("/v1/chat/completions", {}, UNLIMITED_OUTPUT_TOKENS),
        ("/v1/chat/completions", {"max_tokens": 50, "max_completion_tokens": 40, "n": 3}, 120),
        ("/v1/completions", {"max_tokens": 5, "prompt": ["a", "b"], "best_of": 2}, 20),
        ("/v1/completions", {"max_tokens": 5, "prompt": [1, 2]}, 5),
        ("/v1/responses", {"max_output_tokens": 7}, 7),
        ("/v1/messages", {"max_tokens": 0}, 0),
        ("/v1/embeddings", {}, 0),
        ("/v1/rerank", {}, 0),
    ],
)
def test_the_limit_of_the_output_decides_the_reservation(path: str, body: dict[str, Any], tokens: int) -> None:
    assert most_output_tokens(path, body) == tokens


def test_a_response_without_usage_costs_its_estimate(proxy: Proxy) -> None:
    key = add_client(proxy.settings, "silent", budget_per_month=5)
    answer = proxy.ask(key, "silent" + "x" * 394)
    least, most = 100 * 100 / 1e6, (120 * 100 + 1_000 * len(answer.content)) / 1e6
    until(lambda: least < proxy.spent("silent") < most)


def test_the_budget_the_list_and_the_bill_count_aborted_and_unread_responses_alike(proxy: Proxy) -> None:
    """Their usage is not reported, so it is estimated once."""
    key = add_client(proxy.settings, "aborting", budget_per_day=50)
    headers = {"authorization": f"Bearer {key}"}
    body = chat("endless" + "x" * 393, stream=True, max_tokens=100)
    with httpx.stream("POST", f"{proxy.url}/v1/chat/completions", json=body, headers=headers, timeout=60) as answer:
        events = 0
        for line in answer.iter_lines():
            events += line.startswith("data: ")
            if events == 9:
                break
    until(lambda: proxy.spent("aborting") > 0)
    aborted = proxy.spent("aborting")
    assert (100 * 100 + 9 * 1_000) / 1e6 <= aborted <= (120 * 100 + 9 * 1_000) / 1e6
    costs, paths = [aborted], ("/v1/chat/completions", "/v1/rerank", "/v1/rerank")
    for path, question in zip(paths, ("silent", "silent", "reported"), strict=True):
        assert proxy.ask(key, question, path=path).status_code == 200
        until(lambda: proxy.spent("aborting") > sum(costs))
        costs.append(proxy.spent("aborting") - sum(costs))
    assert costs[-1] == pytest.approx(COST)
    page = proxy.services.metrics.render().decode()
    assert float(re.findall(r'client_spent_total{client="aborting",model="m"} (.*)', page)[0]) == pytest.approx(
        sum(costs)
    )

    def listed() -> ListedClient:
        return next(client for client in list_clients(proxy.settings) if client.name == "aborting")

    until(lambda: listed().requests == 4)
    assert listed().spent == pytest.approx(sum(costs)) == listed().spent_today
    assert (listed().tokens or 0) > 109 + 600 + 100
    data, prices = proxy.settings.data, f"KVPROXY_JOURNAL__PRICES={json.dumps(PRICES)}".partition("=")
    log = kvproxy("log", "--where", "client = 'aborting'", "--json", "--data", data, **{prices[0]: prices[2]})
    records = [json.loads(line) for line in log.stdout.splitlines()]
    assert [record["cost"] for record in records] == pytest.approx(costs, rel=1e-3)
    # Unknown values stay unknown.
    assert [record["completion_tokens"] for record in records] == [None, None, None, 100]
    assert records[0]["estimated_completion_tokens"] == 9
    bill = kvproxy("sessions", "--by", "client", "--json", "--data", data, **{prices[0]: prices[2]})
    row = next(row for row in json.loads(bill.stdout)["rows"] if row["name"] == "aborting")
    assert (row["cost"], row["estimated"], row["unreported"]) == (pytest.approx(sum(costs)), 3, 0)
    assert (listed().estimated, listed().unreported) == (3, 0)
    listed_bill = kvproxy(
        "savings", "--bill", "--csv", "--tenant", "aborting", "--data", data, **{prices[0]: prices[2]}
    )
    (row,) = csv.DictReader(listed_bill.stdout.splitlines())
    assert (row["estimated"], row["currency"], float(row["cost"])) == ("3", "USD", pytest.approx(sum(costs)))
    assert "estimated: tokens and money of 3 requests without reported usage\n" in listed_bill.stderr


@pytest.mark.parametrize("name", ["disabled", "removed"])
def test_a_stream_that_ends_with_its_key_is_billed(proxy: Proxy, name: str) -> None:
    key = add_client(proxy.settings, name, budget_per_day=50)
    headers = {"authorization": f"Bearer {key}"}
    body = chat(f"paced {name}", stream=True, max_tokens=100)
    with httpx.stream("POST", f"{proxy.url}/v1/chat/completions", json=body, headers=headers, timeout=60) as answer:
        lines = (line for line in answer.iter_lines() if line.startswith("data: "))
        next(lines)
        if name == "disabled":
            set_disabled(proxy.settings, name, disabled=True)
        else:
            remove_client(proxy.settings, name)
        assert '"error"' in list(lines)[-1]
    reader = proxy.services.journal.read
    prices = proxy.settings.journal.prices
    until(lambda: reader(lambda found: bill(found, prices, SumsFilter(tenant=name)), []) != [])
    (row,) = reader(lambda found: bill(found, prices, SumsFilter(tenant=name)), [])
    assert (row.requests, row.refused, row.estimated) == (1, 0, 1)
    assert row.cost is not None
    assert row.cost > 0
    until(lambda: proxy.spent(name) == pytest.approx(row.cost))


def test_the_service_tier_that_served_a_request_decides_its_price(proxy: Proxy) -> None:
    key = add_client(proxy.settings, "tiers", budget_per_day=1_000)
    requests: list[tuple[float, str, dict[str, Any]]] = [
        (0.5, "served as flex", {"service_tier": "auto"}),
        (2.0, "served as priority", {"stream": True}),
        (0.5, "unread, served as flex", {"path": "/v1/rerank"}),
        # A tier without a known price has the standard price. The requested tier does not count.
        (1.0, "served as scale", {"service_tier": "flex"}),
        (1.0, "served as default", {"service_tier": "priority"}),
    ]
    costs: list[float] = []
    for factor, question, fields in requests:
        assert proxy.ask(key, question, **fields).status_code == 200
        costs.append(factor * COST)
        until(lambda: proxy.spent("tiers") == pytest.approx(sum(costs)))

    def listed() -> ListedClient:
        return next(client for client in list_clients(proxy.settings) if client.name == "tiers")

    until(lambda: listed().requests == len(requests))
    assert listed().spent == pytest.approx(sum(costs)) == listed().spent_today
    data, prices = proxy.settings.data, {"KVPROXY_JOURNAL__PRICES": json.dumps(PRICES)}
    log = kvproxy("log", "--where", "client = 'tiers'", "--json", "--data", data, **prices)
    records = [json.loads(line) for line in log.stdout.splitlines()]
    assert [record["cost"] for record in records] == pytest.approx(costs)
    assert [record["service_tier"] for record in records] == ["flex", "priority", "flex", "scale", None]
    bill = kvproxy("sessions", "--by", "model", "--tenant", "tiers", "--data", data, **prices)
    assert "at the price of the standard tier: 1 request of the service tiers scale" in bill.stderr
    saved = kvproxy("savings", "--by", "client", "--data", data, **prices).stdout
    assert "At the price of the standard tier: 1 request of service tiers" in saved


def test_a_request_that_is_aborted_before_its_response_costs_its_estimated_prompt(proxy: Proxy) -> None:
    key, prompt = add_client(proxy.settings, "impatient", budget_per_day=10), "wait" + "x" * 3_996
    costs: list[float] = []
    # An unread request is estimated by its bytes.
    try:
        for path in ("/v1/chat/completions", "/v1/rerank"):
            abort(proxy, path, key, chat(prompt))
            until(lambda: proxy.spent("impatient") > sum(costs))
            costs.append(proxy.spent("impatient") - sum(costs))
            assert 1_000 * 100 / 1e6 <= costs[-1] <= 1_100 * 100 / 1e6
    finally:
        # The upstream's threads wait for it.
        proxy.upstream.gate.set()

    def listed() -> ListedClient:
        return next(client for client in list_clients(proxy.settings) if client.name == "impatient")

    until(lambda: listed().requests == 2)
    assert listed().spent == pytest.approx(sum(costs)) == listed().spent_today
    prices = {"KVPROXY_JOURNAL__PRICES": json.dumps(PRICES)}
    bill = kvproxy("sessions", "--by", "client", "--json", "--data", proxy.settings.data, **prices)
    row = next(row for row in json.loads(bill.stdout)["rows"] if row["name"] == "impatient")
    assert (row["cost"], row["estimated"]) == (pytest.approx(sum(costs)), 2)
    log = kvproxy("log", "--where", "client = 'impatient'", "--json", "--data", proxy.settings.data, **prices)
    assert [json.loads(line)["cost"] for line in log.stdout.splitlines()] == pytest.approx(costs)
    proxy.upstream.gate.clear()


@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/rerank"])
def test_a_request_that_the_read_timeout_ends_costs_its_estimated_prompt(tmp_path: Path, path: str) -> None:
    upstream = Upstream()
    with contextlib.ExitStack() as stack:
        url = stack.enter_context(run_upstream(upstream.answer))
        # The upstream's threads wait for it.
        stack.callback(upstream.gate.set)
        stack.enter_context(pytest.MonkeyPatch.context()).setattr(
            "kvproxy.http.client_authentication._CHECK_SECONDS", 0.0
        )
        front = run_front(tmp_path, url, journal={"prices": PRICES}, forward={"read_timeout": 0.2})
        running = Proxy(*stack.enter_context(front), upstream)
        key = add_client(running.settings, "patient", budget_per_day=10)
        assert running.ask(key, "wait" + "x" * 3_996, path).status_code == 504
        until(lambda: len(running.services.journal.latest(1)) == 1)
        (client,) = list_clients(running.settings)
        assert client.spent == pytest.approx(1_050 * 100 / 1e6, abs=50 * 100 / 1e6)
        until(lambda: running.spent("patient") == pytest.approx(client.spent))


def check_renewal(
    data: Path, question: str, cost: tuple[float, float], cache: dict[str, Any], upstream: Upstream, **headers: str
) -> None:
    """Serve a stale response, and compare what its renewal cost in the budget, in `keys`, the bill, and the savings."""
    upstream.gate.set()
    with contextlib.ExitStack() as stack:
        patch = stack.enter_context(pytest.MonkeyPatch.context())
        patch.setattr("kvproxy.http.client_authentication._CHECK_SECONDS", 0.0)
        url = stack.enter_context(run_upstream(upstream.answer))
        # The upstream's threads wait for it.
        stack.callback(upstream.gate.set)
        forward = {"read_timeout": 0.3 if "wait" in question and not headers else 300}
        settings = load_settings(
            data=data, upstream=url, journal={"prices": PRICES}, forward=forward, cache={"semantic": False, **cache}
        )
        front = run_proxy(settings)
        running = Proxy(*stack.enter_context(front), upstream)
        key = add_client(running.settings, "one", budget_per_day=10)
        assert running.ask(key, question).status_code == 200
        until(lambda: running.spent("one") == pytest.approx(COST))
        httpx.delete(f"{running.url}/admin/cache?model=m&soft=true", timeout=60).raise_for_status()
        upstream.gate.clear()
        sent = {"authorization": f"Bearer {key}", **headers}
        answer = httpx.post(f"{running.url}/v1/chat/completions", json=chat(question), headers=sent, timeout=60)
        assert next(iter(cache)).replace("_", "-") in answer.headers["cache-status"]
        until(lambda: COST + cost[0] <= running.spent("one") <= COST + cost[1])
        spent = pytest.approx(running.spent("one"))
        until(lambda: len(running.services.journal.latest(9)) == 3)
        renewal = next(record for record in running.services.journal.latest(9) if record.layer == "revalidated")
        hit = next(record for record in running.services.journal.latest(9) if record.layer == "exact")
        assert (hit.layer, renewal.request_id) == ("exact", f"renewal-{hit.request_id}")
        (client,) = list_clients(running.settings)
        assert (client.requests, client.spent) == (2, spent)
        prices = {"KVPROXY_JOURNAL__PRICES": json.dumps(PRICES)}
        bill = kvproxy("sessions", "--by", "client", "--json", "--data", data, **prices)
        assert json.loads(bill.stdout)["total"]["cost"] == spent
        log = kvproxy("log", "--json", "--data", data, **prices).stdout.splitlines()
        assert sum(json.loads(line)["cost"] for line in log) == spent
        report = json.loads(kvproxy("savings", "--json", "--data", data, **prices).stdout)
        assert report["total"]["spent"] == spent
        row = next(row for row in report["rows"] if row["name"] == "revalidated")
        assert (row["requests"], row["spent"], row["money"]) == (0, pytest.approx(row["spent"]), -row["spent"])
        assert cost[0] <= row["spent"] <= cost[1]


def test_a_revalidation_costs_the_same_in_the_budget_and_in_all_reports(tmp_path: Path) -> None:
    bounds = COST - 1e-9, COST + 1e-9
    check_renewal(tmp_path, "fresh", bounds, {"stale_while_revalidate": 1e6}, Upstream())


@pytest.mark.parametrize("headers", [{}, {"x-kvproxy-timeout": "0.5"}])
def test_a_stale_response_after_a_timeout_costs_the_estimated_prompt(tmp_path: Path, headers: dict[str, str]) -> None:
    prompt = "wait" + "x" * 3_996
    bounds = 1_000 * 100 / 1e6, 1_100 * 100 / 1e6
    check_renewal(tmp_path, prompt, bounds, {"stale_if_error": 1e6}, Upstream(), **headers)


def test_a_stale_response_after_a_broken_one_costs_what_arrived(tmp_path: Path) -> None:
    # One token for four bytes, beside the prompt.
    bounds = 5 * 1_000 / 1e6, (5 * 1_000 + 100 * 100) / 1e6
    check_renewal(tmp_path, "breaks", bounds, {"stale_if_error": 1e6}, Upstream())


def test_a_request_that_reached_no_upstream_is_free(tmp_path: Path) -> None:
    with socket.socket() as unused, pytest.MonkeyPatch.context() as patch:
        unused.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{unused.getsockname()[1]}"
        with run_front(tmp_path, url, journal={"prices": PRICES}) as (proxy, services):
            patch.setattr("kvproxy.http.client_authentication._CHECK_SECONDS", 0.0)
            running = Proxy(proxy, services, Upstream())
            key = add_client(running.settings, "one", budget_per_day=10)
            assert running.ask(key).status_code == 502
            until(lambda: len(services.journal.latest(1)) == 1)
            assert services.journal.latest(1)[0].estimated_prompt_tokens is None
            assert running.spent("one") == 0


def test_a_model_without_a_price_is_refused(proxy: Proxy) -> None:
    key = add_client(proxy.settings, "strict", budget_per_month=1)
    for path in ("/v1/chat/completions", "/v1/rerank"):
        refused = proxy.ask(key, path=path, model="unpriced")
        assert refused.status_code == 403
        assert '[journal.prices."unpriced"]' in refused.json()["error"]["message"]
    # The journal has no refused requests of forwarded routes.
    until(lambda: any(row.status == 403 for row in proxy.services.journal.latest(1)))
    assert proxy.services.journal.latest(1)[0].reached_limit == "prices"
    assert 'kvproxy_limited_total{limit="prices"} 2.0' in httpx.get(f"{proxy.url}/metrics").text
    assert proxy.ask(key, path="/v1/rerank").status_code == 200
    until(lambda: proxy.spent("strict") == pytest.approx(COST))
    # Counting tokens is free, and some images name no model that the proxy could price.
    assert proxy.ask(key, path="/v1/messages/count_tokens").status_code == 200
    drawn = httpx.post(
        f"{proxy.url}/v1/images/generations", headers={"authorization": f"Bearer {key}"}, json={"prompt": "f"}
    )
    assert (drawn.status_code, "has a budget" in drawn.json()["error"]["message"]) == (403, True)
    assert proxy.spent("strict") == pytest.approx(COST)


def test_budgets_without_any_price_are_an_error_at_the_start(tmp_path: Path) -> None:
    # The list prices are in USD.
    settings = load_settings(data=tmp_path, journal={"currency": "EUR"})
    with pytest.raises(InvalidRequest, match="no model has a price in EUR"):
        add_client(settings, "team", budget_per_day=5)
    add_client(settings, "team")
    with pytest.raises(InvalidRequest, match=r"remove journal\.currency"):
        set_limits(settings, "team", {"budget_per_month": 5})
    set_limits(load_settings(data=tmp_path), "team", {"budget_per_month": 5})
    check = kvproxy("config", "check", "--data", tmp_path, KVPROXY_JOURNAL__CURRENCY="EUR")
    assert (check.returncode, "set prices in EUR" in check.stderr) == (2, True)
    with pytest.raises(SettingsError, match="the client team has a budget"):
        Clients(settings)
    Clients(load_settings(data=tmp_path, journal={"currency": "EUR", "prices": PRICES}))


def test_clients_see_the_models_that_they_may_use(proxy: Proxy) -> None:
    key, every = add_client(proxy.settings, "some", models=("m", "un*")), add_client(proxy.settings, "every")
    for client_key, names in ((key, ["m", "unpriced"]), (every, ["m", "n", "unpriced"])):
        with openai.OpenAI(base_url=f"{proxy.url}/v1", api_key=client_key) as client:
            assert [model.id for model in client.models.list()] == names
    headers = {"authorization": f"Bearer {key}"}
    assert httpx.get(f"{proxy.url}/v1/models/n", headers=headers).status_code == 403
    assert httpx.get(f"{proxy.url}/v1/models/m", headers=headers).status_code == 200


def test_a_budget_outlives_the_proxy_and_is_in_backups(tmp_path: Path) -> None:
    key = ""
    for number in range(3):
        with run(tmp_path / "data") as proxy:
            key = key or add_client(proxy.settings, "one", budget_per_month=2 * COST)
            assert proxy.ask(key, number).status_code == (200 if number < 2 else 429)
            settings = proxy.settings
    write_backup(settings, tmp_path / "a.tar")
    restored = settings.model_copy(update={"data": tmp_path / "restored"})
    restore_backup(restored, tmp_path / "a.tar")
    assert spent_and_reserved(restored)[0]["one"].this_month == pytest.approx(2 * COST)


def test_commands_set_and_list_budgets(tmp_path: Path) -> None:
    key = kvproxy("keys", "add", "team", "--budget-per-day", "2.5", "--data", tmp_path).stdout
    assert kvproxy("keys", "set", "team", "--budget-per-month", "40", "--data", tmp_path).returncode == 0
    rows = json.loads(kvproxy("keys", "ls", "--json", "--data", tmp_path).stdout)
    budget = {name: rows[0][name] for name in ("budget_per_day", "left_today", "budget_per_month", "spent_this_month")}
    assert budget == {"budget_per_day": 2.5, "left_today": 2.5, "budget_per_month": 40.0, "spent_this_month": 0.0}
    head, line = kvproxy("keys", "ls", "--csv", "--data", tmp_path).stdout.splitlines()
    assert dict(zip(head.split(","), line.split(","), strict=True))["left_today"] == "2.5"
    assert key.strip() not in kvproxy("keys", "ls", "--json", "--data", tmp_path).stdout
    for amount in ("-1", "inf", "nan", "1e400", "5$", "0,05"):
        wrong = kvproxy("keys", "set", "team", f"--budget-per-day={amount}", "--data", tmp_path)
        assert (wrong.returncode, "must be an amount in journal.currency" in wrong.stderr) == (2, True)
    kvproxy("keys", "set", "team", "--unlimited", "budget-per-day,budget_per_month", "--data", tmp_path)
    assert not all_clients(load_settings(data=tmp_path))[0].has_budget


def client(**budgets: float) -> ClientSettings:
    return ClientSettings(name="a", key_sha256="0" * 64, **budgets)  # type: ignore[arg-type]


def test_budgets_begin_again_each_day_and_month(tmp_path: Path) -> None:
    now = datetime(2026, 12, 30, 23, 59, tzinfo=UTC)
    file = SpendingFile(tmp_path)

    async def spend() -> None:
        spent = SpentMoney(file, {}, lambda: now.timestamp())

        async def pay(money: float) -> None:
            spent.charge("a", money, await spent.reserve(limited, 0.1))
            await spent.close()

        limited = client(budget_per_day=1, budget_per_month=1.5)
        await pay(1.0)
        with pytest.raises(BudgetExceeded, match="1 USD a day, until 2026-12-31 00:00"):
            await pay(1.0)
        nonlocal now
        now += timedelta(minutes=2)
        await pay(1.0)
        with pytest.raises(BudgetExceeded, match=r"1\.5 USD a month, until 2027-01-01 00:00"):
            await pay(1.0)
        now += timedelta(days=1)
        await pay(1.0)

    asyncio.run(spend())
    days = file.query("select day, money from spending", {})
    assert days == [{"day": "2027-01-01", "money": 1.0}], "no budget counts earlier months"
    file.close()


class BreakableTables:
    """The tables of a file, whose transactions fail while `is_broken`."""

    def __init__(self, file: SpendingFile, *, is_broken: bool = False) -> None:
        self.query, self._file, self.is_broken = file.query, file, is_broken

    def transaction(self, *, durable: bool = True) -> AbstractContextManager[Transaction]:
        if self.is_broken:
            raise CacheStoreError("no database")
        return self._file.transaction(durable=durable)


def test_without_its_table_a_proxy_counts_and_writes_later(tmp_path: Path) -> None:
    file = SpendingFile(tmp_path)
    tables = BreakableTables(file)

    async def spend() -> None:
        spent, limited = SpentMoney(tables, {}), client(budget_per_day=1)

        async def pay(money: float) -> None:
            spent.charge("a", money, await spent.reserve(limited, 0.0))
            await spent.close()

        await pay(0.4)
        tables.is_broken = True
        await spent.reserve(limited, 0.0)
        await pay(0.7)
        with pytest.raises(BudgetExceeded):
            await pay(0.1)
        assert read_spent(file.query, time.time())["a"].today == pytest.approx(0.4)
        tables.is_broken = False
        with pytest.raises(BudgetExceeded):
            await pay(0.1)
        assert read_spent(file.query, time.time())["a"].today == pytest.approx(1.1)

    asyncio.run(spend())
    file.close()


def test_without_its_table_reserved_money_is_not_spent(tmp_path: Path) -> None:
    """Else SDKs would not try again, and the metrics would count money that nobody spent."""
    file = SpendingFile(tmp_path)
    tables = BreakableTables(file)

    async def spend() -> None:
        spent, limited = SpentMoney(tables, {}), client(budget_per_day=1)
        before = await spent.reserve(limited, 0.6)
        tables.is_broken = True
        during = await spent.reserve(limited, 0.6)
        with pytest.raises(
            TooManyRequests, match=r"requests in flight have reserved the rest.*try again in 5 s"
        ) as error:
            await spent.reserve(limited, 0.6)
        assert (error.value.code, error.value.retry_after) == ("rate_limit_exceeded", 5.0)
        assert spent.unwritten() == ({}, {"a": 0.6})
        spent.charge("a", 0.1, before)
        spent.charge("a", 0.2, during)
        await asyncio.gather(*spent._charges)
        assert spent.read()["a"].today == spent.unwritten()[0]["a"].this_month == pytest.approx(0.3)
        assert spent.unwritten()[1] == {}
        # After the recovery, a request of the outage counts as reserved, also for other proxies.
        later = await spent.reserve(limited, 0.8)
        tables.is_broken = False
        with pytest.raises(TooManyRequests, match="reserved"):
            await spent.reserve(limited, 0.0)
        await spent._renew([later])
        with pytest.raises(TooManyRequests, match="reserved"):
            await SpentMoney(file, {}).reserve(limited, 0.0)
        spent.charge("a", 0.4, later)
        await spent.close()
        assert spent.read()["a"].today == read_spent(file.query, time.time())["a"].today == pytest.approx(0.7)
        assert file.query("select * from reservations") == []

    asyncio.run(spend())
    file.close()


def test_a_new_day_during_an_outage_begins_a_new_budget(tmp_path: Path) -> None:
    now = datetime(2026, 12, 30, 23, 59, tzinfo=UTC)
    file = SpendingFile(tmp_path)
    tables = BreakableTables(file)

    async def spend() -> None:
        nonlocal now
        spent, limited = SpentMoney(tables, {}, lambda: now.timestamp()), client(budget_per_day=1, budget_per_month=1.5)
        spent.charge("a", 1.0, await spent.reserve(limited, 0.0))
        await spent.close()
        tables.is_broken = True
        with pytest.raises(BudgetExceeded, match="a day"):
            await spent.reserve(limited, 0.0)
        now += timedelta(minutes=2)
        spent.charge("a", 0.7, await spent.reserve(limited, 0.0))
        with pytest.raises(BudgetExceeded, match="a month"):
            await spent.reserve(limited, 0.0)
        now += timedelta(days=1)
        await spent.reserve(limited, 0.0)
        tables.is_broken = False
        await spent.close()

    asyncio.run(spend())
    file.close()


def test_charges_count_while_a_slow_table_refuses_them(tmp_path: Path) -> None:
    file = SpendingFile(tmp_path)
    began, gate = threading.Event(), threading.Event()

    class SlowTables(BreakableTables):
        def transaction(self, *, durable: bool = True) -> AbstractContextManager[Transaction]:
            if self.is_broken and durable:
                began.set()
                gate.wait()
            return super().transaction(durable=durable)

    tables = SlowTables(file)

    async def spend() -> None:
        spent = SpentMoney(tables, {})
        reservation = await spent.reserve(client(budget_per_day=1), 0.0)
        tables.is_broken = True
        spent.charge("a", 0.4, reservation)
        await asyncio.to_thread(began.wait)
        try:
            assert spent._known("a", time.time()).today == 0.4
        finally:
            gate.set()
        await spent.close()

    asyncio.run(spend())
    file.close()


def test_a_failed_commit_counts_no_money_twice(tmp_path: Path) -> None:
    """SQLite reports a full disk at the commit, after the statements succeeded."""
    file = SpendingFile(tmp_path)

    class FullDisk(BreakableTables):
        @contextlib.contextmanager
        def transaction(self, *, durable: bool = True) -> Iterator[Transaction]:
            with contextlib.suppress(ZeroDivisionError), self._file.transaction(durable=durable) as run:
                yield run
                if not self.is_broken:
                    return
                raise ZeroDivisionError
            raise CacheStoreError("the disk is full")

    disk = FullDisk(file)

    async def spend() -> None:
        spent, limited = SpentMoney(disk, {}), client(budget_per_day=1)
        reservation = await spent.reserve(limited, 0.0)
        disk.is_broken = True
        spent.charge("a", 0.6, reservation)
        await asyncio.gather(*spent._charges)
        await spent.reserve(limited, 0.0)
        disk.is_broken = False
        await spent.close()
        assert read_spent(file.query, time.time())["a"].today == 0.6

    asyncio.run(spend())
    file.close()


def test_metrics_and_keys_count_money_that_the_full_disk_refuses(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with run(tmp_path) as proxy:
        key = add_client(proxy.settings, "one", budget_per_day=1)
        assert proxy.ask(key, "first").status_code == 200
        until(lambda: proxy.spent("one") == pytest.approx(COST))

        def refuse(*arguments: object) -> None:
            raise CacheStoreError("the disk is full")

        monkeypatch.setattr(SpentMoney, "_write_charges", refuse)
        assert proxy.ask(key, "second").status_code == 200
        metric = 'kvproxy_client_budget_spent{client="one",period="day"} 0.328'
        until(lambda: metric in httpx.get(f"{proxy.url}/metrics").text)
        (listed,) = httpx.get(f"{proxy.url}/admin/keys").json()["clients"]
        assert (listed["spent_today"], listed["left_today"]) == pytest.approx((0.328, 0.672))
        monkeypatch.undo()


@pytest.mark.parametrize("recovers", [True, False])
def test_a_stop_writes_the_charges_of_an_outage_or_logs_them(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, recovers: bool
) -> None:
    file = SpendingFile(tmp_path)
    tables = BreakableTables(file, is_broken=True)

    async def spend() -> None:
        spent = SpentMoney(tables, {})
        spent.charge("a", 0.7, await spent.reserve(client(budget_per_day=1), 0.0))
        await asyncio.to_thread(until, lambda: "no database" in caplog.text)
        await asyncio.sleep(0)
        tables.is_broken = not recovers
        await spent.close()

    asyncio.run(spend())
    written = read_spent(file.query, time.time())
    file.close()
    assert ("a" in written, "could not be used: a 0.7" in caplog.text) == (recovers, not recovers)


def test_a_proxy_renews_its_reservations_and_those_of_a_killed_one_expire(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("kvproxy.clients.spent_money.LEASE_SECONDS", 0.03)
    now, limited = 1e9, client(budget_per_day=1)
    file = SpendingFile(tmp_path)

    async def spend() -> None:
        nonlocal now
        one, other = (SpentMoney(file, {}, lambda: now) for _ in range(2))
        reservation = await one.reserve(limited, 2.0)
        renewing = asyncio.create_task(one.renew_periodically())
        now += 0.02
        renewed = "select 1 from reservations where expires > :now"
        await asyncio.to_thread(until, lambda: file.query(renewed, {"now": now + 0.02}) != [])
        now += 0.02
        with pytest.raises(TooManyRequests, match="reserved"):
            await other.reserve(limited, 0.1)
        # A killed proxy renews nothing.
        renewing.cancel()
        await asyncio.wait({renewing})
        now += 1
        other.charge("a", 0.5, await other.reserve(limited, 0.1))
        # Only suspended, it still charges its request.
        one.charge("a", 0.25, reservation)
        await one.close()
        await other.close()
        assert read_spent(file.query, now)["a"].today == 0.75
        assert file.query("select * from reservations") == []

    asyncio.run(spend())
    file.close()


def test_the_metric_counts_a_paid_fallback_of_a_model_without_a_price(tmp_path: Path) -> None:
    """Also of a request that its client aborts. A client with a budget may not send it."""
    upstream = Upstream()
    with run_upstream(upstream.answer) as paid:
        servers = [{"url": "http://127.0.0.1:9", "models": ["unpriced"]}, {"url": paid, "models": ["m"]}]
        routing = {"fallbacks": {"unpriced": ["m"]}}
        settings = load_settings(data=tmp_path, upstreams=servers, routing=routing, journal={"prices": PRICES})
        with run_proxy(settings) as (url, services):
            proxy = Proxy(url, services, upstream)
            key, limited = add_client(services.settings, "one"), add_client(services.settings, "two", budget_per_day=1)
            proxy.services.clients.reload()
            assert proxy.ask(key, model="unpriced").status_code == 200

            def spent() -> float:
                found = re.findall(
                    r'client_spent_total{client="one",model="m"} (.*)', services.metrics.render().decode()
                )
                return float(found[0]) if found else 0.0

            until(lambda: spent() == pytest.approx(COST))
            abort(proxy, "/v1/chat/completions", key, chat("wait", model="unpriced"))
            until(lambda: spent() > COST * 1.001)
            upstream.gate.set()
            assert "has no price" in proxy.ask(limited, model="unpriced").json()["error"]["message"]


def test_the_prices_of_fallbacks_are_searched_at_the_start(tmp_path: Path) -> None:
    """The search of the price list would block the event loop when it charges the first fallback."""
    servers = [{"url": "http://127.0.0.1:9", "models": ["m"]}, {"url": "http://127.0.0.1:8", "models": ["gpt-4o-mini"]}]
    settings = load_settings(data=tmp_path, upstreams=servers, routing={"fallbacks": {"m": ["gpt-4o-mini"]}})
    for cached in (published_prices._listed_model, published_prices._listed_prices):
        cached.cache_clear()
    with run_proxy(settings):
        until(lambda: published_prices._listed_model.cache_info().currsize >= 1)
