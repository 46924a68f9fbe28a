"""Responses are sent before they are stored, unless the request has `confirm`."""

import contextlib
import logging
import threading
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import httpx
import pytest

from kvproxy.http.services import Services
from kvproxy.index import pending_writes as coming
from kvproxy.index.entry_redaction import RedactionFailed
from kvproxy.index.errors import CacheStoreError
from kvproxy.index.pending_writes import PendingWrite, PendingWrites
from kvproxy.index.search import semantic_cache as semantic
from kvproxy.index.store import NewEntry, Store, WriteResult, open_store
from tests.flow.proxies import CLOSE, FAR, QUESTION, Model, ask, checked, proxy
from tests.servers import until_stored
from tests.statuses import makes_entry

PATIENT = 600.0


@pytest.fixture
def go(monkeypatch: pytest.MonkeyPatch) -> Iterator[threading.Event]:
    """Return an event that blocks all writes while it is clear."""
    go, put_many = threading.Event(), Store.put_many

    def held(self: Store, puts: Sequence[NewEntry]) -> WriteResult:
        assert go.wait(300)
        return put_many(self, puts)

    monkeypatch.setattr(Store, "put_many", held)
    yield go
    go.set()


@contextlib.contextmanager
def held_proxy(path: Path, go: threading.Event, **cache: Any) -> Iterator[tuple[str, Services, Model]]:
    """Run a proxy, and set `go` at the end, so that the proxy can stop."""
    with proxy(path, checked(), **cache) as running:
        try:
            yield running
        finally:
            go.set()


def status(url: str, question: str, control: str = "") -> str:
    return str(ask(url, question, control).headers["cache-status"])


def when(monkeypatch: pytest.MonkeyPatch, place: object, name: str, go: threading.Event) -> None:
    """Set `go` when a function of `place` is called."""
    function: Callable[..., Any] = getattr(place, name)

    def called(*args: Any) -> Any:
        go.set()
        return function(*args)

    monkeypatch.setattr(place, name, called)


def test_a_pending_write_delays_no_response_and_has_exact_hits(tmp_path: Path, go: threading.Event) -> None:
    with held_proxy(tmp_path, go, lookup_timeout=PATIENT) as (url, services, _):
        first, again = status(url, QUESTION), status(url, QUESTION)
        assert makes_entry(first)
        assert "stored" not in first
        assert 'detail="exact"' in again
        assert again.split("key=")[1] == first.split("key=")[1]
        assert services.cache.store.count() == 0
        go.set()
        until_stored(services)
        (entry,) = services.cache.store.list_entries()
        assert f'key="{entry.id}"' in first


def test_a_similar_question_finds_a_pending_write(
    tmp_path: Path, go: threading.Event, monkeypatch: pytest.MonkeyPatch
) -> None:
    when(monkeypatch, semantic.SemanticCache, "_is_near", go)
    with held_proxy(tmp_path, go, lookup_timeout=PATIENT) as (url, _, _):
        assert makes_entry(status(url, QUESTION))
        assert "semantic" in status(url, CLOSE)


def test_a_lookup_waits_for_a_pending_write_until_its_timeout(tmp_path: Path, go: threading.Event) -> None:
    with held_proxy(tmp_path, go, lookup_timeout=0.05) as (url, _, _):
        status(url, QUESTION)
        assert "fwd=uri-miss" in status(url, CLOSE)
        assert not go.is_set()


