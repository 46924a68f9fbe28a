"""The dashboard's page Keys: clients with usage, budgets, and limits, and never a key."""

import contextlib
import time
from pathlib import Path

import httpx
import pytest

from kvproxy.clients.client_keys import add_client, add_clients, remove_client, set_disabled, set_limits
from kvproxy.settings import load_settings
from tests.http.test_budgets import COST, PRICES, Upstream
from tests.requests import chat
from tests.servers import run_front, run_upstream
from tests.ui.page import Page
from tests.ui.test_access import has_no_violation

pytestmark = pytest.mark.usefixtures("calm")


def rows(page: Page) -> dict[str, list[str]]:
    """The cells after the name of each client."""
    script = "return [...document.querySelectorAll('main tbody tr')].map(row => [...row.cells].map(each => each.textContent))"
    return {name: cells for name, *cells in page.run(script)}


def test_the_page_lists_clients_with_their_budgets_and_no_keys(page: Page, tmp_path: Path) -> None:
    with contextlib.ExitStack() as stack:
        upstream = stack.enter_context(run_upstream(Upstream().answer))
        url, services = stack.enter_context(run_front(tmp_path, upstream, journal={"prices": PRICES}))
        stack.callback(page.close)
        stack.enter_context(page.wide(1360))
        page.open(url, "keys")
        page.until(lambda: "There is no client" in page.text("main"))
        limits = {"budget_per_day": 0.1, "budget_per_month": 5, "models": ("m", "small-*"), "tokens_per_minute": 90_000}
        (key,) = add_clients(services.settings, [("one-team", limits)])
        add_client(services.settings, "old", expires=time.time() - 1)
        services.clients.reload()
        headers = {"authorization": f"Bearer {key}"}
        assert httpx.post(f"{url}/v1/chat/completions", json=chat(), headers=headers, timeout=60).status_code == 200
        services.journal.latest(1)
        page.until(lambda: rows(page)["one-team"][4].startswith(f"{COST:.4f} of 5"))
        requests, tokens, spent, today, _, shown_limits, models, expires, _ = rows(page)["one-team"]
        assert (requests, tokens, spent) == ("1", "1,100", f"{COST:.4f}")
        assert today == f"{COST:.4f} of 0.1"
        assert (shown_limits, models, expires) == ("90,000 tokens/min", "m, small-*", "never")
        assert rows(page)["old"][7] == "expired"
        assert page.texts("[data-state=spent]") == [today, "expired"]
        listing = httpx.get(f"{url}/admin/keys").text
        digests = [digest for client in services.clients._known.values() for digest in client.digests]
        document = str(page.run("return document.documentElement.outerHTML"))
        assert not [secret for secret in (key, *digests) if secret in listing or secret in document]
        has_no_violation(page)
        # A change is shown without a reload.
        set_limits(services.settings, "one-team", {"budget_per_day": 2.0})
        page.until(lambda: rows(page)["one-team"][3] == f"{COST:.4f} of 2")
        script = (
            "const done = arguments[0]; const values = [null, 0, 2e-5, 1.5, 0.02325, 0.023250000000000003];"
            " import('./format.js').then(({money}) => done(values.map(money)))"
        )
        assert page.driver.execute_async_script(script) == ["–", "0", "0.000020", "1.5000", "0.0232", "0.0232"]
        set_disabled(services.settings, "old", disabled=True)
        page.until(lambda: "old disabled" in rows(page))
        for name in ("old", "one-team"):
            remove_client(services.settings, name)
        page.until(lambda: "No client is left, so all requests are rejected" in page.text("main"))


def test_the_list_of_clients_is_for_the_operator(tmp_path: Path) -> None:
    settings = load_settings(data=tmp_path)
    key = add_client(settings, "one")
    with (
        run_upstream(Upstream().answer) as upstream,
        run_front(tmp_path, upstream, admin_token="operators") as (url, _),
    ):
        assert httpx.get(f"{url}/admin/keys", headers={"authorization": f"Bearer {key}"}).status_code == 401
        listed = httpx.get(f"{url}/admin/keys", headers={"authorization": "Bearer operators"}).json()
        assert [client["name"] for client in listed["clients"]] == ["one"]
