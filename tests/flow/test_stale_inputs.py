"""Stale responses to the inputs of arrays: the same decisions as for single requests."""

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import httpx
import pytest
from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from kvproxy.http.services import Services
from kvproxy.settings import load_settings
from tests.polling import until
from tests.servers import run_proxy, run_upstream, until_stored

TTL, REVALIDATE, ERROR = 60, 30, 600


class Embedder:
    """An upstream whose vectors have the number of the request that computed them."""

    def __init__(self) -> None:
        self.asked: list[Any] = []
        self.status = 200

    async def answer(self, request: Request) -> Response:
        if request.method != "POST":
            return JSONResponse({"object": "list", "data": []})
        given = (await request.json())["input"]
        self.asked.append(given)
        inputs = given if isinstance(given, list) else [given]
        data = [{"object": "embedding", "index": place, "embedding": [len(self.asked)]} for place in range(len(inputs))]
        usage = {"prompt_tokens": len(inputs), "total_tokens": len(inputs)}
        return JSONResponse({"object": "list", "data": data, "model": "e", "usage": usage}, self.status)


@dataclass
class Proxy:
    """A proxy with a settable clock."""

    url: str
    services: Services
    embedder: Embedder
    clock: list[float]

    def wait(self, seconds: float) -> None:
        until_stored(self.services)
        self.clock[0] += seconds

    def ask(self, given: str | list[str], control: str = "", **headers: str) -> tuple[list[int], str]:
        """Return the number of the request that computed each embedding, and `Cache-Status`."""
        answer = httpx.post(
            f"{self.url}/v1/embeddings",
            json={"model": "e", "input": given},
            headers={"cache-control": control, **headers},
        )
        data = answer.json().get("data", []) if answer.status_code == 200 else []
        assert [item["index"] for item in data] == list(range(len(data)))
        return [item["embedding"][0] for item in data], answer.headers.get("cache-status", "")

    def explain(self, given: list[str]) -> Any:
        body = {"model": "e", "input": given}
        return httpx.post(f"{self.url}/admin/explain?api=embeddings", json=body).raise_for_status().json()

    def until_renewed(self) -> None:
        until(lambda: not self.services.path.renewals.in_flight)
        until_stored(self.services)


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Proxy]:
    embedder, clock = Embedder(), [1_000_000.0]
    cache = {"semantic": False, "ttl": TTL, "stale_while_revalidate": REVALIDATE, "stale_if_error": ERROR}
    with run_upstream(embedder.answer) as upstream:
        settings = load_settings(data=tmp_path_factory.mktemp("stale"), upstream=upstream, cache=cache)
        with run_proxy(settings, clock=lambda: clock[0]) as (url, services):
            yield Proxy(url, services, embedder, clock)


@pytest.fixture
def proxy(running: Proxy) -> Proxy:
    running.wait(10 * ERROR)
    running.embedder.status = 200
    running.embedder.asked.clear()
    return running


def test_stale_inputs_are_served_and_renewed_by_one_request(proxy: Proxy) -> None:
    proxy.ask(["a", "b"], **{"x-kvproxy-tags": "docs"})
    proxy.wait(TTL - 10)
    proxy.ask("c")
    proxy.wait(20)
    vectors, status = proxy.ask(["c", "b", "a", "b"])
    assert vectors == [2, 1, 1, 1]
    assert status == 'kvproxy; hit; ttl=-10; detail="exact inputs 4/4 stale-while-revalidate"'
    proxy.until_renewed()
    assert proxy.embedder.asked == [["a", "b"], "c", ["b", "a"]]
    vectors, status = proxy.ask(["a", "b", "c"])
    assert (vectors, "; ttl=40; " in status, "stale" in status) == ([3, 3, 2], True, False)
    entries = {json.loads(entry.request)["input"]: entry for entry in proxy.services.cache.store.list_entries(limit=3)}
    assert {name: entry.tags for name, entry in entries.items()} == {"a": ("docs",), "b": ("docs",), "c": ()}
    until(lambda: [record.reason for record in proxy.services.journal.latest(3)].count("revalidated") == 1)
    reasons = {record.reason: record for record in proxy.services.journal.latest(3)}
    assert set(reasons) == {"hit-exact", "revalidated", "stale-while-revalidate"}
    renewed, stale = reasons["revalidated"], reasons["stale-while-revalidate"]
    assert renewed.request_id == f"renewal-{stale.request_id}"
    assert (renewed.inputs, renewed.inputs_cached, renewed.prompt_tokens) == (2, 0, 2)
    assert (stale.layer, stale.inputs, stale.inputs_cached) == ("exact", 4, 4)


