"""Dashboard and alerts, asked of a real Prometheus that scrapes real proxies."""

import contextlib
import json
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from starlette.requests import Request
from starlette.responses import JSONResponse, PlainTextResponse, Response

from kvproxy.clients.client_keys import key_digest
from kvproxy.settings import load_settings
from tests import polling
from tests.ports import free_port
from tests.servers import run_proxy, run_upstream

ROOT = Path(__file__).resolve().parents[2]
DEPLOY = ROOT / "deploy"
FIGURES = """\
vllm:cache_config_info{block_size="16",num_gpu_blocks="100"} 1
vllm:kv_cache_usage_perc 0.25
vllm:num_requests_running 1
vllm:num_requests_waiting 0
vllm:prefix_cache_queries_total 100
vllm:prefix_cache_hits_total 40
"""
KEY = "kvp-" + "k" * 40


async def respond(request: Request) -> Response:
    if request.url.path == "/metrics":
        return PlainTextResponse(FIGURES)
    choice = {"index": 0, "message": {"role": "assistant", "content": "Yes."}, "finish_reason": "stop"}
    usage = {"prompt_tokens": 12, "completion_tokens": 3, "prompt_tokens_details": {"cached_tokens": 8}}
    return JSONResponse({"id": "1", "object": "chat.completion", "model": "m", "choices": [choice], "usage": usage})


def ask(url: str, question: str, **headers: str) -> int:
    body = {"model": "demo", "messages": [{"role": "user", "content": question}], "max_tokens": 8}
    return httpx.post(f"{url}/v1/chat/completions", json=body, headers=headers, timeout=60).status_code


@pytest.fixture(scope="module")
def proxies(tmp_path_factory: pytest.TempPathFactory) -> Iterator[list[str]]:
    """One with the embedded engine and a client, and one in front of an upstream."""
    folder = tmp_path_factory.mktemp("proxies")
    client = {"name": "search", "key_sha256": key_digest(KEY)}
    embedded = load_settings(
        data=folder / "embedded",
        engine={"num_blocks": 256},
        tiers={"host": "64MiB", "chunk_tokens": 16},
        clients=[client],
        limits={"body_bytes": 4000},
    )
    with contextlib.ExitStack() as opened:
        first, _ = opened.enter_context(run_proxy(embedded))
        upstream = opened.enter_context(run_upstream(respond))
        front = load_settings(data=folder / "front", upstream=upstream, routing={"metrics_interval": 0.2})
        second, _ = opened.enter_context(run_proxy(front))
        yield [first, second]


@pytest.fixture(scope="module")
def prometheus(proxies: list[str], tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    folder, port = tmp_path_factory.mktemp("prometheus"), free_port()
    # JSON is YAML too.
    config = {
        "global": {"scrape_interval": "1s", "evaluation_interval": "1s"},
        "rule_files": [str(DEPLOY / "prometheus/alerts.yml")],
        "scrape_configs": [
            {"job_name": "kvproxy", "static_configs": [{"targets": [url.removeprefix("http://") for url in proxies]}]}
        ],
    }
    (folder / "prometheus.yml").write_text(json.dumps(config))
    command = ["prometheus", f"--config.file={folder}/prometheus.yml", f"--storage.tsdb.path={folder}/data"]
    with (folder / "log").open("wb") as log:
        process = subprocess.Popen([*command, f"--web.listen-address=127.0.0.1:{port}"], stdout=log, stderr=log)
    try:
        yield f"http://127.0.0.1:{port}"
    finally:
        process.terminate()
        process.wait()


ELSEWHERE = (
    *("kvproxy_llama_cpp", "kvproxy_mirror", "kvproxy_stale"),
    *("kvproxy_savings_money", "kvproxy_client_spent", "kvproxy_fallback"),
)
"""No data here: llama.cpp alone has slots, and no such upstream, and none with KV events, is behind these proxies; nothing is
given past its time, and the models have no price, and no fallback.
"""


def answer(prometheus: str, query: str) -> list[Any]:
    told = httpx.get(f"{prometheus}/api/v1/query", params={"query": query}).json()
    assert told["status"] == "success", told
    found: list[Any] = told["data"]["result"]
    return found


def until(holds: Callable[[], bool]) -> None:
    def is_true() -> bool:
        # Until it is ready, Prometheus answers with words.
        with contextlib.suppress(httpx.TransportError, ValueError):
            return holds()
        return False

    polling.until(is_true, interval=0.2)


def test_every_query_of_the_dashboard_finds_data(proxies: list[str], prometheus: str) -> None:
    embedded, front = proxies

    def traffic() -> None:
        # Each layer, and a limit, so that every figure moves between two scrapes.
        now = time.time()
        for question in ("What is LRU?", "What is LRU?", "Can you tell me what LRU is?", f"What is it at {now}?"):
            assert ask(embedded, question, authorization=f"Bearer {KEY}") == 200
            assert ask(front, question) == 200
        assert ask(embedded, "x" * 5000, authorization=f"Bearer {KEY}") == 413
        assert ask(front, f"What is not stored at {now}?", **{"cache-control": "no-store"}) == 200

    until(lambda: len(answer(prometheus, "up == 1")) == 2)
    panels = json.loads((DEPLOY / "grafana/kvproxy.json").read_text())["panels"]
    queries = {
        panel["title"]: target["expr"].replace("$instance", ".*")
        for panel in panels
        for target in panel["targets"]
        if not any(name in target["expr"] for name in ELSEWHERE)
    }
    assert len(queries) > 20

    def silent() -> list[str]:
        traffic()
        return [
            title
            for title, query in queries.items()
            if not any(row["value"][1] != "NaN" for row in answer(prometheus, query))
        ]

    until(lambda: not silent())


def test_every_alert_is_evaluated_and_none_fires_on_a_proxy_that_is_well(prometheus: str) -> None:
    def rules() -> list[dict[str, Any]]:
        groups = httpx.get(f"{prometheus}/api/v1/rules").json()["data"]["groups"]
        return [rule for group in groups for rule in group["rules"]]

    number = (DEPLOY / "prometheus/alerts.yml").read_text().count("- alert:")
    until(lambda: len(rules()) == number and all(rule["health"] == "ok" for rule in rules()))
    firing = {rule["name"] for rule in rules() if rule["state"] == "firing"}
    assert firing == set()


def test_each_alert_fires_on_the_state_that_it_is_for() -> None:
    commands = ("check config prometheus.yml", "check rules alerts.yml", "test rules alerts_test.yml")
    for command in map(str.split, commands):
        done = subprocess.run(["promtool", *command], cwd=DEPLOY / "prometheus", capture_output=True, text=True)
        assert done.returncode == 0, done.stdout + done.stderr
    tested = (DEPLOY / "prometheus/alerts_test.yml").read_text()
    rules = (DEPLOY / "prometheus/alerts.yml").read_text()
    names = [line.split(":")[1].strip() for line in rules.splitlines() if "- alert:" in line]
    assert [name for name in names if tested.count(f"alertname: {name}") < 2] == []
