"""Predictions equal reports for continued responses, streams, raw prompts, salts, and small pools."""

from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.engines.chats import PredictionClient, Tally
from tests.engines.conftest import Table
from tests.engines.running import HYBRID, PLAIN, Model, Vllm, running
from tests.engines.test_predictions import evictions, settings
from tests.engines.traffic import Traffic, send
from tests.servers import run_proxy


def pool(blocks: int, *more: str) -> tuple[str, ...]:
    return ("--max-model-len", "1024", "--num-gpu-blocks-override", str(blocks), *more)


_KINDS = {
    "plain": (PLAIN, 31, pool(40)),
    "hybrid": (HYBRID, 32, pool(230)),
    "hybrid, blocks of 64": (HYBRID, 33, pool(130, "--block-size", "64")),
    # vLLM's default hashes, which cannot be computed by other programs.
    "hybrid, other hashes": (HYBRID, 34, pool(230, "--prefix-caching-hash-algo", "sha256")),
}


@pytest.mark.parametrize(("model", "number", "flags"), _KINDS.values(), ids=_KINDS)
def test_predictions_for_other_kinds_of_requests(
    model: Model,
    number: int,
    flags: tuple[str, ...],
    engines: Path,
    chats: int,
    seed: int,
    tmp_path: Path,
    table: Table,
) -> None:
    vllm = Vllm(engines, model, tmp_path / "vllm.log", *flags)
    traffic, tally = Traffic(number + seed, 600 if model is PLAIN else 1800), Tally()

    def next_request() -> tuple[str, dict[str, Any]]:
        api, body = traffic.next()
        return api, {"model": model.name} | body

    with (
        running(vllm),
        run_proxy(settings(tmp_path / "proxy", vllm)) as (url, _),
        closing(PredictionClient(url, model.name, vllm)) as prediction_client,
        httpx.Client(base_url=url, timeout=300) as client,
    ):
        for turn in range(chats // 5):
            if turn % 50 == 49:
                # Not through the proxy, which receives the event with the engine's next step.
                httpx.post(f"{vllm.url}/reset_prefix_cache").raise_for_status()
                step = {"model": model.name, "prompt": "x", "max_tokens": 1}
                httpx.post(f"{vllm.url}/v1/completions", json=step, timeout=300).raise_for_status()
            if turn % 10 == 5:
                # Concurrent requests have no predictions.
                with ThreadPoolExecutor(3) as threads:
                    list(threads.map(lambda request: send(client, *request), [next_request() for _ in range(3)]))
            prediction_client.wait_for_mirrors()
            api, body = next_request()
            told = client.post("/admin/explain", params={"api": api}, json=body).raise_for_status().json()
            reply = send(client, api, body)
            traffic.add_reply(api, body, reply.text)
            details = reply.usage["prompt_tokens_details"] or {}
            predicted, reported = told["prefix"]["matched_tokens"], details.get("cached_tokens") or 0
            tally.add(reply.usage["prompt_tokens"], predicted, reported)
            if predicted != reported:
                print(
                    f"{predicted} predicted, {reported} reported:", api, body, told["prefix"], reply.usage, flush=True
                )
        evicted = evictions(url)
    table(f"predictions, other kinds, {model.name} {' '.join(flags[2:])}", f"{tally}, {evicted} evictions seen")
    assert tally.wrong == []
