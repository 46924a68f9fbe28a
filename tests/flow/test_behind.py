"""An answer goes out before it is stored, unless its client asks to know: nobody waits, nothing is missed, nothing is lost."""

import asyncio
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
from kvproxy.index.store import NewEntry, SqliteStore, WriteResult
from tests.flow.proxies import CLOSE, FAR, QUESTION, Model, ask, checked, proxy
from tests.servers import until_stored
from tests.statuses import makes_entry

PATIENT = 600.0


@pytest.fixture
def go(monkeypatch: pytest.MonkeyPatch) -> Iterator[threading.Event]:
    """While it is clear, nothing is written."""
    go, put_many = threading.Event(), SqliteStore.put_many

    def held(self: SqliteStore, puts: Sequence[NewEntry]) -> WriteResult:
        assert go.wait(60)
        return put_many(self, puts)

    monkeypatch.setattr(SqliteStore, "put_many", held)
    yield go
    go.set()


@contextlib.contextmanager
def held_proxy(path: Path, go: threading.Event, **cache: Any) -> Iterator[tuple[str, Services, Model]]:
    """A proxy whose store is let go at the end at the latest, so that it can stop."""
    with proxy(path, checked(), **cache) as running:
        try:
            yield running
        finally:
            go.set()


def status(url: str, question: str, control: str = "") -> str:
    return str(ask(url, question, control).headers["cache-status"])


def when(monkeypatch: pytest.MonkeyPatch, place: object, name: str, go: threading.Event) -> None:
    """Let the store go as soon as a function is called, which is the one that waits for it."""
    function: Callable[..., Any] = getattr(place, name)

    def called(*args: Any) -> Any:
        go.set()
        return function(*args)

    monkeypatch.setattr(place, name, called)


def test_an_answer_goes_out_while_its_store_hangs_and_answers_equal_requests(
    tmp_path: Path, go: threading.Event
) -> None:
    with held_proxy(tmp_path, go, lookup_timeout=PATIENT) as (url, services, _):
        first, again = status(url, QUESTION), status(url, QUESTION)
        assert makes_entry(first)
        assert "stored" not in first
        assert 'detail="exact"' in again
        assert again.split("key=")[1] == first.split("key=")[1]
        assert services.answerer.store.count() == 0
        go.set()
        until_stored(services)
        (entry,) = services.answerer.store.list_entries()
        assert f'key="{entry.id}"' in first


def test_a_similar_question_finds_the_answer_that_was_given_just_before_it(
    tmp_path: Path, go: threading.Event, monkeypatch: pytest.MonkeyPatch
) -> None:
    when(monkeypatch, semantic.SemanticCache, "_is_near", go)
    with held_proxy(tmp_path, go, lookup_timeout=PATIENT) as (url, _, _):
        assert makes_entry(status(url, QUESTION))
        assert "semantic" in status(url, CLOSE)


def test_a_similar_question_waits_for_no_store_that_hangs(tmp_path: Path, go: threading.Event) -> None:
    with held_proxy(tmp_path, go, lookup_timeout=0.05) as (url, _, _):
        status(url, QUESTION)
        assert "fwd=uri-miss" in status(url, CLOSE)
        assert not go.is_set()


