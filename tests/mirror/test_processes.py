"""A proxy that mirrors a `kvproxy serve` process with a disk tier, which is killed and started again."""

from pathlib import Path
from typing import Any

import httpx
import pytest

from kvproxy.settings import load_settings
from tests.commands.test_commands import kvproxy, result
from tests.polling import until
from tests.ports import free_port
from tests.servers import run_proxy
from tests.tiers.test_serve import SYSTEM, ask, cached, fill_the_disk, find_it_again, serving, tier_flags


def test_a_restarted_engine_reloads_its_prefixes_and_is_mirrored_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    events, replay = (f"tcp://127.0.0.1:{free_port()}" for _ in range(2))
    monkeypatch.setenv("KVPROXY_ENGINE__KV_EVENTS", events)
    monkeypatch.setenv("KVPROXY_ENGINE__KV_REPLAY", replay)
    port = free_port()
    behind = ("--port", str(port), "--num-blocks", "256", "--no-semantic", *tier_flags(tmp_path))
    server = {"url": f"http://127.0.0.1:{port}", "kv_events": events, "kv_replay": replay}
    front = load_settings(
        data=tmp_path / "front",
        upstreams=[server],
        forward={"tokenizer": "demo"},
        cache={"semantic": False},
        routing={"health_interval": 0.3},
    )
    with run_proxy(front) as (url, _):
        with serving(tmp_path / "behind", *behind) as engine:
            until(lambda: upstream(url)["state"] == "up" and stats(url)["complete"])
            before = fill_the_disk(engine)
            until(lambda: hashes(url) == hashes(engine) != set())
            look_around(url, engine)
        until(lambda: upstream(url)["state"] == "ejected")
        assert "not connected" in kvproxy("upstreams", url=url).stdout
        with serving(tmp_path / "behind", *behind) as engine:
            find_it_again(engine, before, tmp_path)
            until(lambda: upstream(url)["state"] == "up")
            ask(url, "What is a pool, a queue, a chain, a leaf, a prefix, a digest, a salt and a seed? " * 3)
            until(lambda: hashes(url) == hashes(engine) != set() and stats(url)["complete"])
            (stream,) = stats(url)["streams"]
            # A loss where the engine died in the middle of a replay.
            assert stream["restarts"] + stream["losses"] == 1, stream


def look_around(url: str, engine: str) -> None:
    """Every command that shows blocks, at the proxy that has none of its own."""
    (status,) = result("upstreams", url=url)
    assert (status["url"], status["state"], status["complete"]) == (engine, "up", True)
    assert "from KV events" in kvproxy("blocks", url=url).stdout
    assert "Medium" in kvproxy("blocks", "ls", url=url).stdout
    (chain,) = result("blocks", "chains", url=url)
    assert result("blocks", "show", chain["leaf"], url=url)["hash"] == chain["leaf"]
    assert kvproxy("blocks", "queue", url=url).returncode == 1
    told = kvproxy("explain", "--system", SYSTEM, "What is a chain?", url=url).stdout
    matched = int(told.split("prefix     ")[1].split(" of")[0])
    assert matched > 0
    assert cached(ask(url, "What is a chain?")) == matched


def upstream(url: str) -> Any:
    return httpx.get(f"{url}/admin/upstreams").raise_for_status().json()[0]


def stats(url: str) -> Any:
    return httpx.get(f"{url}/admin/blocks/stats").raise_for_status().json()


def hashes(url: str) -> set[str]:
    """Names of cached blocks, in the form that events carry."""
    rows = httpx.get(f"{url}/admin/blocks").raise_for_status().json()
    return {row["hash"][-16:] for row in rows if row["hash"]}
