"""Large requests and answers: they arrive whole, or are refused, and hold nobody else up."""

import asyncio

import httpx

from kvproxy.http.services import Services
from tests.statuses import makes_entry


def test_a_whole_answer_of_half_a_megabyte_arrives(demo: tuple[str, Services]) -> None:
    """The flight waited for its end while its writer waited for a reader."""
    body = {
        "model": "demo",
        "prompt": "What is a block of the pool, and what is it for? " * 110,
        "max_tokens": 2,
        "prompt_logprobs": 5,
    }
    answer = httpx.post(f"{demo[0]}/v1/completions", json=body, timeout=120)
    assert answer.status_code == 200
    assert len(answer.content) > 300_000
    assert makes_entry(answer.headers["cache-status"])
    assert len(answer.json()["choices"][0]["prompt_logprobs"]) == answer.json()["usage"]["prompt_tokens"]


def test_a_prompt_of_megabytes_holds_nobody_up(demo: tuple[str, Services]) -> None:
    """It held the event loop for seconds, so that nothing else was answered before it."""

    async def race() -> list[str]:
        done: list[str] = []

        async def ask(client: httpx.AsyncClient) -> None:
            turn = {"role": "user", "content": "blocks and queues " * 250_000}
            body = {"model": "demo", "messages": [turn]}
            answer = await client.post(f"{demo[0]}/v1/chat/completions", json=body)
            assert answer.status_code == 400
            done.append("large")

        async def look(client: httpx.AsyncClient) -> None:
            while "large" not in done:
                await client.get(f"{demo[0]}/health")
                done.append("health")

        async with httpx.AsyncClient(timeout=120) as client:
            await asyncio.gather(ask(client), look(client))
        return done

    assert asyncio.run(race()).index("large") >= 2
