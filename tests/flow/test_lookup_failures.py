"""Slow lookups, invalid entries, and failing models cost a hit, never the request."""

import contextlib
import sqlite3
import threading
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest

from kvproxy.http.services import Services
from kvproxy.index.policies.policy import Decision, Limits, Neighbour
from tests.flow.proxies import CLOSE, QUESTION, ask, checked, explain, proxy
from tests.flow.test_decisions import stats
from tests.index.doubles import HashEmbedder
from tests.polling import until
from tests.servers import until_stored
from tests.statuses import makes_entry


@pytest.fixture
def slow(monkeypatch: pytest.MonkeyPatch) -> threading.Event:
    """Return an event that blocks the embedder while it is clear."""
    go, embed = threading.Event(), HashEmbedder.embed

    def held(self: HashEmbedder, texts: Sequence[str]) -> np.ndarray:
        assert go.wait(300)
        return embed(self, texts)

    monkeypatch.setattr(HashEmbedder, "embed", held)
    go.set()
    return go


def until_searchable(url: str) -> None:
    """Wait until the vector of the question is stored, which may come after its response."""
    until(lambda: explain(url, f"{QUESTION} today")["semantic"]["neighbours"])


def test_a_slow_lookup_is_skipped_and_embedded_later(tmp_path: Path, slow: threading.Event) -> None:
    with proxy(tmp_path, checked(), lookup_timeout=0.2) as (url, services, model):
        model.answers = {QUESTION: "A list.", CLOSE: "A list."}
        ask(url, QUESTION, "confirm")
        until_searchable(url)
        # On a busy machine, the lookup of the first request may be skipped, too.
        skipped = stats(url)["lookups"].get("skipped", 0)
        until(lambda: services.cache.semantic is not None and services.cache.semantic._queue.is_idle)
        slow.clear()
        status = ask(url, CLOSE).headers["cache-status"]
        assert "fwd=uri-miss" in status
        assert 'detail="skipped"' in status
        assert stats(url)["lookups"]["skipped"] == skipped + 1
        assert (
            f'kvproxy_semantic_lookups_total{{outcome="skipped"}} {skipped + 1:.1f}' in httpx.get(f"{url}/metrics").text
        )
        # It is stored all the same, and answers equal requests before anything is embedded.
        until(lambda: services.cache.store.count() == 2)
        assert 'detail="exact"' in ask(url, CLOSE).headers["cache-status"]
        slow.set()
        # And it is found for similar questions.
        until(lambda: "semantic" in ask(url, f"{CLOSE} then", "no-store").headers["cache-status"])


def test_a_single_lookup_has_a_longer_timeout(tmp_path: Path, slow: threading.Event) -> None:
    with proxy(tmp_path, checked(), lookup_timeout=0.4) as (url, services, _), ThreadPoolExecutor() as pool:
        ask(url, QUESTION, "confirm")
        until_searchable(url)
        slow.clear()
        first = pool.submit(ask, url, CLOSE, "no-store")
        assert services.cache.semantic is not None
        until(lambda: not services.cache.semantic._queue.is_idle)
        assert 'detail="skipped ' in ask(url, f"{CLOSE} then", "no-store").headers["cache-status"]
        slow.set()
        assert "semantic" in first.result().headers["cache-status"]


def test_only_if_cached_has_no_lookup_timeout(tmp_path: Path, slow: threading.Event) -> None:
    with proxy(tmp_path, checked(), lookup_timeout=0.05) as (url, _, _):
        ask(url, QUESTION, "confirm")
        until_searchable(url)
        slow.clear()
        threading.Timer(0.4, slow.set).start()
        assert "semantic" in ask(url, CLOSE, "only-if-cached").headers["cache-status"]


def poison(services: Services, **fields: Any) -> None:
    """Change all rows in the database."""
    until_stored(services)
    with contextlib.closing(sqlite3.connect(services.settings.store_path, timeout=10.0)) as writer, writer:
        for name, value in fields.items():
            writer.execute(f"update responses set {name} = ?", [value])


def test_an_invalid_stored_response_is_computed_again(tmp_path: Path) -> None:
    with proxy(tmp_path, checked()) as (url, services, _):
        ask(url, QUESTION)
        for response in (b"", b"not JSON", b"[]", b'{"choices": 3}'):
            for question in (QUESTION, CLOSE):
                poison(services, response=response)
                services.cache._recent.clear()
                answer = ask(url, question, stream=True)
                assert answer.status_code == 200
                assert "fwd=uri-miss" in answer.headers["cache-status"]


@pytest.mark.parametrize("model", ["raises", "nan", "shape"])
def test_exact_hits_work_without_the_embedder(tmp_path: Path, model: str, monkeypatch: pytest.MonkeyPatch) -> None:
    with proxy(tmp_path, checked()) as (url, services, _):
        ask(url, QUESTION, "confirm")

        def embed(self: HashEmbedder, texts: Sequence[str]) -> np.ndarray:
            if model == "raises":
                raise RuntimeError("CUDA out of memory")
            return np.full((len(texts), 64 if model == "nan" else 3), np.nan, np.float32)

        monkeypatch.setattr(HashEmbedder, "embed", embed)
        assert "hit" in ask(url, QUESTION).headers["cache-status"]
        assert makes_entry(ask(url, CLOSE).headers["cache-status"])
        assert "exact" in ask(url, CLOSE).headers["cache-status"]
        body = {"model": "m", "messages": [{"role": "user", "content": "another question"}]}
        told = httpx.post(f"{url}/admin/explain", json=body)
        assert (told.status_code, "embedder" in told.json()["error"]["message"]) == (500, True)
        monkeypatch.undo()
        assert services.cache.store.count() == 2
        assert "semantic" in ask(url, "do please tell me what the free queue of blocks is").headers["cache-status"]


def test_a_failing_policy_costs_semantic_hits_only(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    policy = checked()

    def decide(question: str, neighbours: Sequence[Neighbour], limits: Limits = Limits()) -> list[Decision]:
        raise ValueError("a user's verifier")

    with proxy(tmp_path, policy) as (url, _, _):
        ask(url, QUESTION)
        monkeypatch.setattr(policy, "decide", decide)
        answer = ask(url, CLOSE)
        assert (answer.status_code, "fwd=uri-miss" in answer.headers["cache-status"]) == (200, True)
