"""Requests of forwarded routes are in the bills of all clients: their price, failures, and refusals."""

import contextlib
import csv
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from kvproxy.clients.client_keys import add_client
from kvproxy.http.services import Services
from kvproxy.operations.keys import ListedClient, list_clients
from kvproxy.settings import load_settings
from tests.commands.run import kvproxy
from tests.polling import until
from tests.servers import run_front, run_upstream

PRICES: dict[str, Any] = {"image": {"input": 5.0, "output": 40.0}}
COST = (50 * 5 + 4_160 * 40) / 1e6
"""The price of one image: 0.16665."""
IMAGES = "/v1/images/generations"


async def answer(request: Request) -> Response:
    body = await request.body()
    if b"fail" in body:
        return JSONResponse({"error": {"message": "no"}}, 400)
    if request.url.path == "/v1/audio/speech":
        return Response(b"\0" * 100_000, media_type="audio/mpeg")
    image = "A" * (3_000_000 if b"large" in body else 4)
    usage = {"input_tokens": 50, "output_tokens": 4_160, "input_tokens_details": {"text_tokens": 50}}
    # The "usage":1 of a text is not that of the response.
    data = [{"b64_json": image, "revised_prompt": 'a "usage":1'}]
    return JSONResponse({"created": 1, "data": data, "usage": usage, "quality": "high"})


class Proxy:
    def __init__(self, url: str, services: Services) -> None:
        self.url, self.settings = url, services.settings
        self.metrics = services.metrics

    def ask(self, key: str, path: str = IMAGES, **fields: Any) -> int:
        body = {"model": "image", "prompt": "a cat", **fields}
        return httpx.post(
            self.url + path, json=body, headers={"authorization": f"Bearer {key}"}, timeout=60
        ).status_code

    def listed(self, name: str) -> ListedClient:
        return next(client for client in list_clients(self.settings) if client.name == name)

    def reported(self, *arguments: str) -> Any:
        prices = {"KVPROXY_JOURNAL__PRICES": json.dumps(PRICES)}
        done = kvproxy(*arguments, "--data", self.settings.data, **prices)
        assert done.returncode == 0, done.stderr
        if "--csv" in arguments:
            return list(csv.DictReader(done.stdout.splitlines()))
        return [json.loads(line) for line in done.stdout.splitlines()]


@contextlib.contextmanager
def running(data: Path) -> Iterator[Proxy]:
    with (
        pytest.MonkeyPatch.context() as patch,
        run_upstream(answer) as url,
        run_front(data, url, journal={"prices": PRICES}) as (proxy, services),
    ):
        patch.setattr("kvproxy.http.client_authentication._CHECK_SECONDS", 0.0)
        yield Proxy(proxy, services)


@pytest.fixture(scope="module")
def proxy(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Proxy]:
    data = tmp_path_factory.mktemp("forwarded")
    add_client(load_settings(data=data), "first")
    with running(data) as started:
        yield started


@pytest.mark.parametrize("limits", [{}, {"budget_per_day": 50}])
@pytest.mark.parametrize("prompt", ["a cat", "a large cat"])
def test_images_are_in_the_bill_of_each_client(proxy: Proxy, limits: dict[str, Any], prompt: str) -> None:
    """The usage of a large response follows its images."""
    name = f"{'limited' if limits else 'free'}-{len(prompt)}"
    key = add_client(proxy.settings, name, **limits)
    assert [proxy.ask(key, prompt=prompt) for _ in range(2)] == [200, 200]
    until(lambda: proxy.listed(name).requests == 2)
    client = proxy.listed(name)
    assert (client.spent, client.estimated, client.unreported) == (pytest.approx(2 * COST), 0, 0)
    (row,) = proxy.reported("savings", "--bill", "--csv", "--tenant", name)
    assert (row["model"], row["requests"], float(row["cost"])) == ("image", "2", pytest.approx(2 * COST))
    assert (row["input_tokens"], row["output_tokens"]) == ("100", "8320")
    page = proxy.metrics.render().decode()
    (spent,) = [line for line in page.splitlines() if f'client_spent_total{{client="{name}"' in line]
    assert float(spent.split()[-1]) == pytest.approx(2 * COST)


def test_a_request_without_a_model_or_a_price_is_forwarded_without_a_budget(proxy: Proxy) -> None:
    key = add_client(proxy.settings, "without")
    assert proxy.ask(key, model=None) == 200
    assert proxy.ask(key, model="unpriced") == 200
    until(lambda: proxy.listed("without").requests == 1)
    client = proxy.listed("without")
    assert (client.unpriced, client.spent, client.tokens) == (1, None, 4_210)


def test_an_audio_response_without_a_budget_has_unknown_tokens(proxy: Proxy) -> None:
    """Its bytes would estimate 25,000 of them."""
    key = add_client(proxy.settings, "speaking")
    assert proxy.ask(key, "/v1/audio/speech") == 200
    until(lambda: proxy.listed("speaking").requests == 1)
    client = proxy.listed("speaking")
    assert (client.unreported, client.estimated, client.unpriced) == (1, 0, 0)


def test_refused_requests_are_recorded(proxy: Proxy) -> None:
    """For their model, its price, an unreadable model, a budget, and requests per minute."""
    limits = {"budget_per_day": 0.1, "models": ("image", "other")}
    key = add_client(proxy.settings, "refused", **limits)
    asked = [{"model": "forbidden"}, {"model": "other"}, {"model": 1}, {}, {}]
    assert [proxy.ask(key, **fields) for fields in asked] == [403, 403, 403, 200, 429]
    slow = add_client(proxy.settings, "slow", requests_per_minute=1)
    assert [proxy.ask(slow) for _ in range(2)] == [200, 429]
    until(lambda: (proxy.listed("refused").refused, proxy.listed("slow").refused) == (4, 1), 60)
    client = proxy.listed("refused")
    assert (client.requests, client.spent) == (5, pytest.approx(COST))
    records = sorted(proxy.reported("log", "--tenant", "refused", "--jsonl"), key=lambda record: record["number"])
    assert [(record["status"], record["model"], record["reached_limit"]) for record in records] == [
        (403, "forbidden", "models"),
        (403, "other", "prices"),
        (403, "", "models"),
        (200, "image", None),
        (429, "image", "budget_per_day"),
    ]
    rows = proxy.reported("savings", "--bill", "--csv", "--tenant", "refused")
    assert sum(int(row["refused"]) for row in rows) == 4


def test_a_failed_request_is_recorded_and_free(proxy: Proxy) -> None:
    key = add_client(proxy.settings, "failing")
    assert proxy.ask(key, prompt="fail") == 400
    until(lambda: proxy.listed("failing").requests == 1)
    client = proxy.listed("failing")
    assert (client.unreported, client.unpriced, client.estimated) == (0, 0, 0)


def test_counting_tokens_is_free(proxy: Proxy) -> None:
    key = add_client(proxy.settings, "counting")
    assert proxy.ask(key, "/v1/messages/count_tokens") == 200
    assert proxy.ask(key) == 200
    until(lambda: proxy.listed("counting").requests == 1)
    assert proxy.listed("counting").spent == pytest.approx(COST)
