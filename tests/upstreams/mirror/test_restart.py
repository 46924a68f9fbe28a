"""A proxy mirrors an embedded engine with a disk tier, which stops and starts again."""

import re
import time
from pathlib import Path
from typing import Any

import httpx

from kvproxy.settings import load_settings
from tests.commands.run import kvproxy, result
from tests.polling import until
from tests.ports import free_port
from tests.servers import run_proxy

SYSTEM = "You answer questions about the cache. Be brief, be exact, and say so when you do not know. " * 4
CHUNK = 32


def ask(url: str, question: str) -> httpx.Response:
    messages = [{"role": "system", "content": SYSTEM}, {"role": "user", "content": question}]
    body = {"model": "demo", "messages": messages, "max_tokens": 8, "temperature": 0}
    return httpx.post(
        f"{url}/v1/chat/completions", json=body, headers={"cache-control": "no-cache, no-store"}, timeout=300
    ).raise_for_status()


def cached(response: httpx.Response) -> int:
    tokens: int = response.json()["usage"]["prompt_tokens_details"]["cached_tokens"]
    return tokens


def wait_for_chunks(url: str, more_than: int = 0) -> int:
    def count() -> int:
        return int(httpx.get(f"{url}/admin/blocks/tiers").json()[1]["chunks"])

    until(lambda: count() > more_than)
    chunks = -1
    while chunks != (chunks := count()):
        time.sleep(0.5)
    return chunks


def fill_the_disk(url: str) -> dict[str, str]:
    assert "tiers=" not in ask(url, "What is a block?").headers["cache-status"]
    said: dict[str, str] = ask(url, "What is a block?").json()["choices"][0]["message"]
    wait_for_chunks(url)
    assert [row["name"] for row in result("blocks", "tiers", url=url)] == ["host", "disk"]
    return said


def find_it_again(url: str, before: dict[str, str], folder: Path) -> None:
    prompts = folder / "prompts.txt"
    prompts.write_text("What is a block?\n")
    entries = result("cache", "stats", url=url)["entries"]
    explained = result("explain", "What is a block?", "--system", SYSTEM, url=url)
    assert explained["prefix"]["matched_tokens"] == 0
    assert explained["prefix"]["tiers"]["disk"] >= CHUNK
    assert explained["layer"] == "prefix"
    again = ask(url, "What is a block?")
    assert again.json()["choices"][0]["message"] == before
    tier_tokens = int(re.search(r"tiers=(\d+)", again.headers["cache-status"])[1])  # type: ignore[index]
    assert cached(again) == tier_tokens == explained["prefix"]["tiers"]["disk"]
    rows = {row["name"]: row for row in result("blocks", "tiers", url=url)}
    assert rows["disk"]["hits"] == -(-tier_tokens // CHUNK)
    assert "disk" in kvproxy("blocks", "tiers", url=url).stdout
    assert result("cache", "stats", url=url)["entries"] == entries
    assert " tier disk:" in kvproxy("blocks", url=url).stdout
    metrics = httpx.get(f"{url}/metrics").text
    assert f'kvproxy_tokens_total{{kind="tier"}} {tier_tokens}.0' in metrics
    assert 'kvproxy_tier_hits_total{tier="disk"}' in metrics
    for name in ("queue", "ttft", "tpot"):
        assert f"kvproxy_{name}_seconds_count 1.0" in metrics
    warmed = result("warm", prompts, "--format", "prompts", "--system", f"Warm. {SYSTEM}", "--prefix-only", url=url)
    assert (warmed["total"], warmed["computed_not_stored"], warmed["failed"]) == (1, 1, 0)
    chunks = wait_for_chunks(url, more_than=rows["disk"]["chunks"])
    assert 'kvproxy_tier_dropped_total{tier="disk"} 0.0' in metrics
    assert "Tier\tdisk:" in kvproxy("top", "--interval", 0.1, url=url).stdout
    cleared = result("blocks", "clear-tier", "disk", url=url)
    assert cleared == {"tier": "disk", "cleared": chunks}
    assert "deleted 0 chunks from disk" in kvproxy("blocks", "clear-tier", "disk", url=url).stdout
    assert not list((folder / "chunks").rglob("*.chunk"))
    assert result("blocks", "tiers", url=url)[0]["chunks"] == chunks
    unknown = kvproxy("blocks", "clear-tier", "redis", url=url)
    assert (unknown.returncode, "this proxy has host, disk" in unknown.stderr) == (3, True)


def test_a_restarted_engine_reloads_its_prefixes_and_is_mirrored_again(tmp_path: Path) -> None:
    events, replay = (f"tcp://127.0.0.1:{free_port()}" for _ in range(2))
    port = free_port()
    behind = load_settings(
        data=tmp_path / "behind",
        engine={"num_blocks": 256, "kv_events": events, "kv_replay": replay},
        tiers={"disk": tmp_path / "chunks", "host": "64MiB", "chunk_tokens": CHUNK},
        cache={"semantic": False},
    )
    server = {"url": f"http://127.0.0.1:{port}", "kv_events": events, "kv_replay": replay}
    front = load_settings(
        data=tmp_path / "front",
        upstreams=[server],
        forward={"tokenizer": "demo"},
        cache={"semantic": False},
        routing={"health_interval": 0.3},
    )
    with run_proxy(front) as (url, _):
        with run_proxy(behind, port) as (engine, _):
            until(lambda: upstream(url)["state"] == "up" and stats(url)["complete"])
            before = fill_the_disk(engine)
            until(lambda: hashes(url) == hashes(engine) != set())
        until(lambda: upstream(url)["state"] == "ejected")
        assert "not connected" in kvproxy("upstreams", url=url).stdout
        with run_proxy(behind, port) as (engine, _):
            find_it_again(engine, before, tmp_path)
            until(lambda: upstream(url)["state"] == "up")
            ask(url, "What is a pool, a queue, a chain, a leaf, a prefix, a digest, a salt and a seed? " * 3)
            until(lambda: hashes(url) == hashes(engine) != set() and stats(url)["complete"])
            (stream,) = stats(url)["streams"]
            # A loss where the engine stopped in the middle of a replay.
            assert stream["restarts"] + stream["losses"] == 1, stream


def upstream(url: str) -> Any:
    return httpx.get(f"{url}/admin/upstreams").raise_for_status().json()[0]


def stats(url: str) -> Any:
    return httpx.get(f"{url}/admin/blocks/stats").raise_for_status().json()


def hashes(url: str) -> set[str]:
    """Names of cached blocks, in the form that events carry."""
    rows = httpx.get(f"{url}/admin/blocks").raise_for_status().json()
    return {row["hash"][-16:] for row in rows if row["hash"]}
