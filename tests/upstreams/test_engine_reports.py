"""Metrics of engines, and problems of their mirrors."""

import asyncio
import logging
import math
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import httpx
import msgpack
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from starlette.requests import Request
from starlette.responses import JSONResponse, PlainTextResponse, Response, StreamingResponse

from kvproxy.apis.sse import encode_event
from kvproxy.backends.reports import EngineMetrics
from kvproxy.blocks.block_hash import BlockHasher, event_hash
from kvproxy.commands.blocks.picture import print_mirrors
from kvproxy.errors import KvproxyError
from kvproxy.http.metrics import Metrics
from kvproxy.installation.checks.servers import CheckWarning, check_proxy, check_upstream
from kvproxy.settings import UpstreamServer, load_settings
from kvproxy.upstreams.engine_metrics import read_metrics
from kvproxy.upstreams.fleet import Fleet
from kvproxy.upstreams.fleet_engine import FleetEngine
from kvproxy.upstreams.fleet_prefix_cache import FleetPrefixCache
from kvproxy.upstreams.mirror.event_decoder import decode_batch
from kvproxy.upstreams.mirror.mirror import Mirror
from kvproxy.upstreams.mirror.prompt_hashes import HashedPrompt
from kvproxy.upstreams.mirror_monitor import GRACE_SECONDS, RESTART_REPORT_SECONDS, MirrorMonitor
from kvproxy.upstreams.prompt_tokenizer import UpstreamTokenizer
from kvproxy.upstreams.status import ReuseStats
from tests.commands.run import kvproxy
from tests.plain_upstream import run_plain_upstream
from tests.polling import until
from tests.requests import post
from tests.servers import run_proxy, run_upstream
from tests.upstreams.mirror.publisher import Model

VLLM = """# TYPE vllm:num_requests_running gauge
vllm:num_requests_running{engine="0",model_name="demo"} 2.0
vllm:num_requests_waiting{engine="0",model_name="demo"} 1.0
vllm:num_requests_waiting_by_reason{engine="0",model_name="demo",reason="capacity"} 1.0
vllm:kv_cache_usage_perc{engine="0",model_name="demo"} 0.25
vllm:prefix_cache_queries_total{engine="0",model_name="demo"} 25501.0
vllm:prefix_cache_queries_created{engine="0",model_name="demo"} 1.7953062505590749e+09
vllm:prefix_cache_hits_total{engine="0",model_name="demo"} 17344.0
vllm:cache_config_info{block_size="32",enable_prefix_caching="True",engine="0",num_gpu_blocks="200",\
prefix_caching_hash_algo="sha256_cbor"} 1.0
"""
TWO_RANKS = VLLM + VLLM.replace('engine="0"', 'engine="1"').replace("0.25", "0.75").replace("# TYPE", "# X")
SGLANG = """sglang:num_running_reqs{model_name="m"} 3.0
sglang:num_queue_reqs{model_name="m"} 0.0
sglang:token_usage{model_name="m"} 0.28
sglang:max_total_num_tokens{model_name="m"} 6400.0
sglang:page_size{model_name="m"} 64.0
sglang:prompt_tokens_total{model_name="m"} 4096.0
sglang:cached_tokens_total{cache_source="device",model_name="m"} 3000.0
sglang:cached_tokens_total{cache_source="host",model_name="m"} 168.0
"""
LLAMA = """# HELP llamacpp:prompt_tokens_total Number of prompt tokens processed, excluding cached tokens
# TYPE llamacpp:prompt_tokens_total counter
llamacpp:prompt_tokens_total 100
llamacpp:prompt_tokens_cached_total 300
llamacpp:requests_processing 1
llamacpp:requests_deferred 4
"""
READ = EngineMetrics("vllm", 200, 32, 0.25, 2, 1, 25501, 17344, "sha256_cbor", True)


@pytest.mark.parametrize(
    ("page", "metrics"),
    [
        (VLLM, READ),
        (TWO_RANKS, EngineMetrics("vllm", 400, 32, 0.5, 4, 2, 51002, 34688, "sha256_cbor", True)),
        (
            TWO_RANKS.replace('engine="1",num_gpu_blocks="200"', 'engine="1",num_gpu_blocks="150"'),
            EngineMetrics("vllm", 350, 32, 0.5, 4, 2, 51002, 34688, "sha256_cbor", True),
        ),
        (
            VLLM.replace(
                "prefix_caching_hash_algo",
                'hash_block_size="8",cache_hit_alignment_tokens="528",prefix_caching_hash_algo',
            ),
            replace(READ, match_unit=8, hit_unit=528),
        ),
        (SGLANG, EngineMetrics("sglang", 100, 64, 0.28, 3, 0, 4096, 3168)),
        (LLAMA, EngineMetrics("llama.cpp", running=1, waiting=4, queries=400, hits=300)),
        ("llamacpp:requests_processing 1\n", EngineMetrics("llama.cpp", running=1)),
        ("python_info 1\n", None),
        ("<html>\n<p>vllm:</p>", None),
        ("", None),
    ],
)
def test_metrics_of_each_engine(page: str, metrics: EngineMetrics | None) -> None:
    assert read_metrics(page) == metrics


