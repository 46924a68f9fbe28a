"""Hanging, refusing, and uninformative engines: requests succeed, and reports stay correct."""

import time
from pathlib import Path

import httpx
import pytest

from tests.polling import until
from tests.upstreams.fleets import chat, fleet

PROMPT = "You are a poet. " * 8


def test_a_hanging_tokenizer_delays_no_request_and_that_of_a_drained_engine_is_not_asked(tmp_path: Path) -> None:
    with fleet(tmp_path, 3, events=True) as running:
        drained, *others = running.engines
        running.engines[drained].mood = "hangs"
        running.post("/upstreams/drain", name=drained).raise_for_status()
        for question in "abcdef":
            assert running.ask(question).status_code == 200
        assert running.engines[drained].tokenized == 0
        assert sum(running.engines[url].tokenized for url in others) == 6
        for url in others:
            running.engines[url].mood = "hangs"
        began = time.monotonic()
        assert running.ask("hello").status_code == 200
        assert time.monotonic() - began < 30
        # Only the tokenizer of the preferred engine was called.
        assert sum(running.engines[url].tokenized for url in others) == 7


def test_only_predictable_requests_are_tokenized_with_their_template_fields(tmp_path: Path) -> None:
    template = {"chat_template_kwargs": {"enable_thinking": False}, "add_generation_prompt": False}
    with fleet(tmp_path, 1, events=True, prediction_sample_rate=1.0) as running:
        (engine,) = running.engines.values()
        for options in ({"n": 2}, {"prompt_logprobs": 0}):
            assert running.ask("hello", **options).status_code == 200
        assert engine.tokenized == 0
        assert running.ask("hello", n=1, temperature=0.5, **template).status_code == 200
        assert engine.tokenize_body == {"model": "m", "messages": [{"role": "user", "content": "hello"}]} | template


def test_explain_reports_missing_information(tmp_path: Path) -> None:
    with fleet(tmp_path, 1, events=True) as running:
        (engine,) = running.engines.values()
        (only,) = running.services.built.fleet.engines.values()  # type: ignore[union-attr]
        for base in (only.client._connections._base, "http://127.0.0.1:9"):
            engine.mood, only.client._connections._base = "old", base
            found = running.post("/explain", chat("x")).raise_for_status().json()
            assert (found["layer"], found["prefix"]["matched_tokens"], found["prefix"]["tiers"]) == ("none", None, {})
            assert "tokenize" in found["prefix"]["reason"]


def test_a_reset_rejected_with_status_200_is_a_failure(tmp_path: Path) -> None:
    with fleet(tmp_path, 1, events=True) as running:
        ((url, engine),) = running.engines.items()
        engine.store(PROMPT[:96])
        until(lambda: running.status(url)["cached_blocks"] == 6)
        engine.mood = "busy"
        found = running.post("/blocks/reset").json()
        assert (found["reset"], found["engines"][0]["engine"]) == (False, url)
        assert "in use" in found["engines"][0]["message"]
        assert running.status(url)["cached_blocks"] == 6
        # vLLM publishes the reset only with its next step; the mirror is emptied by the response.
        engine.mood = "well"
        assert running.post("/blocks/reset").json()["reset"] is True
        assert running.status(url)["cached_blocks"] == 0


def test_a_stream_that_fails_before_its_first_chunk_goes_to_another_engine(tmp_path: Path) -> None:
    with fleet(tmp_path, 2, health_interval=60.0) as running:
        own = running.engine_for("hello")
        (other,) = (url for url in running.engines if url != own)
        running.engines[own].mood = "dies"
        answer = running.ask("hello", stream=True)
        assert (answer.status_code, "[DONE]" in answer.text) == (200, True)
        assert running.engines[other].got[-1] == "hello"
        assert running.status(own)["failures"] == 1
        assert (running.status(own)["requests"], running.status(own)["load"]) == (0, 0)
        # Requests with side effects are not repeated.
        with pytest.raises(httpx.HTTPError):
            running.ask("hello", stream=True, store=True).raise_for_status()
