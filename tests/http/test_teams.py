"""Clients of a team share its quotas and budgets."""

import contextlib
import csv
import json
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from kvproxy.clients.client_keys import add_client, remove_client, set_disabled, set_limits, spent_and_reserved
from kvproxy.errors import InvalidRequest
from kvproxy.http.services import Services
from kvproxy.operations.keys import list_clients
from kvproxy.settings import load_settings
from tests.commands.run import kvproxy, result
from tests.http.test_budgets import COST, PRICES, Upstream
from tests.polling import until
from tests.requests import chat
from tests.servers import run_front, run_upstream


class Proxy:
    def __init__(self, url: str, services: Services) -> None:
        self.url, self.services, self.settings = url, services, services.settings

    def ask(self, key: str, question: str = "Hi", **fields: Any) -> httpx.Response:
        headers = {"authorization": f"Bearer {key}"}
        body = chat(question, **fields)
        return httpx.post(f"{self.url}/v1/chat/completions", headers=headers, json=body, timeout=300)

    def spent(self, name: str) -> float:
        spent = spent_and_reserved(self.settings)[0]
        return spent[name].today if name in spent else 0.0


@pytest.fixture
def proxy(tmp_path: Path) -> Iterator[Proxy]:
    with contextlib.ExitStack() as stack:
        patch = stack.enter_context(pytest.MonkeyPatch.context())
        patch.setattr("kvproxy.http.client_authentication._CHECK_SECONDS", 0.0)
        upstream = stack.enter_context(run_upstream(Upstream().answer))
        yield Proxy(*stack.enter_context(run_front(tmp_path, upstream, journal={"prices": PRICES})))


def test_clients_of_a_team_spend_one_budget_and_then_get_hits_only(proxy: Proxy) -> None:
    add_client(proxy.settings, "research", budget_per_month=0.3, budget_per_day=0.2)
    anna = add_client(proxy.settings, "anna", team="research")
    ben = add_client(proxy.settings, "ben", team="research", budget_per_day=10.0)
    other = add_client(proxy.settings, "other")
    assert proxy.ask(anna, "one").status_code == 200
    until(lambda: proxy.spent("research") == pytest.approx(COST))
    assert proxy.ask(ben, "two").status_code == 200
    until(lambda: proxy.spent("research") == pytest.approx(2 * COST))
    until(lambda: proxy.spent("ben") == pytest.approx(COST))
    for key in (anna, ben):
        refused = proxy.ask(key, "three")
        error = refused.json()["error"]
        assert (refused.status_code, error["code"]) == (429, "insufficient_quota")
        assert "the team research has spent its budget of 0.3 USD a month" in error["message"]
        assert "kvproxy keys set research --budget-per-month" in error["message"]
    assert "hit" in proxy.ask(anna, "one").headers["cache-status"]
    assert proxy.ask(other, "three").status_code == 200
    # A refusal of the team reserves nothing of the client's own budget.
    assert proxy.spent("ben") == pytest.approx(COST)
    # The model must have a price, as for a client with a budget.
    removal = "kvproxy keys set {} --unlimited budget-per-day,budget-per-month"
    why = proxy.ask(anna, "four", model="unpriced").json()["error"]["message"]
    assert why.startswith("the team research has a budget, and")
    assert f"({removal.format('research')})" in why
    why = proxy.ask(ben, "four", model="unpriced").json()["error"]["message"]
    assert why.startswith("the client ben and the team research have budgets, and")
    assert f"({removal.format('ben')} and {removal.format('research')})" in why
    headers = {"authorization": f"Bearer {anna}"}
    unread = httpx.post(f"{proxy.url}/v1/images/generations", headers=headers, json={"prompt": "x"}, timeout=60)
    assert unread.json()["error"]["message"].startswith("the team research has a budget, and the body")
    proxy.services.journal.latest(1)
    listed = {client.name: client for client in list_clients(proxy.settings)}
    assert listed["research"].left_this_month == 0
    assert [listed[name].team for name in ("anna", "research", "other")] == ["research", None, None]
    assert listed["research"].spent == pytest.approx(2 * COST)
    assert (listed["anna"].requests or 0) + (listed["ben"].requests or 0) == listed["research"].requests
    shown = kvproxy("keys", "ls", "--data", proxy.settings.data).stdout
    assert "\nanna\tresearch\t" in shown
    # Metrics count each request once.
    assert 'client="research"' not in proxy.services.metrics.render().decode()
    command = removal.format("research").split()[1:]
    assert kvproxy(*command, "--data", proxy.settings.data).returncode == 0
    assert proxy.ask(anna, "three").status_code == 200


