"""Routing over several upstreams on sockets, with slow, full, broken and unreachable ones."""

import contextlib
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import httpx
import pytest

from kvproxy.errors import SettingsError
from kvproxy.settings import UpstreamServer, load_settings
from kvproxy.upstreams.fleet import with_rank
from kvproxy.upstreams.fleet_engine import EnginePrediction, FleetEngine
from kvproxy.upstreams.mirror.event_decoder import EventBatch, StoredEvent
from kvproxy.upstreams.mirror.prompt_hashes import HashedPrompt
from tests.polling import until
from tests.requests import api_request, chat
from tests.servers import run_proxy
from tests.upstreams.fleets import Engine, Fleet, fleet, run_engine


def test_without_events_prefixes_are_sticky_and_failing_engines_are_ejected(tmp_path: Path) -> None:
    with fleet(tmp_path, eject_after=2, health_timeout=1.5) as running:
        # With ports at random, 20 questions would leave an engine without one in 1 of 1,000 runs.
        engine_of = {question: running.engine_for(question) for question in map(str, range(40))}
        assert len(set(engine_of.values())) == 3
        assert {question: running.engine_for(question) for question in engine_of} == engine_of
        assert httpx.get(f"{running.url}/v1/models").json()["data"] == [{"id": "m"}]
        passed = httpx.post(f"{running.url}/tokenize", json={"messages": [{"content": "ab"}]})
        assert passed.json()["tokens"] == [97, 98]

        ill = engine_of["0"]
        running.engines[ill].mood = "sick"
        until(lambda: running.status(ill)["state"] == "ejected")
        assert running.engine_for("0") != ill
        unmoved = [question for question, url in engine_of.items() if url != ill]
        assert all(running.engine_for(question) == engine_of[question] for question in unmoved[:8])
        running.engines[ill].mood = "well"
        until(lambda: running.status(ill)["state"] == "up")
        assert running.engine_for("0") == ill
        assert running.status(ill)["ejections"] == 1
        running.engines[ill].mood = "stuck"
        until(lambda: running.status(ill)["state"] == "ejected")
        assert "did not respond within 1.5 s" in running.status(ill)["error"]
        assert {running.status(url)["state"] for url in running.engines if url != ill} == {"up"}
        assert (running.status(ill)["requests"], running.status(ill)["load"]) == (0, 0)


def test_another_engine_is_tried_only_before_the_first_chunk(tmp_path: Path) -> None:
    with fleet(tmp_path, 2, health_interval=60.0) as running:
        own = running.engine_for("hello")
        other = next(url for url in running.engines if url != own)

        running.engines[own].mood = "full"
        assert running.engine_for("hello") in running.engines
        assert running.engines[other].got[-1] == "hello"

        # An error response of all engines is forwarded, and ejects none of them.
        for url in running.engines:
            running.engines[url].mood = "broken"
        assert [running.ask("hello").status_code for _ in range(6)] == [500] * 6
        assert {running.status(url)["state"] for url in running.engines} == {"up"}
        running.engines[other].mood = "well"
        count = len(running.engines[other].got)

        running.engines[own].mood = "cut"
        received = b""
        body = {"model": "m", "messages": [{"role": "user", "content": "hello"}], "stream": True}
        with (
            contextlib.suppress(httpx.HTTPError),
            httpx.stream("POST", f"{running.url}/v1/chat/completions", json=body) as response,
        ):
            for chunk in response.iter_raw():
                received += chunk
        assert b'"ok"' in received
        assert b"[DONE]" not in received
        assert len(running.engines[other].got) == count
        until(lambda: running.status(own)["requests"] == 0)
        assert running.status(own)["load"] == 0