def test_a_lookup_waits_for_no_write_of_a_different_question(
    tmp_path: Path, go: threading.Event, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(semantic, "_MAX_WRITES_SECONDS", PATIENT)
    is_embedded = threading.Event()
    when(monkeypatch, Store, "put_many", is_embedded)
    with held_proxy(tmp_path, go, lookup_timeout=PATIENT) as (url, services, _):
        assert makes_entry(status(url, QUESTION))
        # A lookup waits for a question without a vector.
        assert is_embedded.wait(60)
        assert makes_entry(status(url, "when does the next train to Oslo leave"))
        assert not go.is_set()
        assert services.cache.store.count() == 0


def test_pending_writes_are_bounded(tmp_path: Path, go: threading.Event, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(coming, "_MAX_BYTES", 1)
    with held_proxy(tmp_path, go, lookup_timeout=0.05) as (url, services, _):
        status(url, QUESTION)
        when(monkeypatch, PendingWrites, "wait_for_space", go)
        status(url, FAR)
        assert services.cache.store.count() == 2


@pytest.mark.parametrize("soft", ["false", "true"])
def test_a_purge_removes_pending_writes(
    tmp_path: Path, go: threading.Event, monkeypatch: pytest.MonkeyPatch, soft: str
) -> None:
    when(monkeypatch, PendingWrites, "wait_for_all", go)
    with held_proxy(tmp_path, go) as (url, services, _):
        status(url, QUESTION)
        done = httpx.delete(f"{url}/admin/cache", params={"all": "true", "soft": soft}, timeout=300)
        assert done.json() == {"expired" if soft == "true" else "removed": 1}
        assert services.cache.store.count() == (soft == "true")
        assert "fwd=uri-miss" in status(url, QUESTION)


def test_admin_routes_wait_for_pending_writes(
    tmp_path: Path, go: threading.Event, monkeypatch: pytest.MonkeyPatch
) -> None:
    when(monkeypatch, PendingWrites, "wait_for_all", go)
    with held_proxy(tmp_path, go) as (url, _, _):
        for path in ("/admin/cache", "/admin/cache/export", "/admin/cache/KEY", "/admin/cache/KEY/pin"):
            go.clear()
            key = status(url, f"Which is the key for {path}?").split('key="')[1].removesuffix('"')
            method = "POST" if path.endswith("pin") else "GET"
            response = httpx.request(method, url + path.replace("KEY", key), timeout=300)
            assert response.status_code == 200
            assert key in response.text


def test_only_confirm_delays_a_response_until_it_is_stored(
    tmp_path: Path, go: threading.Event, monkeypatch: pytest.MonkeyPatch
) -> None:
    with proxy(tmp_path, checked()) as (url, services, _):
        assert ask(url, QUESTION, stream=True).text.endswith("data: [DONE]\n\n")
        assert services.cache.store.count() == 0
        when(monkeypatch, PendingWrite, "wait_until_stored", go)
        assert ask(url, FAR, "confirm", stream=True).text.endswith("data: [DONE]\n\n")
        assert services.cache.store.count() == 2
        go.clear()
        assert "fwd=uri-miss; stored" in status(url, "when does the next train to Oslo leave", "confirm")
        assert services.cache.store.count() == 3


def test_a_failed_write_is_logged_once_and_fails_no_request(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    with proxy(tmp_path, checked()) as (url, services, _):

        def failing(self: Store, puts: Sequence[NewEntry]) -> WriteResult:
            with self.database.health.watch("write"):
                raise CacheStoreError("no room")

        with monkeypatch.context() as patch:
            patch.setattr(Store, "put_many", failing)
            for question in (QUESTION, FAR):
                answer = ask(url, question)
                assert answer.status_code == 200
                assert "; stored" not in answer.headers["cache-status"]
                until_stored(services)
            sure = status(url, QUESTION, "confirm")
            assert sure == 'kvproxy; fwd=uri-miss; detail="not stored: store"'
            assert httpx.get(f"{url}/health").json()["status"] == "degraded"
        lines = [record for record in caplog.records if record.levelno >= logging.WARNING]
        assert [(each.levelname, "no room" in each.getMessage(), each.exc_info) for each in lines] == [
            ("ERROR", True, None)
        ]
        assert "; stored" in status(url, QUESTION, "confirm")


@pytest.mark.parametrize("refuses", [False, True])
def test_an_equal_request_waits_for_redaction(tmp_path: Path, refuses: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    go = threading.Event()

    def redact(text: str) -> str:
        if text == "An answer.":
            assert go.wait(300)
            if refuses:
                raise RedactionFailed("it cannot be told")
        return text

    with proxy(tmp_path, checked(), lookup_timeout=0.05) as (url, services, _):
        services.cache._redact = redact
        # Before redaction, the response has the key that it will be stored under.
        assert makes_entry(status(url, QUESTION))
        when(monkeypatch, PendingWrite, "wait_for_entry", go)
        assert ("exact" in status(url, QUESTION)) != refuses
        until_stored(services)
        assert services.cache.store.count() == (not refuses)


def test_a_proxy_stores_pending_writes_before_it_exits(tmp_path: Path, go: threading.Event) -> None:
    with proxy(tmp_path, checked()) as (url, services, _):
        assert makes_entry(status(url, QUESTION))
        settled = services.cache.pending_writes.wait_for_all

        async def ending() -> None:
            go.set()
            await settled()

        services.cache.pending_writes.wait_for_all = ending  # type: ignore[method-assign]
    again = open_store(tmp_path / "responses.db")
    assert again.count() == 1
    again.close()
