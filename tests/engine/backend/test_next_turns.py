"""The next turn of a conversation finds its blocks: pinned during pauses, and with the tokens that the engine generated."""

from collections.abc import Iterator
from typing import Any

import httpx
import pytest

from kvproxy.providers.cache_policy import PauseTimes, pause_quantile
from kvproxy.settings import load_settings
from tests.polling import until
from tests.servers import run_proxy

BLOCK = 16
LONG = "What is a block, and what is a chain? " * 10


@pytest.fixture(scope="module")
def client(tmp_path_factory: pytest.TempPathFactory) -> Iterator[httpx.Client]:
    """Requests with `x-agent: pins` pin their sessions, and requests with `x-agent: repairs` repair their history."""
    rules = (
        {"name": "pins", "headers": {"x-agent": "pins"}, "pin_sessions": True},
        {"name": "repairs", "headers": {"x-agent": "repairs"}, "repair_history": True},
    )
    settings = load_settings(
        data=tmp_path_factory.mktemp("data"),
        engine={"num_blocks": 64, "max_model_len": 400},
        rules=rules,
        cache={"enabled": False},
    )
    with run_proxy(settings) as (url, _), httpx.Client(base_url=url, timeout=300) as client:
        yield client


def ask(client: httpx.Client, agent: str, messages: list[Any], **more: Any) -> Any:
    body = {"model": "demo", "messages": messages, "max_tokens": 4, "temperature": 0} | more
    reply = client.post("/v1/chat/completions", json=body, headers={"x-agent": agent})
    assert reply.status_code == 200, reply.text
    return reply.json()


def user(text: str) -> dict[str, str]:
    return {"role": "user", "content": text}


def test_a_paused_conversation_keeps_its_blocks_under_other_traffic(client: httpx.Client) -> None:
    chats = {agent: [user(f"{agent} {LONG}")] for agent in ("pins", "plain")}
    first = {agent: ask(client, agent, messages) for agent, messages in chats.items()}
    until(lambda: len(client.get("/admin/blocks/pins").json()) == 1)
    for number in range(8):
        ask(client, "plain", [user(f"{number} {LONG}")])
    reused = {}
    for agent, messages in chats.items():
        answer = ask(client, agent, [*messages, first[agent]["choices"][0]["message"], user("And?")])
        reused[agent] = answer["usage"]["prompt_tokens_details"]["cached_tokens"]
    assert reused["pins"] >= first["pins"]["usage"]["prompt_tokens"] // BLOCK * BLOCK
    assert reused["plain"] == 0
    # The second turn replaces the pin of the first one.
    (pin,) = client.get("/admin/blocks/pins").json()
    assert 0 < pin["seconds_left"] <= pause_quantile(PauseTimes().survival())


def test_a_likely_pause_follows_the_pauses_of_returning_sessions() -> None:
    times = PauseTimes(())
    for seconds in (10, 20, 400, 3_000, float("inf"), float("inf")):
        times.add(seconds)
    survival = times.survival()
    assert [pause_quantile(survival, share) for share in (0.5, 0.75)] == [290.0, 580.0]
    assert 3_000 <= pause_quantile(survival, 1.0) <= 3_600
    assert pause_quantile(PauseTimes(()).survival()) > 0


def test_the_next_turn_reuses_the_generated_tokens(client: httpx.Client) -> None:
    # In this order: the second turn of a plain conversation caches the tokens of the answer's text.
    for agent in ("repairs", "plain"):
        lost = 0
        for number in range(2):
            sampling = {"max_tokens": 48, "temperature": 2, "seed": number}
            messages = [user(f"What is a block number {number}?")]
            first = ask(client, agent, messages, **sampling)
            second = ask(client, agent, [*messages, first["choices"][0]["message"], user("And?")], **sampling)
            tokens = first["usage"]["prompt_tokens"] + first["usage"]["completion_tokens"]
            lost += (tokens - 1) // BLOCK * BLOCK - second["usage"]["prompt_tokens_details"]["cached_tokens"]
        assert (lost == 0) is (agent == "repairs")
