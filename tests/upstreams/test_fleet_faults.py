"""Hanging, refusing, and uninformative engines: requests succeed, and reports stay correct."""

import time
from pathlib import Path
from typing import Any

import httpx
import pytest

from kvproxy.blocks.block_hash import BlockHasher, event_hash
from tests.mirror.publisher import Model, Sockets
from tests.polling import until
from tests.upstreams.fleets import fleet

BEGINNING = "You are a poet. " * 8


def test_a_hanging_tokenizer_delays_no_request(tmp_path: Path) -> None:
    sockets = Sockets(Model())
    try:
        with fleet(tmp_path, 2, lambda at: {"kv_events": sockets.events, "kv_replay": sockets.replay}) as running:
            for engine in running.engines.values():
                engine.mood = "hangs"
            began = time.monotonic()
            assert running.ask("hello").status_code == 200
            assert time.monotonic() - began < 30
            # Only the tokenizer of the preferred engine was called.
            assert sum(engine.tokenized for engine in running.engines.values()) == 1
    finally:
        sockets.close()


def test_a_drained_engine_is_not_asked_for_tokens(tmp_path: Path) -> None:
    sockets = [Sockets(Model()) for _ in range(3)]
    try:
        with fleet(tmp_path, 3, lambda at: {"kv_events": sockets[at].events}) as running:
            drained, *others = running.engines
            running.engines[drained].mood = "hangs"
            httpx.post(f"{running.url}/admin/upstreams/drain", params={"name": drained}).raise_for_status()
            for question in "abcdef":
                assert running.ask(question).status_code == 200
            assert running.engines[drained].tokenized == 0
            assert sum(running.engines[url].tokenized for url in others) == 6
    finally:
        for each in sockets:
            each.close()


def test_template_fields_are_sent_to_the_tokenizer(tmp_path: Path) -> None:
    sockets = Sockets(Model())
    shaping = {"chat_template_kwargs": {"enable_thinking": False}, "add_generation_prompt": False}
    try:
        with fleet(tmp_path, 1, lambda at: {"kv_events": sockets.events}, prediction_sample_rate=1.0) as running:
            (engine,) = running.engines.values()
            assert running.ask("hello", temperature=0.5, **shaping).status_code == 200
            assert engine.asked == {"model": "m", "messages": [{"role": "user", "content": "hello"}]} | shaping
    finally:
        sockets.close()


def test_unpredictable_requests_have_no_prediction(tmp_path: Path) -> None:
    sockets = Sockets(Model())
    try:
        with fleet(tmp_path, 1, lambda at: {"kv_events": sockets.events}, prediction_sample_rate=1.0) as running:
            (engine,) = running.engines.values()
            for options in ({"n": 2}, {"prompt_logprobs": 0}):
                assert running.ask("hello", **options).status_code == 200
            assert engine.tokenized == 0
            assert running.ask("hello", n=1).status_code == 200
            assert engine.tokenized == 1
    finally:
        sockets.close()


@pytest.mark.parametrize("mood", ["old", "gone"])
def test_explain_reports_missing_information(tmp_path: Path, mood: str) -> None:
    sockets = Sockets(Model())
    body = {"model": "m", "messages": [{"role": "user", "content": "x"}]}
    try:
        servers: dict[str, Any] = {"kv_events": sockets.events}
        with fleet(tmp_path, 1, lambda at: servers) as running:
            (engine,) = running.engines.values()
            engine.mood = mood
            if mood == "gone":
                fleet_of_one = running.services.built.fleet
                assert fleet_of_one is not None
                (only,) = fleet_of_one.engines.values()
                only.client._connections._base = "http://127.0.0.1:9"
            answer = httpx.post(f"{running.url}/admin/explain", json=body)
            assert answer.status_code == 200
            told = answer.json()
            assert (told["layer"], told["prefix"]["matched_tokens"], told["prefix"]["tiers"]) == ("none", None, {})
            assert "tokenize" in told["prefix"]["reason"]
    finally:
        sockets.close()


def test_a_reset_rejected_with_status_200_is_a_failure(tmp_path: Path) -> None:
    sockets = Sockets(Model())
    try:
        with fleet(tmp_path, 1, lambda at: {"kv_events": sockets.events, "kv_replay": sockets.replay}) as running:
            (url,) = running.engines
            tokens = list(BEGINNING.encode())[:96]
            names = [event_hash(digest) for digest in BlockHasher().chain(tokens, 16)]
            sockets.send(sockets.model.store(names, tokens=tokens))
            until(lambda: running.status(url)["cached_blocks"] == 6)
            running.engines[url].mood = "busy"
            told = httpx.post(f"{running.url}/admin/blocks/reset").json()
            assert (told["reset"], told["engines"][0]["engine"]) == (False, url)
            assert "in use" in told["engines"][0]["message"]
            assert running.status(url)["cached_blocks"] == 6
            # vLLM publishes the reset only with its next step; the mirror is emptied by the response.
            running.engines[url].mood = "well"
            assert httpx.post(f"{running.url}/admin/blocks/reset").json()["reset"] is True
            assert running.status(url)["cached_blocks"] == 0
    finally:
        sockets.close()


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
