"""A long request needs no more blocks in the embedded engine than in a real vLLM."""

import random
import threading
from collections.abc import Callable
from pathlib import Path

import httpx

from kvproxy.settings import load_settings
from kvproxy.upstreams.engine_metrics import read_metrics
from tests.engines.conftest import Table
from tests.engines.running import HYBRID, Vllm, running
from tests.servers import run_proxy

BLOCKS, TOKENS, LONGEST = 700, 3000, 4096


def used_blocks(url: str, model: str, prompt: list[int], used: Callable[[], int]) -> list[int]:
    seen: list[int] = []
    over = threading.Event()

    def look() -> None:
        while not over.wait(0.01):
            seen.append(used())

    body = {"model": model, "prompt": prompt, "max_tokens": 7, "temperature": 0, "ignore_eos": True}
    watcher = threading.Thread(target=look)
    watcher.start()
    try:
        httpx.post(f"{url}/v1/completions", json=body, timeout=600).raise_for_status()
    finally:
        over.set()
        watcher.join()
    return [blocks for blocks in seen if blocks]


def test_a_long_request_needs_no_more_blocks_than_in_vllm(engines: Path, tmp_path: Path, table: Table) -> None:
    sizes = ("--max-model-len", str(LONGEST), "--num-gpu-blocks-override", str(BLOCKS))
    vllm = Vllm(engines, HYBRID, tmp_path / "vllm.log", *sizes)
    own = load_settings(
        data=tmp_path / "data",
        model=str(HYBRID.path(engines)),
        cache={"enabled": False},
        engine={"block_size": 32, "num_blocks": BLOCKS, "max_model_len": LONGEST, "dtype": "bfloat16"},
    )
    chance = random.Random(3)
    prompt = [chance.randrange(1000, 200_000) for _ in range(TOKENS)]

    def theirs() -> int:
        figures = read_metrics(httpx.get(f"{vllm.url}/metrics").raise_for_status().text)
        assert figures is not None
        return round((figures.usage or 0.0) * (BLOCKS - 1))

    with running(vllm), run_proxy(own) as (url, _), httpx.Client(base_url=url) as client:

        def ours() -> int:
            used: int = client.get("/admin/blocks/stats").raise_for_status().json()["used"]
            return used

        found = (
            used_blocks(vllm.url, HYBRID.name, prompt, theirs),
            used_blocks(url, str(HYBRID.path(engines)), prompt, ours),
        )
        block = client.get("/admin/blocks/stats").raise_for_status().json()["block_bytes"]
    (most, last), (our_most, our_last) = [(max(seen), seen[-1]) for seen in found]
    table(
        f"{TOKENS:,} tokens of Gemma hold",
        f"{our_most} blocks at most and {our_last} at the end ({our_last * block / 2**20:.1f} MiB); vLLM {most} and {last}",
    )
    assert our_last <= last
    assert our_most <= most