def test_an_unreachable_engine_fails_no_request(tmp_path: Path) -> None:
    engine, gone = Engine(), "http://127.0.0.1:9"
    with run_engine(engine) as (url, _):
        settings = load_settings(
            data=tmp_path,
            upstreams=[{"url": gone}, {"url": url}],
            cache={"enabled": False},
            routing={"health_interval": 60},
        )
        with run_proxy(settings) as (proxy, services):
            running = Fleet(proxy, services, {url: engine})
            answers = [running.ask(str(number)) for number in range(20)]
            assert [answer.status_code for answer in answers] == [200] * 20
            assert len(engine.got) == 20
            until(lambda: running.status(gone)["state"] == "ejected")
            assert "cannot reach" in running.status(gone)["error"]


def test_requests_follow_their_prefix(tmp_path: Path) -> None:
    with fleet(tmp_path, 3, events=True) as running:
        urls, engines = list(running.engines), list(running.engines.values())
        prompts = [f"You are a {role}. " * 8 for role in ("poet", "judge", "cook")]
        # Each engine caches one prefix. The first engine has other block hashes, the second one another encoding.
        tokens = list(prompts[0].encode())[:96]
        engines[0].sockets.send(engines[0].sockets.model.store(list(range(1000, 1006)), tokens=tokens))
        engines[1].sockets.model.positional = True
        for engine, prompt in list(zip(engines, prompts, strict=True))[1:]:
            engine.store(prompt[:96])
        until(lambda: all(running.status(url)["cached_blocks"] == 6 for url in urls))
        for url, prompt in zip(urls, prompts, strict=True):
            assert [running.engine_for(prompt + question) for question in "abc"] == [url] * 3

        message = {"model": "m", "max_tokens": 1, "messages": [{"role": "user", "content": prompts[2] + "x"}]}
        httpx.post(f"{running.url}/v1/messages", json=message).raise_for_status()
        assert engines[2].got[-1] == "messages"

        chat = {"model": "m", "messages": [{"role": "user", "content": prompts[1] + "x"}]}
        found = running.post("/explain", chat).json()["prefix"]
        assert (found["matched_tokens"], found["engine"], found["reason"]) == (96, urls[1], None)
        assert found["engines"] == {urls[0]: 0, urls[1]: 96, urls[2]: 0}

        # After an eviction, requests go to the engine with the prefix.
        engines[1].sockets.send(engines[1].sockets.model.clear())
        engines[2].store(prompts[1][:96])
        until(lambda: [running.status(url)["cached_blocks"] for url in urls] == [6, 0, 12])
        assert running.engine_for(prompts[1] + "d") == urls[2]

        assert running.post("/blocks/reset").json()["reset"] is True
        assert [engine.resets for engine in engines] == [1, 1, 1]


def test_invalid_settings_are_rejected(tmp_path: Path) -> None:
    twice = [{"url": "http://127.0.0.1:9"}, {"url": "http://127.0.0.1:9/v1"}]
    for upstreams, word in (
        (twice, "two upstreams have the same URL"),
        ([{"url": "http://127.0.0.1:9", "kv_events": "tcp://host"}], "not an endpoint"),
    ):
        with pytest.raises(SettingsError, match=word), run_proxy(load_settings(data=tmp_path, upstreams=upstreams)):
            pass


def test_a_prefix_outside_of_the_gpu_counts(tmp_path: Path) -> None:
    with fleet(tmp_path, 2, events=True) as running:
        (_, first), (url, second) = running.engines.items()
        prompt = "You are a poet. " * 20
        first.store(prompt[:32])
        second.store(prompt[:16])
        second.store(prompt[:320], medium="CPU")
        until(lambda: [each["cached_blocks"] for each in running.get("/upstreams")] == [2, 1])
        assert running.status(url)["offloaded"] == {"CPU": 20}
        assert [running.engine_for(prompt + letter) for letter in "ab"] == [url] * 2
        found = running.explain(prompt + "a")
        assert (found["engine"], found["matched_tokens"], found["tiers"]) == (url, 16, {"CPU": 304})
        second.sockets.send({"type": "TierBlocksCleared", "medium": "CPU"})
        until(lambda: running.status(url)["offloaded"] == {"CPU": 0})
        assert running.engine_for(prompt + "c") != url


