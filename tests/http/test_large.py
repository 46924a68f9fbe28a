"""Large requests and answers: they arrive whole, or are refused, and hold nobody else up."""

import asyncio
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from kvproxy.http.services import Services
from kvproxy.settings import load_settings
from tests.servers import run_proxy
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


@pytest.fixture(scope="module")
def narrow(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A proxy that takes bodies of 10,000 bytes."""
    data: Path = tmp_path_factory.mktemp("narrow")
    with run_proxy(
        load_settings(
            data=data, upstream="http://127.0.0.1:9", cache={"semantic": False}, limits={"body_bytes": 10_000}
        )
    ) as (url, _):
        yield url


@pytest.mark.parametrize("announced", [True, False])
@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/messages", "/admin/explain"])
def test_a_body_beyond_the_limit_is_refused(narrow: str, announced: bool, path: str) -> None:
    data = b'{"model": "' + b"x" * 20_000 + b'"}'
    content = data if announced else (data[start : start + 1000] for start in range(0, len(data), 1000))
    answer = httpx.post(f"{narrow}{path}", content=content)
    assert answer.status_code == 413
    assert "limits.body_bytes" in answer.json()["error"]["message"]
    assert httpx.get(f"{narrow}/health").status_code == 200


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
