"""What engines tell of themselves: their figures, and what is wrong between them and their mirrors."""

import logging
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import httpx
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, PlainTextResponse, Response
from starlette.routing import Route

from kvproxy.blocks.block_hash import BlockHasher, event_hash
from kvproxy.checks.servers import check_proxy
from kvproxy.errors import KvproxyError
from kvproxy.mirror.mirror import Mirror
from kvproxy.settings import UpstreamServer, load_settings
from kvproxy.upstreams.engine_reports.metrics import EngineFigures, read_figures
from kvproxy.upstreams.engine_reports.mirror_problems import PATIENCE, TELLING, Watch
from kvproxy.upstreams.engine_reports.prefix_reuse import ReuseFigures
from tests.commands.run import kvproxy
from tests.mirror.publisher import Model
from tests.polling import until
from tests.servers import run_app, run_proxy

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
READ = EngineFigures("vllm", 200, 32, 0.25, 2, 1, 25501, 17344, "sha256_cbor", True)


@pytest.mark.parametrize(
    ("page", "figures"),
    [
        (VLLM, READ),
        (TWO_RANKS, EngineFigures("vllm", 400, 32, 0.5, 4, 2, 51002, 34688, "sha256_cbor", True)),
        (SGLANG, EngineFigures("sglang", 100, 64, 0.28, 3, 0, 4096, 3168)),
        (LLAMA, EngineFigures("llama.cpp", running=1, waiting=4, queries=400, hits=300)),
        ("llamacpp:requests_processing 1\n", EngineFigures("llama.cpp", running=1)),
        ("python_info 1\n", None),
        ("<html>\n<p>vllm:</p>", None),
        ("", None),
    ],
)
def test_every_engines_page(page: str, figures: EngineFigures | None) -> None:
    assert read_figures(page) == figures


@given(st.text(alphabet='{}"=, \n01eNa#\\', max_size=40), st.sampled_from([VLLM, SGLANG, LLAMA]), st.integers(0, 400))
@example("=, ", VLLM, 216)
def test_a_page_that_is_none_is_refused_or_read(odd: str, page: str, cut: int) -> None:
    try:
        read_figures(page[:cut] + odd + page[cut:])
    except ValueError:
        return


class Watched:
    """A watch over a mirror without sockets, with a clock that is turned by hand."""

    def __init__(self, **settings: Any) -> None:
        server = {"url": "http://e", "kv_events": "tcp://127.0.0.1:1", "kv_replay": "tcp://127.0.0.1:2"} | settings
        self.model = Model()
        self.mirror = Mirror("tcp://127.0.0.1:1", "tcp://127.0.0.1:2", hasher=BlockHasher(seed="0"))
        (self.subscriber,) = self.mirror.subscribers
        self.subscriber.is_connected = True
        self.now = 0.0
        self.reuse: dict[str, ReuseFigures] = {}
        self.figures: EngineFigures | None = None
        self.watch = Watch(UpstreamServer.model_validate(server), self.mirror, lambda: self.now)

    def publish(self, *events: Any) -> None:
        self.subscriber.sequencer.live(*self.model.publish(*events))

    def look(self, later: float = 0.0, *, up: bool = True) -> list[str]:
        self.now += later
        return self.watch.look(up=up, figures=self.figures, reuse=self.reuse)


def test_events_that_nobody_publishes(caplog: pytest.LogCaptureFixture) -> None:
    watched = Watched()
    watched.subscriber.is_connected = False
    assert watched.look() == []
    # An engine that is down is told elsewhere.
    assert watched.look(PATIENCE + 1, up=False) == []
    with caplog.at_level(logging.WARNING):
        (told,) = watched.look()
        assert "nothing publishes at tcp://127.0.0.1:1: start it with --kv-events-config" in told
        watched.look(60)
    assert [record.getMessage() for record in caplog.records] == [f"http://e: {told}"]
    watched.subscriber.is_connected = True
    assert watched.look() == []


def test_events_that_stay_silent_while_requests_pass() -> None:
    watched = Watched()
    for _ in range(20):
        watched.watch.computed(60, reported=False)
    assert watched.look(PATIENCE + 1) == []
    watched.watch.computed(2000, reported=False)
    assert watched.look() == []
    (told,) = watched.look(PATIENCE + 1)
    assert "publishes no events: start it with --kv-events-config" in told
    watched.figures = replace(READ, prefix_caching=False)
    assert "--enable-prefix-caching" in watched.look()[0]
    watched.publish(watched.model.clear())
    assert watched.look() == []
    # From now on only what the engine reports counts: a guess may be a prompt that it holds as a whole.
    watched.watch.computed(2000, reported=False)
    assert watched.look(PATIENCE + 1) == []
    watched.watch.computed(2000, reported=True)
    watched.look()
    assert len(watched.look(PATIENCE + 1)) == 1


