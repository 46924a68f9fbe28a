"""The budget of a request: what its caches cannot do in time goes on behind its answer, and is counted."""

import threading
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import httpx
import numpy as np
import pytest

from tests.flow.proxies import CLOSE, QUESTION, ask, checked, explain, proxy
from tests.flow.test_decisions import stats
from tests.index.doubles import HashEmbedder
from tests.polling import until


@pytest.fixture
def slow(monkeypatch: pytest.MonkeyPatch) -> threading.Event:
    """While it is clear, nothing is embedded."""
    go, embed = threading.Event(), HashEmbedder.embed

    def held(self: HashEmbedder, texts: Sequence[str]) -> np.ndarray:
        assert go.wait(30)
        return embed(self, texts)

    monkeypatch.setattr(HashEmbedder, "embed", held)
    go.set()
    return go


def until_searchable(url: str) -> None:
    """Wait until the vector of the question is stored, which may come after its response."""
    until(lambda: explain(url, f"{QUESTION} today")["semantic"]["neighbours"])


def test_a_lookup_that_takes_too_long_is_skipped_counted_and_embedded_later(
    tmp_path: Path, slow: threading.Event
) -> None:
    with proxy(tmp_path, checked(), lookup_timeout=0.2) as (url, services, model):
        model.answers = {QUESTION: "A list.", CLOSE: "A list."}
        ask(url, QUESTION, "confirm")
        until_searchable(url)
        # On a busy machine, the lookup of the first request may be skipped, too.
        skipped = stats(url)["lookups"].get("skipped", 0)
        until(lambda: services.answerer.semantic is not None and services.answerer.semantic._queue.is_idle)
        slow.clear()
        status = ask(url, CLOSE).headers["cache-status"]
        assert "fwd=uri-miss" in status
        assert 'detail="skipped"' in status
        assert stats(url)["lookups"]["skipped"] == skipped + 1
        assert (
            f'kvproxy_semantic_lookups_total{{outcome="skipped"}} {skipped + 1:.1f}' in httpx.get(f"{url}/metrics").text
        )
        # It is stored all the same, and answers equal requests before anything is embedded.
        until(lambda: services.answerer.store.count() == 2)
        assert 'detail="exact"' in ask(url, CLOSE).headers["cache-status"]
        slow.set()
        # And it is found for similar questions.
        until(lambda: "semantic" in ask(url, f"{CLOSE} then", "no-store").headers["cache-status"])


def test_a_lookup_alone_has_more_time_than_others(tmp_path: Path, slow: threading.Event) -> None:
    with proxy(tmp_path, checked(), lookup_timeout=1.0) as (url, services, _), ThreadPoolExecutor() as pool:
        ask(url, QUESTION, "confirm")
        until_searchable(url)
        slow.clear()
        first = pool.submit(ask, url, CLOSE, "no-store")
        assert services.answerer.semantic is not None
        until(lambda: not services.answerer.semantic._queue.is_idle)
        assert 'detail="skipped"' in ask(url, f"{CLOSE} then", "no-store").headers["cache-status"]
        slow.set()
        assert "semantic" in first.result().headers["cache-status"]


def test_who_takes_only_a_cached_answer_has_all_the_time(tmp_path: Path, slow: threading.Event) -> None:
    with proxy(tmp_path, checked(), lookup_timeout=0.05) as (url, _, _):
        ask(url, QUESTION, "confirm")
        until_searchable(url)
        slow.clear()
        threading.Timer(0.4, slow.set).start()
        assert "semantic" in ask(url, CLOSE, "only-if-cached").headers["cache-status"]
