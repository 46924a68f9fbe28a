"""The next turn of a conversation finds its blocks: pinned during pauses, and with the tokens that the engine generated."""

from pathlib import Path
from typing import Any

import httpx
import pytest

from kvproxy.provider_cache_policy import PauseTimes, likely_pause
from kvproxy.settings import load_settings
from tests.polling import until
from tests.servers import run_proxy

BLOCK = 16
LONG = "What is a block, and what is a chain? " * 10


def ask(client: httpx.Client, messages: list[Any]) -> Any:
    body = {"model": "demo", "messages": messages, "max_tokens": 4, "temperature": 0}
    reply = client.post("/v1/chat/completions", json=body)
    assert reply.status_code == 200, reply.text
    return reply.json()


@pytest.mark.parametrize("pins", [True, False])
def test_a_paused_conversation_keeps_its_blocks_under_other_traffic(tmp_path: Path, pins: bool) -> None:
    rules = ({"name": "agents", "headers": {"x-agent": "yes"}, "pin_sessions": pins},)
    settings = load_settings(data=tmp_path, engine={"num_blocks": 64, "max_model_len": 400}, rules=rules)
    with (
        run_proxy(settings) as (url, _),
        httpx.Client(base_url=url, timeout=60) as client,
        httpx.Client(base_url=url, timeout=60, headers={"x-agent": "yes"}) as agent,
    ):
        messages: list[Any] = [{"role": "user", "content": LONG}]
        first = ask(agent, messages)
        if pins:
            until(lambda: len(client.get("/admin/blocks/pins").json()) == 1)
        for number in range(8):
            ask(client, [{"role": "user", "content": f"{number} {LONG}"}])
        messages += [first["choices"][0]["message"], {"role": "user", "content": "And?"}]
        second = ask(agent, messages)
        if pins:
            # The second turn replaces the pin of the first one.
            (pin,) = client.get("/admin/blocks/pins").json()
            assert 0 < pin["seconds_left"] <= likely_pause(PauseTimes().survival())
    whole_blocks = first["usage"]["prompt_tokens"] // BLOCK * BLOCK
    reused = second["usage"]["prompt_tokens_details"]["cached_tokens"]
    assert reused >= whole_blocks if pins else reused == 0


def test_a_likely_pause_follows_the_pauses_of_returning_sessions() -> None:
    times = PauseTimes(())
    for seconds in (10, 20, 400, 3_000, float("inf"), float("inf")):
        times.add(seconds)
    survival = times.survival()
    assert [likely_pause(survival, share) for share in (0.5, 0.75)] == [290.0, 580.0]
    assert 3_000 <= likely_pause(survival, 1.0) <= 3_600
    assert likely_pause(PauseTimes(()).survival()) > 0


@pytest.mark.parametrize("repairs", [False, True])
def test_the_next_turn_reuses_the_generated_tokens(tmp_path: Path, repairs: bool) -> None:
    rules = ({"name": "agents", "repair_history": repairs},)
    settings = load_settings(data=tmp_path, engine={"num_blocks": 64}, rules=rules, cache={"semantic": False})
    lost = 0
    with run_proxy(settings) as (url, _), httpx.Client(base_url=url, timeout=60) as client:
        for number in range(2):
            messages: list[Any] = [{"role": "user", "content": f"What is a block number {number}?"}]

            def ask() -> Any:
                body = {"model": "demo", "messages": messages, "max_tokens": 48, "temperature": 2, "seed": number}  # noqa: B023
                return client.post("/v1/chat/completions", json=body).json()

            first = ask()
            messages += [first["choices"][0]["message"], {"role": "user", "content": "And?"}]
            reused = ask()["usage"]["prompt_tokens_details"]["cached_tokens"]
            lost += (
                first["usage"]["prompt_tokens"] + first["usage"]["completion_tokens"] - 1
            ) // BLOCK * BLOCK - reused
    assert (lost == 0) is repairs