@pytest.mark.parametrize("value", ["nan", "inf", "-inf", "-5", "0", "1e300"])
def test_impossible_metrics_are_unknown(value: str) -> None:
    page = f"sglang:page_size {value}\nsglang:max_total_num_tokens 6400\nsglang:token_usage {value}\n"
    found = read_metrics(page)
    assert found is not None
    assert (found.block_size, found.num_blocks) == (None, None)
    assert found.usage in (None, 0.0)
    blocks = f'vllm:cache_config_info{{block_size="{value}",prefix_caching_hash_algo="{"x" * 10**6}"}} 1\n'
    found = read_metrics(f"{blocks}vllm:num_requests_running {value}\n")
    assert found is not None
    assert found.block_size is None
    assert found.running in (None, 0)
    assert len(found.hash_algorithm or "") < 100


@settings(max_examples=40)
@given(st.text(alphabet='{}"=, \n01eNa#\\', max_size=40), st.sampled_from([VLLM, SGLANG, LLAMA]), st.integers(0, 400))
@example("=, ", VLLM, 216)
def test_an_invalid_page_raises_only_a_value_error(odd: str, page: str, cut: int) -> None:
    try:
        read_metrics(page[:cut] + odd + page[cut:])
    except ValueError:
        return


class Monitored:
    """A monitor of a mirror without sockets, with a manual clock."""

    def __init__(self) -> None:
        server = {"url": "http://e", "kv_events": "tcp://127.0.0.1:1", "kv_replay": "tcp://127.0.0.1:2"}
        self.model = Model()
        self.mirror = Mirror("tcp://127.0.0.1:1", "tcp://127.0.0.1:2", hasher=BlockHasher(seed="0"))
        (self.subscriber,) = self.mirror.subscribers
        self.subscriber.is_connected = True
        self.now = 0.0
        self.reuse: dict[str, ReuseStats] = {}
        self.metrics: EngineMetrics | None = None
        self.monitor = MirrorMonitor(UpstreamServer.model_validate(server), self.mirror, lambda: self.now)

    def publish(self, *events: Any) -> None:
        self.subscriber.sequencer.on_batch(*self.model.publish(*events))

    def check(self, later: float = 0.0, *, up: bool = True) -> list[str]:
        self.now += later
        return self.monitor.find_problems(is_up=up, metrics=self.metrics, reuse=self.reuse)


def test_a_disconnected_event_stream_is_logged_once(caplog: pytest.LogCaptureFixture) -> None:
    engine = Monitored()
    engine.subscriber.is_connected = False
    assert engine.check() == []
    assert engine.check(GRACE_SECONDS + 1, up=False) == []
    with caplog.at_level(logging.WARNING):
        (problem,) = engine.check()
        assert "nothing publishes at tcp://127.0.0.1:1: start the engine with --kv-events-config" in problem
        engine.check(60)
    assert [record.getMessage() for record in caplog.records] == [f"http://e: {problem}"]
    engine.subscriber.is_connected = True
    assert engine.check() == []


def test_missing_events_are_a_problem_after_computed_prompts() -> None:
    engine = Monitored()
    for _ in range(20):
        engine.monitor.count_computed_tokens(60, reported=False)
    assert engine.check(GRACE_SECONDS + 1) == []
    engine.monitor.count_computed_tokens(2000, reported=False)
    assert engine.check() == []
    (problem,) = engine.check(GRACE_SECONDS + 1)
    assert "publishes no events: start it with --kv-events-config" in problem
    engine.metrics = replace(READ, prefix_caching=False)
    assert "--enable-prefix-caching" in engine.check()[0]
    engine.publish(engine.model.clear())
    assert engine.check() == []
    # After the first event, estimates do not count: a prompt may be cached completely.
    engine.monitor.count_computed_tokens(2000, reported=False)
    assert engine.check(GRACE_SECONDS + 1) == []
    engine.monitor.count_computed_tokens(2000, reported=True)
    engine.check()
    assert len(engine.check(GRACE_SECONDS + 1)) == 1