def test_a_burst_of_one_prefix_goes_to_one_engine_up_to_its_load(tmp_path: Path) -> None:
    with fleet(tmp_path, 3, events=True) as running, ThreadPoolExecutor(8) as pool:
        engines = list(running.engines.values())
        for engine in engines:
            engine.store("another prompt, in two blocks...")
            engine.mood = "computes"
        until(lambda: all(each["cached_blocks"] == 2 for each in running.get("/upstreams")))
        prompt = "You are a judge. " * 20
        answers = [pool.submit(running.ask, prompt + "0")]
        until(lambda: sum(len(engine.got) for engine in engines) == 1)
        answers += [pool.submit(running.ask, f"{prompt}{number}") for number in range(1, 8)]
        until(lambda: sum(len(engine.got) for engine in engines) == 8)
        for engine in engines:
            engine.mood = "well"
        assert [answer.result().status_code for answer in answers] == [200] * 8
        # No event named the prefix.
        assert sorted(len(engine.got) for engine in engines) == [0, 0, 8]


def test_requests_name_the_data_parallel_rank_with_their_prefix(tmp_path: Path) -> None:
    server = UpstreamServer(url="http://127.0.0.1:1", kv_events="tcp://127.0.0.1:1-2")
    engine = FleetEngine(server, load_settings(data=tmp_path, upstreams=[server]))
    assert engine.mirror is not None
    prompts = [list(range(start, start + 64)) for start in (0, 100, 200)]
    # The last event is forged: there is no rank 7.
    for subscriber, rank, tokens in zip((0, 1, 1), (0, 1, 7), prompts, strict=True):
        event = StoredEvent([rank], None, tokens, 64)
        engine.mirror.subscribers[subscriber].state.apply(EventBatch(1.0, [event], rank))
    found = [engine.predict(HashedPrompt([*tokens, 1]), b"session") for tokens in prompts]
    assert [(each.rank, each.tokens) for each in found[:2]] == [(0, 64), (1, 64)]
    assert (found[2].rank in (0, 1), found[2].tokens) == (True, 0)
    # Equal prefixes: the load decides.
    for subscriber in engine.mirror.subscribers:
        subscriber.state.apply(EventBatch(1.0, [StoredEvent([9], None, prompts[0], 64)], None))
    engine.begin(EnginePrediction(64, rank=0), 100_000)
    assert engine.predict(HashedPrompt([*prompts[0], 1]), b"session").rank == 1


def test_a_rank_without_blocks_gets_requests_and_a_burst_stays_in_its_rank(tmp_path: Path) -> None:
    server = UpstreamServer(url="http://127.0.0.1:1", kv_events="tcp://127.0.0.1:1-4")
    engine = FleetEngine(server, load_settings(data=tmp_path, upstreams=[server]))
    assert engine.mirror is not None
    prompts = [HashedPrompt([number] * 3_000) for number in range(40)]
    assert engine.predict(prompts[0], b"").rank is None
    engine.mirror.subscribers[1].state.apply(EventBatch(1.0, [StoredEvent([9], None, [1] * 64, 64)], 1))
    chosen = {engine.predict(prompt, bytes([number])).rank for number, prompt in enumerate(prompts)}
    assert chosen == {0, 1, 2, 3}
    # Sessions of their own have other affinities, but the same prefix.
    first = engine.predict(prompts[7], b"first")
    engine.begin(first, 3_000)
    burst = [engine.predict(prompts[7], bytes([number])) for number in range(20)]
    assert {prediction.rank for prediction in burst} == {first.rank}
    # A rank that may have restarted.
    assert first.rank is not None
    engine.mirror.subscribers[first.rank]._is_disconnected = True
    assert engine.predict(prompts[7], b"first").rank != first.rank


def test_the_header_of_the_rank_does_not_replace_the_clients() -> None:
    def rank_of(headers: dict[str, str], rank: int | None) -> str | None:
        return with_rank(api_request(chat(), headers=headers), rank).headers.get("x-data-parallel-rank")

    assert [rank_of({}, 3), rank_of({}, None), rank_of({"x-data-parallel-rank": "1"}, 3)] == ["3", None, "1"]
