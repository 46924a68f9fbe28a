"""Entries, texts and models that are broken cost the cache, never the request."""

import contextlib
import sqlite3
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest

from kvproxy.http.services import Services
from kvproxy.index.policies.policy import Decision, Limits, Neighbour
from tests.flow.proxies import CLOSE, QUESTION, ask, checked, proxy
from tests.index.doubles import HashEmbedder
from tests.servers import until_stored
from tests.statuses import makes_entry


def poison(services: Services, **fields: Any) -> None:
    """Change every stored entry behind the proxy's back."""
    until_stored(services)
    # A connection of its own: what the proxy learns in the background is written through the proxy's.
    with contextlib.closing(sqlite3.connect(services.settings.store_path, timeout=10.0)) as writer, writer:
        for name, value in fields.items():
            writer.execute(f"update responses set {name} = ?", [value])


@pytest.mark.parametrize("response", [b"", b"not JSON", b"[]", b'{"choices": 3}'])
def test_a_stored_answer_that_is_none_is_computed_again(tmp_path: Path, response: bytes) -> None:
    with proxy(tmp_path, checked()) as (url, services, _):
        ask(url, QUESTION)
        for question in (QUESTION, CLOSE):
            poison(services, response=response)
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
        assert services.answerer.store.count() == 2
        assert "semantic" in ask(url, "do please tell me what the free queue of blocks is").headers["cache-status"]


def test_a_policy_that_fails_costs_similar_questions_only(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    policy = checked()

    def decide(question: str, neighbours: Sequence[Neighbour], limits: Limits = Limits()) -> list[Decision]:
        raise ValueError("a user's verifier")

    with proxy(tmp_path, policy) as (url, _, _):
        ask(url, QUESTION)
        monkeypatch.setattr(policy, "decide", decide)
        answer = ask(url, CLOSE)
        assert (answer.status_code, "fwd=uri-miss" in answer.headers["cache-status"]) == (200, True)