def test_a_question_waits_for_no_answer_that_is_too_far_from_it_to_be_served(
    tmp_path: Path, go: threading.Event, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(semantic, "_MAX_WRITES_SECONDS", PATIENT)
    with held_proxy(tmp_path, go, lookup_timeout=PATIENT) as (url, services, _):
        assert makes_entry(status(url, QUESTION))
        assert makes_entry(status(url, "when does the next train to Oslo leave"))
        assert not go.is_set()
        assert services.answerer.store.count() == 0


def test_answers_on_their_way_are_bounded(tmp_path: Path, go: threading.Event, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(coming, "_MAX_BYTES", 1)
    with held_proxy(tmp_path, go, lookup_timeout=0.05) as (url, services, _):
        status(url, QUESTION)
        when(monkeypatch, PendingWrites, "wait_for_space", go)
        status(url, FAR)
        assert services.answerer.store.count() == 2


async def test_an_answer_is_held_back_for_the_first_to_arrive_only(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(coming, "_MAX_BYTES", 300)
    way, arrivals = PendingWrites(), [asyncio.get_running_loop().create_future() for _ in range(5)]

    async def arrive(arrival: "asyncio.Future[bool]") -> bool:
        return await arrival

    for number, arrival in enumerate(arrivals):
        entry = asyncio.get_running_loop().create_future()
        way.add(PendingWrite(f"key {number}", None, entry, asyncio.create_task(arrive(arrival)), 100))
    waiting = asyncio.create_task(way.wait_for_space())
    for arrival in arrivals[:2]:
        arrival.set_result(True)
        await asyncio.sleep(0.01)
        assert way.is_full
        assert not waiting.done()
    arrivals[2].set_result(True)
    await asyncio.wait_for(waiting, 5)
    assert len(way) == 2
    # Nobody is held back now.
    await asyncio.wait_for(way.wait_for_space(), 5)
    for arrival in arrivals[3:]:
        arrival.set_result(True)
    await way.wait()


@pytest.mark.parametrize("soft", ["false", "true"])
def test_a_purge_catches_what_is_on_its_way(
    tmp_path: Path, go: threading.Event, monkeypatch: pytest.MonkeyPatch, soft: str
) -> None:
    when(monkeypatch, PendingWrites, "wait", go)
    with held_proxy(tmp_path, go) as (url, services, _):
        status(url, QUESTION)
        done = httpx.delete(f"{url}/admin/cache", params={"all": "true", "soft": soft}, timeout=30)
        assert done.json() == {"removed": 1}
        assert services.answerer.store.count() == (soft == "true")
        assert "fwd=uri-miss" in status(url, QUESTION)


@pytest.mark.parametrize("path", ["/admin/cache", "/admin/cache/export", "/admin/cache/KEY", "/admin/cache/KEY/pin"])
def test_an_operator_finds_the_key_that_a_client_was_told(
    tmp_path: Path, go: threading.Event, monkeypatch: pytest.MonkeyPatch, path: str
) -> None:
    when(monkeypatch, PendingWrites, "wait", go)
    with held_proxy(tmp_path, go) as (url, _, _):
        key = status(url, QUESTION).split('key="')[1].removesuffix('"')
        method = "POST" if path.endswith("pin") else "GET"
        told = httpx.request(method, url + path.replace("KEY", key), timeout=30)
        assert told.status_code == 200
        assert key in told.text


def test_an_answer_or_stream_ends_before_it_is_stored_unless_its_client_asks_to_know(
    tmp_path: Path, go: threading.Event, monkeypatch: pytest.MonkeyPatch
) -> None:
    with proxy(tmp_path, checked()) as (url, services, _):
        assert ask(url, QUESTION, stream=True).text.endswith("data: [DONE]\n\n")
        assert services.answerer.store.count() == 0
        when(monkeypatch, PendingWrite, "wait_until_stored", go)
        assert ask(url, FAR, "confirm", stream=True).text.endswith("data: [DONE]\n\n")
        assert services.answerer.store.count() == 2
        go.clear()
        assert "fwd=uri-miss; stored" in status(url, "when does the next train to Oslo leave", "confirm")
        assert services.answerer.store.count() == 3


def test_a_store_that_fails_behind_the_answers_is_told_once_and_costs_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    with proxy(tmp_path, checked()) as (url, services, _):

        def failing(self: SqliteStore, puts: Sequence[NewEntry]) -> WriteResult:
            with self.database.health.watch("write"):
                raise CacheStoreError("no room")

        with monkeypatch.context() as patch:
            patch.setattr(SqliteStore, "put_many", failing)
            for question in (QUESTION, FAR):
                answer = ask(url, question)
                assert answer.status_code == 200
                assert "stored" not in answer.headers["cache-status"]
                until_stored(services)
            sure = status(url, QUESTION, "confirm")
            assert sure == "kvproxy; fwd=uri-miss"
            assert httpx.get(f"{url}/health").json()["status"] == "degraded"
        lines = [record for record in caplog.records if record.levelno >= logging.WARNING]
        assert [(each.levelname, "no room" in each.getMessage(), each.exc_info) for each in lines] == [
            ("ERROR", True, None)
        ]
        assert "; stored" in status(url, QUESTION, "confirm")


@pytest.mark.parametrize("refuses", [False, True])
def test_while_it_is_not_known_what_may_be_stored_an_equal_request_waits_for_that(
    tmp_path: Path, refuses: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    go = threading.Event()

    def redact(text: str) -> str:
        if text == "An answer.":
            assert go.wait(60)
            if refuses:
                raise RedactionFailed("it cannot be told")
        return text

    with proxy(tmp_path, checked(), lookup_timeout=0.05) as (url, services, _):
        services.answerer.cache._redact = redact
        # What may not be kept has no name.
        assert status(url, QUESTION) == "kvproxy; fwd=uri-miss"
        when(monkeypatch, PendingWrite, "wait_for_entry", go)
        assert ("exact" in status(url, QUESTION)) != refuses
        until_stored(services)
        assert services.answerer.store.count() == (not refuses)


def test_a_proxy_that_ends_stores_what_is_on_its_way_first(tmp_path: Path, go: threading.Event) -> None:
    with proxy(tmp_path, checked()) as (url, services, _):
        assert makes_entry(status(url, QUESTION))
        settled = services.answerer.cache.pending_writes.wait

        async def ending() -> None:
            go.set()
            await settled()

        services.answerer.cache.pending_writes.wait = ending  # type: ignore[method-assign]
    again = SqliteStore(tmp_path / "responses.db")
    assert again.count() == 1
    again.close()