def test_clients_of_a_team_share_its_quotas(proxy: Proxy) -> None:
    add_client(proxy.settings, "group", requests_per_minute=3, tokens_per_minute=1_000_000)
    one = add_client(proxy.settings, "one", team="group", requests_per_minute=100)
    two = add_client(proxy.settings, "two", team="group")
    remaining = [proxy.ask(key).headers["x-ratelimit-remaining-requests"] for key in (one, two, one)]
    assert remaining == ["2", "1", "0"]
    for key in (one, two):
        refused = proxy.ask(key)
        assert refused.status_code == 429
        assert "the limit of requests per minute (3) of the team group is reached" in refused.json()["error"]["message"]
    set_limits(proxy.settings, "group", {"requests_per_minute": None, "tokens_per_minute": 300})
    for number, key in enumerate((one, two)):
        # The answer has more tokens than the quota.
        refused = proxy.ask(key, f"a new question {number}")
        assert refused.status_code == (429 if number else 200)
    assert "more than 300 tokens a minute of the team group" in refused.json()["error"]["message"]
    assert "and 300 a minute of the team group are allowed" in proxy.ask(two, "x" * 3_000).json()["error"]["message"]


def test_a_client_and_its_team_may_change_places(proxy: Proxy) -> None:
    first = add_client(proxy.settings, "first")
    second = add_client(proxy.settings, "second", team="first")
    assert proxy.ask(second).status_code == 200
    set_limits(proxy.settings, "second", {"team": None})
    set_limits(proxy.settings, "first", {"team": "second"})
    assert proxy.ask(first).status_code == 200
    assert proxy.ask(second).status_code == 200


def test_a_disabled_team_disables_its_clients(proxy: Proxy) -> None:
    add_client(proxy.settings, "lab")
    key = add_client(proxy.settings, "ada", team="lab")
    assert proxy.ask(key).status_code == 200
    set_disabled(proxy.settings, "lab", disabled=True)
    refused = proxy.ask(key)
    assert refused.status_code == 403
    assert "the client lab is disabled" in refused.json()["error"]["message"]
    set_disabled(proxy.settings, "lab", disabled=False)
    assert proxy.ask(key).status_code == 200


def test_a_team_is_a_client_without_a_team(tmp_path: Path) -> None:
    settings = load_settings(data=tmp_path, upstream="http://127.0.0.1:9")
    with pytest.raises(InvalidRequest, match="the team lab of the client ada is no client: kvproxy keys add lab"):
        add_client(settings, "ada", team="lab")
    add_client(settings, "lab")
    add_client(settings, "ada", team="lab")
    for name, team in (("lab", "ada"), ("lab", "lab")):
        with pytest.raises(InvalidRequest, match="has a team itself"):
            set_limits(settings, name, {"team": team})
    with pytest.raises(InvalidRequest, match=r"have the team lab: ada; .*: kvproxy keys set ada --unlimited team"):
        remove_client(settings, "lab")
    add_client(settings, "ben", team="lab")
    with pytest.raises(InvalidRequest, match="have the team lab: ada, ben; move or remove each"):
        remove_client(settings, "lab")
    set_limits(settings, "ben", {"team": None})
    done = kvproxy("keys", "set", "ada", "--unlimited", "team", "--data", tmp_path)
    assert "team none" in done.stdout, done.stderr
    remove_client(settings, "lab")