def test_stale_inputs_beside_missing_ones_are_renewed(proxy: Proxy) -> None:
    proxy.ask("d")
    proxy.wait(TTL + 10)
    vectors, status = proxy.ask(["d", "e", "f"])
    assert vectors == [1, 2, 2]
    assert status == 'kvproxy; fwd=partial; detail="inputs 1/3 stale-while-revalidate"'
    proxy.until_renewed()
    assert proxy.embedder.asked == ["d", ["e", "f"], "d"]
    assert proxy.ask(["f", "d"])[0] == [2, 3]


def test_stale_inputs_replace_an_error(proxy: Proxy) -> None:
    proxy.ask(["g", "h"])
    proxy.wait(TTL + REVALIDATE + 10)
    proxy.ask("i")
    proxy.embedder.status = 500
    vectors, status = proxy.ask(["h", "i", "g", "g"])
    assert vectors == [1, 2, 1, 1]
    assert status == 'kvproxy; hit; ttl=-40; detail="exact inputs 4/4 stale-if-error"'
    (record,) = proxy.services.journal.latest(1)
    assert (record.reason, record.inputs_cached, record.prompt_tokens) == ("stale-if-error", 4, 4)
    # One of two inputs has no stored response.
    vectors, status = proxy.ask(["h", "unknown"])
    assert (vectors, "fwd=stale; fwd-status=500" in status) == ([], True)
    proxy.embedder.status = 200
    assert proxy.ask(["h", "g"]) == ([5, 5], 'kvproxy; fwd=stale; detail="inputs 0/2"')


@pytest.mark.parametrize("age", [10, TTL + 10, TTL + REVALIDATE + 10, TTL + ERROR + 10])
@pytest.mark.parametrize("status", [200, 500])
@pytest.mark.parametrize(
    "control", ["", "no-cache", "max-age=5", "max-age=900", "only-if-cached", "max-age=5, stale-if-error=900"]
)
def test_an_array_has_the_decision_of_its_single_requests(proxy: Proxy, age: int, status: int, control: str) -> None:
    proxy.ask("single")
    proxy.ask(["first", "second"])
    proxy.wait(age)
    proxy.embedder.status = status
    decisions = []
    for given in ("single", ["first", "second"]):
        vectors, cache_status = proxy.ask(given, control)
        proxy.until_renewed()
        record = next(each for each in proxy.services.journal.latest(2) if each.layer != "revalidated")
        reason = "miss" if record.reason in ("miss-expired", "miss-inputs") else record.reason
        decisions.append((bool(vectors), re.findall("hit|fwd=[a-z-]+|stale-[a-z-]+", cache_status), reason))
    assert decisions[0] == decisions[1]


def test_explain_predicts_stale_inputs(proxy: Proxy) -> None:
    proxy.ask(["j", "k"])
    proxy.wait(TTL + 10)
    explained = proxy.explain(["k", "j"])
    assert explained["layer"] == "exact"
    assert explained["inputs"] == {"count": 2, "cached": 2, "stale": "stale-while-revalidate"}
    assert proxy.embedder.asked == [["j", "k"]]
    proxy.wait(REVALIDATE)
    assert proxy.explain(["k", "j"])["inputs"] == {"count": 2, "cached": 0, "stale": None}
