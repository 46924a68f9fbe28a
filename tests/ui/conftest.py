"""One browser and one proxy for all tests of the dashboard."""

import time
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from kvproxy.http.services import Services
from kvproxy.settings import load_settings
from tests.servers import run_proxy, until_stored
from tests.ui.page import Page, browse

HOSTILE = "<img src=x onerror=\"document.title='taken'\"><script>document.title='taken'</script> 'a' & \"b\" ${1+1}"
SYSTEM = "You answer questions about the pool of blocks, in short sentences and in plain English, and nothing else."
ASKED = [
    ("alice", "How do I reset my password?"),
    ("alice", "How do I reset my password?"),
    ("alice", "Is the pool full at 100 blocks?"),
    ("bob", "What is a block?"),
    ("bob", HOSTILE),
]
JUDGED = [("How can I reset my password?", "hit-semantic"), ("Is the pool full at 200 blocks?", "veto-numbers")]


def body_of(question: str) -> dict[str, object]:
    messages = [{"role": "system", "content": SYSTEM}, {"role": "user", "content": question}]
    return {"model": "demo", "temperature": 0, "max_tokens": 4, "messages": messages}


def ask(url: str, tenant: str, question: str, **headers: str) -> httpx.Response:
    given = {"authorization": f"Bearer {tenant}", **headers}
    return httpx.post(f"{url}/v1/chat/completions", json=body_of(question), headers=given, timeout=300)


def until_judged(url: str, services: Services, question: str, reason: str) -> None:
    """Ask until the similar question, which is stored already, can be found: its vector may come a little later."""
    for _ in range(200):
        ask(url, "alice", question, **{"cache-control": "no-store"})
        if services.journal.latest(1)[0].reason == reason:
            # The journal shows the question of a stored response.
            ask(url, "alice", question)
            return
        time.sleep(0.05)
    raise AssertionError(f"no request for {question!r} ended with {reason}")


@pytest.fixture(scope="session")
def page() -> Iterator[Page]:
    with browse() as found:
        yield found


@pytest.fixture
def calm(page: Page) -> Iterator[None]:
    """Whatever a test does, the browser finds nothing wrong with the page."""
    page.errors()
    yield
    assert page.errors() == []


@pytest.fixture(scope="session")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[str, Services]]:
    """A proxy with the demonstration model that has answered some requests: its URL and its parts."""
    data: Path = tmp_path_factory.mktemp("dashboard")
    settings = load_settings(
        data=data,
        engine={"num_blocks": 768},
        cache={"policy": "threshold", "min_similarity": 0.85},
        journal={"prices": {"demo": {"input": 2.5, "output": 10.0}}},
    )
    with run_proxy(settings) as (url, services):
        for tenant, question in ASKED:
            ask(url, tenant, question)
        for question, reason in JUDGED:
            until_judged(url, services, question, reason)
        httpx.post(f"{url}/v1/chat/completions", json={"model": "demo", "messages": "none"})
        services.journal.latest(1)
        yield url, services


@pytest.fixture
def url(running: tuple[str, Services]) -> str:
    """URL of a proxy that has stored all responses and written all records."""
    url, services = running
    until_stored(services)
    services.journal.latest(1)
    return url


@pytest.fixture
def store(running: tuple[str, Services]):  # type: ignore[no-untyped-def]
    return running[1].cache.store