def test_bills_of_a_team_stay_true_after_a_client_moves_or_is_removed(proxy: Proxy) -> None:
    settings = proxy.settings
    own = add_client(settings, "red")
    add_client(settings, "blue")
    anna, ben = (add_client(settings, name, team="red") for name in ("anna", "ben"))
    solo = add_client(settings, "solo")
    for key, question in ((anna, "one"), (anna, "two"), (ben, "three"), (own, "four"), (solo, "five")):
        assert proxy.ask(key, question).status_code == 200
    until(lambda: "hit" in proxy.ask(anna, "one").headers["cache-status"])
    set_limits(settings, "anna", {"team": "blue"})
    assert proxy.ask(anna, "six").status_code == 200
    remove_client(settings, "ben")
    proxy.services.journal.latest(1)
    listed = {client.name: client for client in list_clients(settings)}
    # Of red: two of anna, one of ben, and its own one; of blue: the last one of anna.
    misses = {"red": 4, "blue": 1, "anna": 3, "solo": 1}
    for name, count in misses.items():
        assert (listed[name].tokens, listed[name].spent) == (count * 1_100, pytest.approx(count * COST)), name
    counts = {name: listed[name].requests or 0 for name in misses}
    hits = counts["anna"] - 3
    assert hits > 0
    assert counts == {"red": 4 + hits, "blue": 1, "anna": 3 + hits, "solo": 1}

    (settings.data / "kvproxy.toml").write_text("[journal.prices.m]\ninput = 100\ncached = 10\noutput = 1000\n")

    def rows(*arguments: object) -> dict[str, dict[str, Any]]:
        return {row["name"]: row for row in result(*arguments, "--data", settings.data)["rows"]}

    saved = rows("savings", "--by", "team")
    assert {name: row["requests"] for name, row in saved.items()} == {"red": 4 + hits, "blue": 1, "": 1}
    assert {name: row["answered"] for name, row in saved.items()} == {"red": hits, "blue": 0, "": 0}
    assert saved["red"]["spent"] == pytest.approx(4 * COST)
    of_red = rows("savings", "--by", "client", "--team", "red")
    assert {name: row["spent"] for name, row in of_red.items()} == pytest.approx(
        {"anna": 2 * COST, "ben": COST, "red": COST}
    )
    bill = rows("sessions", "--by", "team")
    assert {name: row["cost"] for name, row in bill.items()} == pytest.approx({"red": 4 * COST, "blue": COST, "": COST})
    assert rows("sessions", "--by", "model", "--team", "blue")["m"]["cost"] == pytest.approx(COST)
    assert result("savings", "--ledger", "--team", "blue", "--data", settings.data)["prompt_tokens"] == 1_000
    top = result("log", "top", "--by", "team", "--data", settings.data)
    assert {row["name"]: row["requests"] for row in top} == {"red": 4 + hits, "blue": 1}
    listed_bill = kvproxy("savings", "--bill", "--csv", "--data", settings.data).stdout
    lines = [row for row in csv.DictReader(listed_bill.splitlines()) if row.pop("day")]
    assert {(row["team"], row["client"]): (int(row["requests"]), int(row["hits"])) for row in lines} == {
        ("", "solo"): (1, 0),
        ("blue", "anna"): (1, 0),
        ("red", "anna"): (2 + hits, hits),
        ("red", "ben"): (1, 0),
        ("red", "red"): (1, 0),
    }
    of_anna = next(row for row in lines if (row["team"], row["client"]) == ("red", "anna"))
    assert [int(of_anna[name]) for name in ("input_tokens", "cached_tokens", "output_tokens")] == [2_000, 800, 200]
    assert float(of_anna["cost"]) == pytest.approx(2 * COST)
    logged = kvproxy("log", "--team", "red", "--limit", 0, "--csv", "--columns", "tenant,team", "--data", settings.data)
    assert Counter(logged.stdout.split()[1:]) == Counter(
        {"client:anna,red": 2 + hits, "client:ben,red": 1, "client:red,red": 1}
    )
    unknown = kvproxy("log", "--team", "rod", "--data", settings.data).stderr
    assert "no request has the team 'rod': there are red" in unknown


