"""Large bodies: refused beyond the limits of one request or of all, and otherwise no burden to other requests."""

import asyncio
import contextlib
import json
import re
import socket
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from kvproxy.http.request_bodies import FREE_BYTES
from kvproxy.http.services import Services
from kvproxy.settings.limits import LimitSettings
from tests.plain_upstream import run_plain_upstream
from tests.polling import until
from tests.requests import chat
from tests.servers import run_front
from tests.statuses import makes_entry

PATH = "/v1/chat/completions"


@pytest.fixture(scope="module")
def proxy(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[str, Services]]:
    limits = {"items": 1000, "in_flight_bytes": 2**20, "in_flight_items": 1500, "body_bytes": 500_000}
    with run_plain_upstream() as upstream:
        data: Path = tmp_path_factory.mktemp("budget")
        with run_front(data, upstream, limits=limits) as found:
            yield found


@pytest.fixture
def url(proxy: tuple[str, Services]) -> str:
    return proxy[0]


@pytest.mark.parametrize(
    "many",
    [[{"a": 1}] * 600, [[]] * 1001, {f"k{number}": 1 for number in range(1001)}, [1] * 1001, ["a"] * 1001],
    ids=["objects", "lists", "members", "numbers", "texts"],
)
def test_a_body_of_too_many_items_is_refused_before_it_is_parsed(url: str, many: object) -> None:
    answer = httpx.post(url + PATH, json=chat("Hi", documents=many))
    assert answer.status_code == 413
    assert "limits.items" in answer.json()["error"]["message"]


@pytest.mark.parametrize("announced", [True, False])
@pytest.mark.parametrize("path", [PATH, "/v1/messages", "/admin/explain"])
def test_a_body_beyond_the_limit_is_refused(url: str, announced: bool, path: str) -> None:
    data = json.dumps(chat("x" * 600_000)).encode()
    parts = (data[start : start + 1000] for start in range(0, len(data), 1000))
    answer = httpx.post(url + path, content=data if announced else parts)
    assert answer.status_code == 413
    assert "limits.body_bytes" in answer.json()["error"]["message"]
    assert httpx.get(f"{url}/health").status_code == 200
    # Each label is the name of a setting.
    limits = re.findall(r'^kvproxy_limited_total{limit="(\w+)"} [1-9]', httpx.get(f"{url}/metrics").text, re.MULTILINE)
    assert "body_bytes" in limits
    assert set(limits) <= set(LimitSettings.model_fields)


def test_a_long_text_is_no_item(url: str) -> None:
    assert httpx.post(url + PATH, json=chat("word " * 40_000)).status_code == 200


@contextlib.contextmanager
def unfinished(url: str, size: int) -> Iterator[None]:
    """A request that has sent this number of bytes of its body, and waits."""
    with socket.create_connection((httpx.URL(url).host, httpx.URL(url).port or 0)) as client:
        head = f"POST {PATH} HTTP/1.1\r\nHost: a\r\nContent-Length: {size + 1}\r\n\r\n".encode()
        client.sendall(head + b"{" + b" " * (size - 1))
        yield


def test_unfinished_bodies_share_one_budget_which_small_requests_do_not_need(
    proxy: tuple[str, Services], caplog: pytest.LogCaptureFixture
) -> None:
    url, services = proxy

    def ask(size: int) -> httpx.Response:
        return httpx.post(url + PATH, json=chat("x" * size))

    with contextlib.ExitStack() as opened:
        for _ in range(4):
            opened.enter_context(unfinished(url, 300_000))
        until(lambda: services.bodies.bytes == 4 * (300_000 - FREE_BYTES))
        refused = ask(400_001)
        assert refused.status_code == 503
        assert int(refused.headers["retry-after"]) >= 1
        assert refused.json()["error"]["message"] == "the proxy is overloaded: retry after 1 s"
        assert any("limits.in_flight_bytes" in message for message in caplog.messages)
        assert ask(10).status_code == 200
    # The budget comes back with the end of the requests.
    until(lambda: ask(400_002).status_code == 200)


def test_a_whole_answer_of_half_a_megabyte_arrives(demo: tuple[str, Services]) -> None:
    """The flight waited for its end while its writer waited for a reader."""
    body = {
        "model": "demo",
        "prompt": "What is a block of the pool, and what is it for? " * 110,
        "max_tokens": 2,
        "prompt_logprobs": 5,
    }
    answer = httpx.post(f"{demo[0]}/v1/completions", json=body, timeout=300)
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

        async with httpx.AsyncClient(timeout=300) as client:
            await asyncio.gather(ask(client), look(client))
        return done

    assert asyncio.run(race()).index("large") >= 2