def test_a_topic_that_lets_nothing_pass_is_named() -> None:
    watched = Watched(kv_topic="kv@")
    watched.watch.computed(2000, reported=True)
    watched.look()
    assert "begin with 'kv@'" in watched.look(PATIENCE + 1)[0]


def test_another_recipe_than_we_were_told() -> None:
    tokens = list(range(16))
    alike = Watched()
    alike.publish(alike.model.store([event_hash(BlockHasher(seed="0").chain(tokens, 16)[0])], tokens=tokens))
    assert alike.look() == []
    alike.figures = replace(READ, hash_algorithm="xxhash_cbor")
    assert alike.look() == [
        "it names blocks by xxhash_cbor, and we were told sha256_cbor: set hash_algorithm to xxhash_cbor"
    ]
    other = Watched()
    other.publish(other.model.store([event_hash(BlockHasher(seed="1").chain(tokens, 16)[0])], tokens=tokens))
    (told,) = other.look()
    assert "hash_seed to its PYTHONHASHSEED" in told
    other.figures = EngineFigures("sglang")
    assert other.look() == []


def test_a_restart_is_told_for_a_while() -> None:
    watched = Watched()
    watched.publish(watched.model.store([1]))
    watched.model.restart()
    watched.subscriber.sequencer._restart()
    (told,) = watched.look()
    assert "it restarted 0 s ago" in told
    assert "restarted 60 s ago" in watched.look(60)[0]
    assert watched.look(TELLING) == []


def test_a_mirror_that_errs_is_noticed() -> None:
    watched = Watched()
    told = watched.reuse["m"] = ReuseFigures()
    for _ in range(40):
        told.add(100, 64, 64)
    told.add(100, 32, 64)
    assert watched.look() == []
    for _ in range(5):
        told.add(100, 32, 64)
    assert "6 of 46 predictions for m promised more" in watched.look()[0]
    assert (told.exact, told.tokens_too_high, told.tokens_too_low) == (40, 6 * 32, 0)


@pytest.fixture
def proxy(tmp_path: Path) -> Iterator[str]:
    """In front of a server with a page of figures, whose events are told to come from where nobody is."""

    async def page(request: Request) -> Response:
        return PlainTextResponse(VLLM)

    async def answer(request: Request) -> Response:
        usage = {"prompt_tokens": 2000, "prompt_tokens_details": {"cached_tokens": 1500}}
        return JSONResponse({"choices": [], "usage": usage})

    app = Starlette(routes=[Route("/metrics", page), Route("/v1/chat/completions", answer, methods=["POST"])])
    with run_app(app) as url:
        settings = load_settings(
            data=tmp_path, upstream=url, cache={"enabled": False}, routing={"figures_interval": 0.05}
        )
        with run_proxy(settings) as (proxy, _):
            yield proxy


def test_figures_are_shown_with_their_age(proxy: str) -> None:
    httpx.post(f"{proxy}/v1/chat/completions", json={"model": "m", "messages": []}).raise_for_status()
    until(lambda: httpx.get(f"{proxy}/admin/upstreams").json()[0]["figures"])
    stats = httpx.get(f"{proxy}/admin/blocks/stats").raise_for_status().json()
    assert (stats["num_blocks"], stats["used"], stats["usage"], stats["hits"]) == (200, 50, 0.25, 17344)
    assert (stats["cached"], stats["complete"]) == (None, None)
    assert 0 <= stats["told"][0]["age"] < 20
    assert httpx.get(f"{proxy}/admin/blocks").status_code == 409
    metrics = httpx.get(f"{proxy}/metrics").text
    assert 'kvproxy_engine{of="usage",upstream=' in metrics
    assert 'kvproxy_reported_reuse{model="m",of="cached_tokens"' in metrics
    shown = kvproxy("upstreams", url=proxy).stdout
    assert "25.0%" in shown
    assert "1,500 of 2,000 prompt tokens reused, as reported" in shown


def test_doctor_says_what_is_wrong(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("kvproxy.upstreams.engine_reports.mirror_problems.PATIENCE", 0.1)
    with run_app(Starlette(routes=[])) as url:
        server = {"url": url, "kv_events": "tcp://127.0.0.1:9"}
        settings = load_settings(data=tmp_path, upstreams=[server], routing={"figures_interval": 0.05})
        with run_proxy(settings) as (proxy, _):
            until(lambda: httpx.get(f"{proxy}/admin/upstreams").json()[0]["notes"])
            with pytest.raises(KvproxyError, match=r"nothing publishes at tcp://127\.0\.0\.1:9"):
                check_proxy(proxy, None)
