"""A response whose computation began before an invalidation reaches its clients, but is neither shared nor stored."""

from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path

import httpx
import pytest

from kvproxy.apis.request_directives import TAGS_HEADER
from kvproxy.http.services import Services
from tests.flow.proxies import Model, checked, explain, proxy
from tests.polling import until
from tests.servers import until_stored


class Proxy:
    """A proxy whose model answers with the number of the request."""

    def __init__(self, url: str, services: Services, model: Model, threads: ThreadPoolExecutor) -> None:
        self.url = url
        self._services = services
        self.store = services.cache.store
        self.model = model
        self._threads = threads

    def ask(self, control: str = "") -> httpx.Response:
        body = {"model": "m", "messages": [{"role": "user", "content": "q"}]}
        headers = {"cache-control": control, TAGS_HEADER: "t"}
        return httpx.post(f"{self.url}/v1/chat/completions", json=body, headers=headers, timeout=300)

    def start(self, control: str = "") -> "Future[httpx.Response]":
        """Send a request whose response waits until `model.go` is set."""
        self.model.go.clear()
        return self._threads.submit(self.ask, control)

    def start_computing(self, control: str = "") -> "Future[httpx.Response]":
        number = len(self.model.asked) + 1
        started = self.start(control)
        until(lambda: len(self.model.asked) == number)
        return started

    def wait_until_stored(self) -> None:
        until_stored(self._services)

    def invalidate(self, where: dict[str, str]) -> None:
        assert httpx.delete(f"{self.url}/admin/cache", params=where).status_code == 200


@pytest.fixture
def running(tmp_path: Path) -> Iterator[Proxy]:
    with (
        ThreadPoolExecutor(3) as threads,
        proxy(tmp_path, checked(), text="{}", stale_while_revalidate=600) as (url, services, model),
    ):
        try:
            yield Proxy(url, services, model, threads)
        finally:
            model.go.set()


def text(response: httpx.Response) -> str:
    return str(response.json()["choices"][0]["message"]["content"])


@pytest.mark.parametrize(
    "where", [{"all": "true"}, {"all": "true", "soft": "true"}, {"tag": "t"}, {"model": "m"}, {"search": "q"}], ids=str
)
def test_later_requests_are_computed_again(running: Proxy, where: dict[str, str]) -> None:
    early = running.start_computing()
    assert explain(running.url, "q")["layer"] == "shared"
    running.invalidate(where)
    assert explain(running.url, "q")["layer"] != "shared"
    late = running.start_computing()
    running.model.go.set()
    assert (text(early.result()), text(late.result())) == ("1", "2")
    assert "not stored: invalidated" in early.result().headers["cache-status"]
    running.wait_until_stored()
    assert text(running.ask()) == "2"
    assert running.store.count() == 1


def test_an_earlier_response_is_not_stored(running: Proxy) -> None:
    early = running.start_computing()
    running.invalidate({"all": "true"})
    running.model.go.set()
    assert text(early.result()) == "1"
    assert text(running.ask()) == "2"


def test_the_removal_of_a_response_covers_its_replacement(running: Proxy) -> None:
    running.ask()
    running.wait_until_stored()
    (id,) = running.store.ids()
    early = running.start_computing("no-cache")
    assert httpx.delete(f"{running.url}/admin/cache/{id}").json() == {"removed": 1}
    running.model.go.set()
    assert text(early.result()) == "2"
    assert text(running.ask()) == "3"


@pytest.mark.parametrize("where", [{"tag": "other"}, {"older_than": "1h"}, {"key": "0" * 64}], ids=str)
def test_other_invalidations_have_no_effect(running: Proxy, where: dict[str, str]) -> None:
    early = running.start_computing()
    running.invalidate(where)
    # The upstream may have sent any tag.
    is_shared = "tag" not in where
    late = running.start() if is_shared else running.start_computing()
    running.model.go.set()
    assert {text(early.result()), text(late.result())} == ({"1"} if is_shared else {"1", "2"})
    running.wait_until_stored()
    assert running.store.count() == 1