def test_the_reuse_that_an_engine_reports_is_added_for_each_model() -> None:
    server = UpstreamServer.model_validate({"url": "http://e", "kv_events": "tcp://127.0.0.1:1"})
    engine = FleetEngine(server, load_settings())
    counted: list[tuple[int, bool]] = []

    class Monitor:
        def count_computed_tokens(self, tokens: int, *, reported: bool) -> None:
            counted.append((tokens, reported))

    engine._monitor = Monitor()  # type: ignore[assignment]
    for number in range(66):
        engine.serving_upstream(80, 20).report_reuse(f"m{number}", 100, 70)
    assert counted == [(20, False), (30, True)] * 66
    # Clients may invent names of models.
    assert len(engine.reuse) == 65
    assert engine.reuse["m0"] == ReuseStats(1, 100, 70, 1, too_high=1, tokens_too_high=10)
    assert engine.reuse["others"].reports == 2


def test_another_hash_algorithm_or_seed_is_no_problem_because_prompts_are_compared_by_token() -> None:
    tokens = list(range(16))
    same = Monitored()
    assert same.monitor.hash_advice(None) is None
    same.publish(same.model.store([event_hash(BlockHasher(seed="0").hash_blocks(tokens, 16)[0])], tokens=tokens))
    assert same.monitor.hash_advice(READ) is None
    other = Monitored()
    other.publish(other.model.store([event_hash(BlockHasher(seed="1").hash_blocks(tokens, 16)[0])], tokens=tokens))
    assert other.check() == []
    advice = other.monitor.hash_advice(replace(READ, hash_algorithm="xxhash_cbor")) or ""
    assert "prompts are compared by token" in advice
    assert "set hash_algorithm to xxhash_cbor, and hash_seed to its PYTHONHASHSEED; without" in advice
    # The advice was followed, but the engine has a random seed.
    advice = other.monitor.hash_advice(READ) or ""
    assert "set hash_seed to its PYTHONHASHSEED; without" in advice
    assert "hash_algorithm to its --prefix-caching-hash-algo" in (other.monitor.hash_advice(None) or "")
    assert other.monitor.hash_advice(EngineMetrics("sglang")) is None


def test_doctor_advises_on_other_block_hashes_and_does_not_fail(tmp_path: Path) -> None:
    server = UpstreamServer(url="http://127.0.0.1:1", kv_events="tcp://127.0.0.1:1", hash_seed="0")
    engine = FleetEngine(server, load_settings(data=tmp_path, upstreams=[server]))
    assert engine.mirror is not None
    other = {"type": "BlockStored", "block_hashes": [9], "parent_block_hash": None, "token_ids": list(range(16))}
    engine.mirror.state().apply(decode_batch(msgpack.packb([1.0, [other | {"block_size": 16}], 0])))
    engine._next_metrics = math.inf  # It has no metrics.
    asyncio.run(engine.monitor())
    status = engine.status()
    assert status.notes == ()
    assert any("prompts are compared by token" in advice for advice in status.advice)


def test_a_restart_is_reported_for_a_limited_time() -> None:
    engine = Monitored()
    engine.publish(engine.model.store([1]))
    engine.model.restart()
    engine.subscriber.sequencer._on_restart()
    (problem,) = engine.check()
    assert "restarted 0 s ago" in problem
    assert "restarted 60 s ago" in engine.check(60)[0]
    assert engine.check(RESTART_REPORT_SECONDS) == []


def test_events_of_unknown_names_are_a_problem() -> None:
    watched = Monitored()
    watched.publish({"type": "BlockMoved"})
    (problem,) = watched.check()
    assert "event BlockMoved (1)" in problem


def test_more_copies_than_the_pool_has_blocks_prove_the_other_way_of_counting_removals() -> None:
    watched = Monitored()
    event = {
        "type": "BlockStored",
        "block_hashes": [1, 2],
        "parent_block_hash": None,
        "token_ids": [],
        "block_size": 16,
    }
    removed = {"type": "BlockRemoved", "block_hashes": [1]}
    batch = decode_batch(msgpack.packb([1.0, [event, event, event, removed], 0]))
    watched.mirror.state().apply(batch)
    watched.metrics = EngineMetrics("vllm", 5)
    watched.check()
    assert watched.mirror.report().cached == 5
    watched.mirror.state().apply(batch)
    watched.check()
    # Block 1 was removed, and of block 2 six copies are counted.
    assert (watched.mirror.report().distinct, watched.mirror.report().cached) == (1, 6)
    watched.mirror.state().apply(decode_batch(msgpack.packb([1.0, [removed | {"block_hashes": [2]}], 0])))
    assert watched.mirror.report().cached == 0


