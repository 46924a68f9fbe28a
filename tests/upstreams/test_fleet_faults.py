"""Hanging, refusing, and uninformative engines: requests succeed, and reports stay correct."""

import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import httpx
import pytest

from kvproxy.errors import KvproxyError
from kvproxy.installation.checks.servers import check_proxy
from kvproxy.settings import load_settings
from kvproxy.upstreams import health
from tests.commands.run import kvproxy
from tests.polling import until
from tests.servers import run_proxy
from tests.upstreams.fleets import Engine, Fleet, chat, fleet, run_engine

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


def test_another_engine_tokenizes_prompts_for_one_that_fails_to(tmp_path: Path) -> None:
    with fleet(tmp_path, 2, events=True) as running:
        failing, other = running.engines
        running.engines[failing].mood = "old"
        for number in range(12):
            running.ask(f"{number}").raise_for_status()
        assert running.engines[failing].tokenized > 0
        assert running.engines[other].tokenized == 12
        assert "unless another upstream tokenizes them" in running.status(failing)["notes"][0]
        assert running.status(other)["notes"] == []
        # A server that does not respond has another problem already.
        running.engines[failing].mood = "sick"
        until(lambda: running.status(failing)["failures"])
        asked = running.engines[failing].tokenized
        assert running.status(failing)["notes"] == []
        for number in range(12):
            running.ask(f"again {number}").raise_for_status()
        assert running.engines[failing].tokenized == asked


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
            engine.mood = "old"
            only.client._connections._set_server(base)
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


def test_a_server_that_announces_its_end_leaves_rotation_although_it_answers(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level("INFO", "kvproxy"), fleet(tmp_path, 2, health_interval=0.1) as running:
        own = running.engine_for("hello")
        running.engines[own].mood = "leaving"

        def is_ejected() -> bool:
            assert running.ask("hello").status_code == 200
            return bool(running.status(own)["state"] == "ejected")

        until(is_ejected)
        count = len(running.engines[own].got)
        assert [running.ask("hello").status_code for _ in range(6)] == [200] * 6
        assert len(running.engines[own].got) == count
        running.engines[own].mood = "well"
        until(lambda: running.status(own)["state"] == "up")
    assert f"the upstream {own} is ejected: /health answered 500" in caplog.messages
    assert f"the upstream {own} is no longer ejected" in caplog.messages


def test_a_server_that_answers_500_is_left_once_per_request_and_then_ejected(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(health, "EJECTION_SECONDS", 300.0)
    with fleet(tmp_path, 4, eject_after=3) as running:
        own = running.engine_for("hello")
        running.engines[own].mood = "broken"
        assert [running.ask("hello").status_code for _ in range(3)] == [200] * 3
        status = running.status(own)
        assert (status["state"], status["ejections"], status["retried"]) == ("ejected", 1, 3)
        count = len(running.engines[own].got)
        assert running.ask("hello").status_code == 200
        assert len(running.engines[own].got) == count
        # A request that fails at two servers may fail at all.
        for engine in running.engines.values():
            engine.mood = "broken"
        before = sum(len(engine.got) for engine in running.engines.values())
        assert running.ask("hello").status_code == 500
        assert sum(len(engine.got) for engine in running.engines.values()) == before + 2
        # One that may have been stored is not repeated.
        assert running.ask("hello", store=True).status_code == 500
        assert sum(len(engine.got) for engine in running.engines.values()) == before + 3
        metrics = httpx.get(f"{running.url}/metrics").text
        assert f'kvproxy_upstream_up{{upstream="{own}"}} 0.0' in metrics


def test_a_server_gets_no_requests_for_the_time_of_its_retry_after(tmp_path: Path) -> None:
    with fleet(tmp_path, 2) as running:
        own = running.engine_for("hello")
        (other,) = (url for url in running.engines if url != own)
        running.engines[own].mood = "limited"
        assert running.ask("hello").status_code == 200
        assert running.status(own)["state"] == "cooldown"
        count = len(running.engines[own].got)
        assert running.ask("hello").status_code == 200
        assert len(running.engines[own].got) == count
        # Without another server, it is tried, and the client learns when to return.
        running.post("/upstreams/drain", name=other).raise_for_status()
        refused = running.ask("hello")
        assert (refused.status_code, refused.headers["retry-after"]) == (429, "30")
        metrics = httpx.get(f"{running.url}/metrics").text
        for url, draining in ((own, 0.0), (other, 1.0)):
            assert f'kvproxy_upstream_up{{upstream="{url}"}} 1.0' in metrics
            assert f'kvproxy_upstream_draining{{upstream="{url}"}} {draining}' in metrics


def test_requests_that_the_queue_refuses_are_not_sent(tmp_path: Path) -> None:
    engine = Engine()
    with run_engine(engine) as (url, _):
        limits, forward = {"queue_size": 0}, {"max_connections": 1}
        settings = load_settings(data=tmp_path, upstream=url, cache={"enabled": False}, limits=limits, forward=forward)
        with run_proxy(settings) as (proxy, services), ThreadPoolExecutor(1) as threads:
            running = Fleet(proxy, services, {url: engine})
            engine.mood = "computes"
            first = threads.submit(running.ask, "first")
            until(lambda: engine.got == ["first"])
            assert running.ask("second").status_code == 503
            engine.mood = "well"
            assert first.result().status_code == 200
            assert (engine.got, running.status(url)["sent"]) == (["first"], 1)


def test_an_engine_that_does_not_tokenize_has_a_problem(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level("WARNING", "kvproxy"), fleet(tmp_path, 1, events=True, prediction_sample_rate=1.0) as running:
        ((url, engine),) = running.engines.items()
        engine.mood = "old"
        for number in range(2):
            running.ask(f"Question {number}: " + "What is a block? " * 4).raise_for_status()
        (note,) = running.status(url)["notes"]
        assert "set forward.tokenizer" in note
        assert sum("set forward.tokenizer" in line for line in caplog.messages) == 1
        assert "set forward.tokenizer" in kvproxy("upstreams", url=running.url).stdout
        with pytest.raises(KvproxyError, match=r"set forward\.tokenizer"):
            check_proxy(running.url, None)
        # A server that is slow now and then has no problem.
        engine.mood = "well"
        running.ask("What is a pool? " * 4).raise_for_status()
        engine.mood = "old"
        running.ask("What is a chain? " * 4).raise_for_status()
        assert running.status(url)["notes"] == []
