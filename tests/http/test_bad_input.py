"""Whatever a client sends, it gets an error that names the fix, and the proxy goes on."""

import json
from collections.abc import Iterator
from typing import Any

import httpx
import pytest

from kvproxy.http.services import Services

TURN = {"role": "user", "content": "What is a block?"}
LONG = "You know a lot about blocks and queues. " * 20
CHAT, COMPLETIONS, MESSAGES, RESPONSES = "/v1/chat/completions", "/v1/completions", "/v1/messages", "/v1/responses"
ASKED: dict[str, dict[str, Any]] = {
    CHAT: {"model": "demo", "messages": [TURN], "max_tokens": 2},
    COMPLETIONS: {"model": "demo", "prompt": LONG, "max_tokens": 1},
    MESSAGES: {"model": "demo", "messages": [TURN], "max_tokens": 3},
    RESPONSES: {"model": "demo", "input": "What is a block?"},
}
FIELDS: list[tuple[str, str, Any]] = [
    *((path, "tools", tools) for path in (CHAT, MESSAGES, RESPONSES) for tools in (5, [5])),
    (CHAT, "response_format", {"type": "regex"}),
    (RESPONSES, "text", 5),
    (CHAT, "stream_options", 2**64),
    (CHAT, "model", "gpt-9"),
    (COMPLETIONS, "prompt", [10**9]),
]
REFUSED = [
    *((*case, case[1]) for case in FIELDS),
    (CHAT, "max_tokens", 100_000, "fit"),
    (CHAT, "messages", [{"role": "user", "content": "word " * 20_000}], "fit"),
    (CHAT, "messages", [{"role": "user", "content": [{"type": "image_url"}]}], "text"),
]


@pytest.fixture(scope="module")
def client(demo: tuple[str, Services]) -> Iterator[httpx.Client]:
    with httpx.Client(base_url=demo[0], timeout=300) as client:
        # Fills the prefix cache; so small a temperature is greedy.
        tiny = ASKED[COMPLETIONS] | {"temperature": 1e-320}
        assert client.post(COMPLETIONS, json=tiny).status_code == 200
        yield client


def cached(client: httpx.Client) -> int:
    return int(client.get("/admin/blocks/stats").json()["cached"])


@pytest.mark.parametrize(("path", "field", "value", "word"), REFUSED)
def test_a_field_that_cannot_be_honoured_is_named_and_harms_nobody_else(
    client: httpx.Client, path: str, field: str, value: Any, word: str
) -> None:
    """Such a field must not fail the step of all requests, or empty the prefix cache."""
    before = cached(client)
    answer = client.post(path, content=json.dumps(ASKED[path] | {field: value}))
    error = answer.json()["error"]
    assert (answer.status_code, error["type"]) == (404 if field == "model" else 400, "invalid_request_error")
    assert word in error["message"]
    assert error.get("param") in (field, None)
    assert cached(client) >= before > 0


@pytest.mark.parametrize("digits", [25, 400, 5000])
def test_a_number_of_many_digits_is_refused(client: httpx.Client, digits: int) -> None:
    for field in ("seed", "temperature", "max_tokens"):
        raw = f'{{"model": "demo", "{field}": {"9" * digits}, "messages": [{{"role": "user", "content": "x"}}]}}'
        answer = client.post(CHAT, content=raw)
        assert (answer.status_code, answer.json()["error"]["type"]) == (400, "invalid_request_error")


@pytest.mark.parametrize("id", ["9" * 5000, "x", "%C2%B2", "-1"])
def test_a_block_has_a_number(client: httpx.Client, id: str) -> None:
    assert client.get(f"/admin/blocks/{id}").status_code == 400


def test_tools_that_the_model_cannot_call_are_named(client: httpx.Client) -> None:
    """Coding agents send tools with each request; only a required call makes their absence a wrong answer."""
    tools = [{"type": "function", "function": {"name": "f", "parameters": {}}}]
    answer = client.post(CHAT, json=ASKED[CHAT] | {"tools": tools})
    assert (answer.status_code, "tools" in answer.headers["x-kvproxy-ignored"]) == (200, True)
    assert client.post(CHAT, json=ASKED[CHAT] | {"tools": tools, "tool_choice": "required"}).status_code == 400


@pytest.mark.parametrize(
    "query",
    [
        *(f"bytes_per_token={value}" for value in ("2.2e-309", "3e-247", "0", "1e300", "inf", "nan", "-1")),
        *(f"tier={value}" for value in ("9" * 400, "9" * 400 + "GiB", "9" * 30 + "TiB", "-1", "1e400")),
    ],
)
def test_a_forecast_for_impossible_sizes_is_refused(client: httpx.Client, query: str) -> None:
    refused = client.get(f"/admin/blocks/what-if?{query}")
    assert refused.status_code == 400
    assert query.partition("=")[0] in refused.json()["error"]["message"] or "size" in refused.json()["error"]["message"]
