"""A proxy mirrors an embedded engine with a disk tier, which stops and starts again."""

from pathlib import Path
from typing import Any

import httpx

from kvproxy.settings import load_settings
from tests.commands.run import kvproxy
from tests.polling import until
from tests.ports import free_port
from tests.servers import run_proxy
from tests.tiers.test_serve import CHUNK, ask, fill_the_disk, find_it_again


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
