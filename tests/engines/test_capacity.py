"""Hit rates that `kvproxy simulate` and `blocks what-if` predict for pool sizes, against a real vLLM of each size."""

import json
import random
import re
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from kvproxy.settings import load_settings
from tests.commands.run import result
from tests.engines.conftest import Table
from tests.engines.running import PLAIN, Vllm, running
from tests.polling import until
from tests.servers import run_proxy

BLOCK, REQUESTS = 32, 300
WORDS = "block cache prefix token turn agent tool file test error queue pool chain store hash".split()


def chats(system: str, contexts: list[str], generator: random.Random) -> Iterator[list[str]]:
    for _ in range(REQUESTS):
        chosen = sorted(generator.sample(contexts, 2), key=contexts.index)
        yield [system, *chosen, " ".join(generator.choices(WORDS, k=generator.randint(2, 30)))]


def read_counters(url: str) -> tuple[float, float]:
    """Return the numbers of prompt tokens that vLLM found in its cache, and looked up."""
    text = httpx.get(f"{url}/metrics").text
    names = ("hits", "queries")
    hits, queries = (re.findall(rf"^vllm:prefix_cache_{name}_total{{.*}} (\S+)$", text, re.M)[0] for name in names)
    return float(hits), float(queries)


@pytest.mark.parametrize("blocks", [72, 96, 192])
def test_predictions_equal_what_vllm_reports(blocks: int, engines: Path, tmp_path: Path, table: Table) -> None:
    vllm = Vllm(engines, PLAIN, tmp_path / "vllm.log", "--num-gpu-blocks-override", str(blocks))
    settings = load_settings(data=tmp_path / "data", upstreams=[vllm.upstream()], cache={"enabled": False})
    generator = random.Random(3)
    texts = [" ".join(generator.choices(WORDS, k=generator.randint(40, 250))) for _ in range(13)]
    prompts = list(chats(texts[0], texts[1:], generator))
    trace = tmp_path / "trace.jsonl"
    with running(vllm), run_proxy(settings) as (url, _), trace.open("w") as file:
        for prompt in prompts:
            body = {"model": PLAIN.name, "prompt": " ".join(prompt)}
            tokens = httpx.post(f"{vllm.url}/tokenize", json=body).json()["tokens"]
            file.write(json.dumps({"tokens": tokens}) + "\n")
            assert httpx.post(f"{vllm.url}/v1/completions", json=body | {"max_tokens": 1}, timeout=60).is_success
        hits, queries = read_counters(vllm.url)
        for system, *rest in prompts:
            # A forecast compares whole messages.
            messages = [{"role": "system", "content": system}, *({"role": "user", "content": text} for text in rest)]
            body = {"model": PLAIN.name, "messages": messages, "max_tokens": 1}
            assert httpx.post(f"{url}/v1/chat/completions", json=body, timeout=60).is_success
        until(lambda: [row["requests"] for row in httpx.get(f"{url}/admin/blocks/what-if").json()] == [REQUESTS])
        (forecast,) = httpx.get(f"{url}/admin/blocks/what-if").json()
        all_hits, all_queries = read_counters(vllm.url)
    reported, live_reported = hits / queries, (all_hits - hits) / (all_queries - queries)
    # One block of vLLM's pool is the null block.
    options = ("--policies", "lru", "--blocks", str(blocks - 1), "--block-size", str(BLOCK))
    simulated = result("simulate", trace, *options)
    predicted = simulated["rates"]["lru"][0] * simulated["tokens"] / queries
    live = {point["name"]: point["hit_rate"] for point in forecast["points"]}["current"]
    table(f"hit rate of vLLM with {blocks} blocks, simulate", f"{reported:.4f}, predicted {predicted:.4f}")
    table(f"hit rate of vLLM with {blocks} blocks, what-if", f"{live_reported:.4f}, predicted {live:.4f}")
    assert abs(predicted - reported) <= 0.01
    # Branches of a prefix store the block of their end more than once, which a forecast in bytes does not see.
    assert abs(live - live_reported) <= 0.015