def test_routing_ignores_a_mirror_after_forged_events_until_its_predictions_are_right_again(tmp_path: Path) -> None:
    server = UpstreamServer(url="http://127.0.0.1:1", kv_events="tcp://127.0.0.1:1")
    engine = FleetEngine(server, load_settings(data=tmp_path, upstreams=[server]))
    assert engine.mirror is not None
    tokens = list(range(100))
    forged = {"type": "BlockStored", "block_hashes": [9], "parent_block_hash": None, "token_ids": tokens[:96]}
    engine.mirror.state().apply(decode_batch(msgpack.packb([1.0, [forged | {"block_size": 96}], 0])))
    prompt = HashedPrompt(tokens)

    def matched() -> int | None:
        return engine.routing_candidate(engine.predict(prompt, b"")).matched_tokens

    def report(cached: int, count: int) -> None:
        upstream = engine.serving_upstream(engine.predict(prompt, b"").tokens, 0)
        for _ in range(count):
            upstream.report_reuse("m", 100, cached)

    engine.mirror.subscribers[0]._is_disconnected = False
    assert matched() == 96
    report(0, 20)
    assert matched() is None
    report(96, 80)
    assert matched() == 96


def test_frequent_wrong_predictions_are_a_problem() -> None:
    engine = Monitored()
    reuse = engine.reuse["m"] = ReuseStats()
    for _ in range(40):
        reuse.add(100, 64, 64)
    reuse.add(100, 32, 64)
    assert engine.check() == []
    for _ in range(5):
        reuse.add(100, 32, 64)
    assert "6 of 46 predictions for m were too high" in engine.check()[0]
    assert (reuse.exact, reuse.tokens_too_high, reuse.tokens_too_low) == (40, 6 * 32, 0)


def test_missing_removals_of_a_medium_are_named_as_the_cause_of_wrong_predictions() -> None:
    engine = Monitored()
    engine.reuse["m"] = ReuseStats(predictions=46, too_high=6)
    engine.publish(engine.model.store([1], tokens=[0] * 16), engine.model.store([2], tokens=[1] * 16, medium="CPU"))
    assert "no removed block of CPU was published: LMCache" in " ".join(engine.check())
    engine.publish(engine.model.remove([2]) | {"medium": "CPU"}, engine.model.store([3], tokens=[2] * 16, medium="CPU"))
    assert "6 of 46" in (problems := " ".join(engine.check()))
    assert "no removed block" not in problems


@pytest.fixture
def proxy(tmp_path: Path) -> Iterator[str]:
    """Run a proxy in front of a server with metrics."""

    async def answer(request: Request) -> Response:
        if request.url.path == "/metrics":
            return PlainTextResponse(VLLM)
        usage = {"prompt_tokens": 1000, "prompt_tokens_details": {"cached_tokens": 750}}
        whole = {"choices": [], "usage": usage}
        if b'"stream":true' not in await request.body():
            return JSONResponse(whole)
        stream = encode_event(whole) + encode_event(b"[DONE]")
        # Chunks that split events.
        parts = [stream[start : start + 37] for start in range(0, len(stream), 37)]
        return StreamingResponse(iter(parts), media_type="text/event-stream")

    with run_upstream(answer) as url:
        # The stream is too large to store.
        cache, routing = {"semantic": False, "max_response_bytes": 100}, {"metrics_interval": 0.05}
        with run_proxy(load_settings(data=tmp_path, upstream=url, cache=cache, routing=routing)) as (proxy, _):
            yield proxy


def test_metrics_are_shown_with_their_age(proxy: str) -> None:
    def upstream() -> Any:
        return httpx.get(f"{proxy}/admin/upstreams").json()[0]

    for stream, control in ((False, "no-store"), (True, "no-cache")):
        post(proxy, fields={"stream": stream}, cache_control=control).raise_for_status()
    until(lambda: upstream()["metrics"] and upstream()["reuse"].get("m", {}).get("reports") == 2)
    stats = httpx.get(f"{proxy}/admin/blocks/stats").raise_for_status().json()
    assert (stats["num_blocks"], stats["used"], stats["usage"], stats["hits"]) == (200, 50, 0.25, 17344)
    assert (stats["cached"], stats["complete"]) == (None, None)
    assert 0 <= stats["reported"][0]["age"] < 20
    assert httpx.get(f"{proxy}/admin/blocks").status_code == 409
    metrics = httpx.get(f"{proxy}/metrics").text
    assert "kvproxy_engine_usage{upstream=" in metrics
    assert "kvproxy_engine_age_seconds{upstream=" in metrics
    assert "kvproxy_mirror_connected{" not in metrics
    assert 'kvproxy_reported_reuse_cached_tokens_total{model="m"' in metrics
    shown = kvproxy("upstreams", url=proxy).stdout
    assert "\t0.25\t" in shown
    assert "1,500 of 2,000 prompt tokens reused, as reported" in shown


