"""`kvproxy serve` with a disk tier: prompts find their prefix after a restart, and every surface says so.

The restart itself is `tests/mirror/test_processes.py`'s, since the start of an engine is what takes long.
"""

import contextlib
import os
import re
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import httpx

from tests.commands.run import kvproxy, result

ROOT = Path(__file__).resolve().parents[2]
SYSTEM = "You answer questions about the cache. Be brief, be exact, and say so when you do not know. " * 4
CHUNK = 32


@contextlib.contextmanager
def serving(data: Path, *flags: str) -> Iterator[str]:
    """The command in a process of its own; its URL. It is killed in the end, not asked to stop."""
    command = [
        sys.executable,
        "-m",
        "kvproxy.commands",
        "serve",
        "--port",
        "0",
        "--data",
        str(data),
        "--no-semantic",
        *flags,
    ]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=ROOT, env=os.environ | {"NO_COLOR": "1"})
    assert process.stdout is not None
    try:
        for line in process.stdout:
            found = re.search(r"listening\s+(http\S+)/v1", line)
            if found:
                break
        else:
            raise AssertionError("the server said no address")
        with httpx.Client(base_url=found[1]) as client:
            while True:
                with contextlib.suppress(httpx.TransportError):
                    client.get("/health")
                    break
                time.sleep(0.05)
        yield found[1]
    finally:
        process.kill()
        process.stdout.close()
        process.wait()


def ask(url: str, question: str) -> httpx.Response:
    messages = [{"role": "system", "content": SYSTEM}, {"role": "user", "content": question}]
    body = {"model": "demo", "messages": messages, "max_tokens": 8, "temperature": 0}
    return httpx.post(
        f"{url}/v1/chat/completions", json=body, headers={"cache-control": "no-cache, no-store"}, timeout=60
    ).raise_for_status()


def cached(response: httpx.Response) -> int:
    tokens: int = response.json()["usage"]["prompt_tokens_details"]["cached_tokens"]
    return tokens


def wait_for_chunks(url: str, more_than: int = 0) -> int:
    """The chunks on the disk, once there are more, and no further one comes."""
    end, seen = time.monotonic() + 60, -1
    while time.monotonic() < end:
        chunks: int = httpx.get(f"{url}/admin/blocks/tiers").json()[1]["chunks"]
        if chunks == seen > more_than:
            return chunks
        seen = chunks
        time.sleep(0.5 if chunks > more_than else 0.02)
    raise AssertionError("no chunk was written")


def tier_flags(folder: Path) -> tuple[str, ...]:
    """Flags of tiers of which one is_persistent the process."""
    return ("--tier-disk", str(folder / "chunks"), "--tier-host", "64MiB", "--chunk-tokens", str(CHUNK))


def fill_the_disk(url: str) -> dict[str, str]:
    """Ask until a chunk is on the disk, at an engine that is fresh; what it said."""
    assert "tiers=" not in ask(url, "What is a block?").headers["cache-status"]
    said: dict[str, str] = ask(url, "What is a block?").json()["choices"][0]["message"]
    wait_for_chunks(url)
    assert [row["name"] for row in result("blocks", "tiers", url=url)] == ["host", "disk"]
    return said


def find_it_again(url: str, before: dict[str, str], folder: Path) -> None:
    """What an engine that was started again finds on the disk, and every surface that shows it."""
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
    warmed = result("warm", prompts, "--system", f"Warm. {SYSTEM}", "--prefix-only", url=url)
    assert (warmed["requests"], warmed["computed_not_stored"], warmed["failed"]) == (1, 1, 0)
    chunks = wait_for_chunks(url, more_than=rows["disk"]["chunks"])
    assert 'kvproxy_tier_dropped_total{tier="disk"} 0.0' in metrics
    assert "Tier            disk:" in kvproxy("top", "--interval", 0.1, url=url).stdout
    cleared = result("blocks", "clear-tier", "disk", url=url)
    assert cleared == {"tier": "disk", "models": "own", "cleared": chunks}
    assert "deleted 0 chunks from disk" in kvproxy("blocks", "clear-tier", "disk", "--models", "all", url=url).stdout
    assert not list((folder / "chunks").rglob("*.chunk"))
    assert result("blocks", "tiers", url=url)[0]["chunks"] == chunks
    unknown = kvproxy("blocks", "clear-tier", "redis", url=url)
    assert (unknown.returncode, "this proxy has host, disk" in unknown.stderr) == (3, True)
    assert kvproxy("blocks", "clear-tier", "disk", "--models", "mine", url=url).returncode == 2


def test_tiers_with_an_upstream_are_refused(tmp_path: Path) -> None:
    done = kvproxy("serve", "--upstream", "http://127.0.0.1:9", "--tier-host", "1GiB", "--data", tmp_path)
    assert done.returncode == 2
    assert "remove them" in done.stderr