def test_records_of_refused_requests_name_the_limit_and_the_client(proxy: Proxy) -> None:
    settings = proxy.settings
    add_client(settings, "red", requests_per_minute=1)
    limited: dict[str, dict[str, Any]] = {
        "anna": {"team": "red"},
        "ben": {"tokens_per_minute": 1},
        "carl": {"budget_per_day": 0.0},
        "dora": {"models": ("n",)},
        "emil": {"expires": time.time() - 60},
        "fred": {},
    }
    keys = {name: add_client(settings, name, **limits) for name, limits in limited.items()}
    set_disabled(settings, "fred", disabled=True)
    assert proxy.ask(keys["anna"]).status_code == 200
    statuses = {name: proxy.ask(key, "refused").status_code for name, key in keys.items()}
    assert statuses == {"anna": 429, "ben": 413, "carl": 429, "dora": 403, "emil": 401, "fred": 403}
    proxy.services.journal.latest(1)
    listed = kvproxy("log", "--layer", "refused", "--json", "--data", settings.data).stdout
    records = {record["client"]: record for record in map(json.loads, listed.splitlines())}
    assert {name: (record["reason"], record["reached_limit"]) for name, record in records.items()} == {
        "anna": ("refused-limit", "requests_per_minute of the team red"),
        "ben": ("refused-limit", "tokens_per_minute"),
        "carl": ("refused-limit", "budget_per_day"),
        "dora": ("refused-access", "models"),
        "emil": ("refused-key", "expires"),
        "fred": ("refused-access", "disabled"),
    }
    assert records["emil"]["tenant"] == "client:emil"
    clients = {client.name: client for client in list_clients(settings)}
    assert (clients["anna"].requests, clients["anna"].refused, clients["ben"].refused) == (2, 1, 1)
    shown = kvproxy("log", "--client", "emil", "--data", settings.data, columns=160).stdout
    assert "refused-key (expires)" in shown
    explained = kvproxy("explain", "--request", records["anna"]["request_id"], "--data", settings.data).stdout
    assert "The reached limit is requests_per_minute of the team red" in explained
    lines = proxy.services.metrics.render().decode().splitlines()
    for limit in ("requests_per_minute", "tokens_per_minute", "budget_per_day", "models", "expires", "disabled"):
        assert f'kvproxy_limited_total{{limit="{limit}"}} 1.0' in lines
    assert 'kvproxy_client_requests_total{client="emil",status="401"} 1.0' in lines


def test_metrics_have_the_budgets_of_clients_and_teams(proxy: Proxy) -> None:
    def budgets() -> dict[str, float]:
        lines = httpx.get(f"{proxy.url}/metrics", timeout=300).text.splitlines()
        values = (line.removeprefix("kvproxy_client_budget_").rsplit(maxsplit=1) for line in lines)
        return {name: float(value) for name, value in values if "period=" in name}

    assert budgets() == {}
    add_client(proxy.settings, "lab", budget_per_month=0.5)
    ada = add_client(proxy.settings, "ada", team="lab", budget_per_day=0.1)
    assert proxy.ask(ada).status_code == 200
    until(lambda: proxy.spent("ada") == pytest.approx(COST))
    assert budgets() == pytest.approx(
        {
            'limit{client="ada",period="day"}': 0.1,
            'spent{client="ada",period="day"}': 0.164,
            'remaining{client="ada",period="day"}': 0.0,
            'limit{client="lab",period="month"}': 0.5,
            'spent{client="lab",period="month"}': 0.164,
            'remaining{client="lab",period="month"}': 0.336,
        }
    )
    set_limits(proxy.settings, "ada", {"budget_per_day": None})
    assert proxy.ask(ada).status_code == 200
    assert not any("ada" in name for name in budgets())