def test_metrics_name_the_state_of_a_mirror(tmp_path: Path) -> None:
    server = UpstreamServer(url="http://127.0.0.1:1", kv_events="tcp://127.0.0.1:1-2")
    engine = FleetEngine(server, load_settings(data=tmp_path, upstreams=[server]))
    assert engine.mirror is not None

    def state() -> list[str]:
        metrics = Metrics()
        metrics.set_upstreams([engine.status()])
        lines = metrics.render().decode().splitlines()
        return [line.rpartition(" ")[2] for line in lines if line.startswith("kvproxy_mirror_")]

    first, second = engine.mirror.subscribers
    first.is_connected = True
    assert state() == ["0.0", "0.0"]
    second.is_connected = True
    first.sequencer.complete = second.sequencer.complete = True
    assert state() == ["1.0", "1.0"]
    first.sequencer.complete = False
    assert state() == ["1.0", "0.0"]


def test_the_blocks_of_a_disconnected_engine_are_unknown(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    server = UpstreamServer(url="http://127.0.0.1:1", kv_events="tcp://127.0.0.1:1")
    settings = load_settings(data=tmp_path, upstreams=[server])
    engine = FleetEngine(server, settings)
    fleet = Fleet([engine], UpstreamTokenizer(), settings.routing)
    assert engine.mirror is not None
    (subscriber,) = engine.mirror.subscribers
    stored = {"type": "BlockStored", "block_hashes": [9], "parent_block_hash": None, "token_ids": list(range(16))}
    engine.mirror.state().apply(decode_batch(msgpack.packb([1.0, [stored | {"block_size": 16}], 0])))
    subscriber.is_connected = True

    def shown() -> tuple[int | None, int | None, int | None, str]:
        stats = asyncio.run(FleetPrefixCache(fleet).stats())
        print_mirrors(stats)
        return engine.status().cached_blocks, stats.cached, stats.evictions, capsys.readouterr().out

    assert shown()[:3] == (1, 1, 0)
    subscriber.is_connected, subscriber._is_disconnected = False, True
    assert shown() == (None, None, None, "  not connected to tcp://127.0.0.1:1, 0 batches\n")


def test_doctor_reports_problems_of_a_mirror(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("kvproxy.upstreams.mirror_monitor.GRACE_SECONDS", 0.1)
    with run_plain_upstream() as url:
        server = {"url": url, "kv_events": "tcp://127.0.0.1:9"}
        settings = load_settings(data=tmp_path, upstreams=[server], routing={"metrics_interval": 0.05})
        with run_proxy(settings) as (proxy, _):
            until(lambda: httpx.get(f"{proxy}/admin/upstreams").json()[0]["notes"])
            with pytest.raises(KvproxyError, match=r"nothing publishes at tcp://127\.0\.0\.1:9"):
                check_proxy(proxy, None)


def test_doctor_names_the_shortest_prefix_that_a_hybrid_model_reuses(tmp_path: Path) -> None:
    async def answer(request: Request) -> Response:
        page = 'vllm:cache_config_info{num_gpu_blocks="9",block_size="16",cache_hit_alignment_tokens="2096"} 1\n'
        return PlainTextResponse(page) if request.url.path == "/metrics" else JSONResponse({"data": []})

    with run_upstream(answer) as url:
        settings = load_settings(data=tmp_path, upstream=url, routing={"metrics_interval": 0.05})
        with run_proxy(settings) as (proxy, _):
            until(lambda: httpx.get(f"{proxy}/admin/upstreams").json()[0]["advice"])
            with pytest.raises(CheckWarning, match="a prefix below 2,096 tokens cannot be reused by this model"):
                check_proxy(proxy, None)


@pytest.mark.parametrize(("events", "is_open"), [("tcp://127.0.0.1:5557", False), ("tcp://10.0.0.9:5557", True)])
def test_doctor_names_kv_events_from_a_network(events: str, is_open: bool) -> None:
    with run_plain_upstream() as url:
        server = UpstreamServer(url=url, kv_events=events)
        text = str(check_upstream(server, load_settings(upstreams=[server])))
    assert (f"KV events from {events} are not authenticated" in text) == is_open
