"""Whatever a client sends, it gets an error that names the fix, and the proxy goes on."""

import json
from collections.abc import Iterator
from typing import Any

import httpx
import pytest

from kvproxy.http.services import Services

TURN = {"role": "user", "content": "What is a block?"}
ASKED: dict[str, dict[str, Any]] = {
    "/v1/chat/completions": {"model": "demo", "messages": [TURN]},
    "/v1/completions": {"model": "demo", "prompt": "What"},
    "/v1/messages": {"model": "demo", "messages": [TURN], "max_tokens": 3},
    "/v1/responses": {"model": "demo", "input": "What is a block?"},
}


@pytest.fixture(scope="module")
def client(demo: tuple[str, Services]) -> Iterator[httpx.Client]:
    with httpx.Client(base_url=demo[0], timeout=60) as client:
        yield client


@pytest.mark.parametrize(
    ("path", "field", "value"),
    [
        *((path, "tools", 5) for path in ("/v1/chat/completions", "/v1/messages", "/v1/responses")),
        *((path, "tools", [5]) for path in ("/v1/chat/completions", "/v1/messages", "/v1/responses")),
        ("/v1/messages", "thinking", 5),
        ("/v1/messages", "system", 5),
        ("/v1/responses", "text", 5),
        ("/v1/responses", "reasoning", 5),
        ("/v1/chat/completions", "stream_options", 2**64),
        ("/v1/chat/completions", "top_k", 10**19),
        ("/v1/chat/completions", "top_k", True),
        ("/v1/chat/completions", "temperature", "hot"),
        ("/v1/chat/completions", "echo", 3),
        ("/v1/chat/completions", "stop", [3]),
        ("/v1/completions", "prompt", [[1], [2]]),
        ("/v1/completions", "prompt", [10**9]),
        ("/v1/completions", "logprobs", 99),
    ],
)
def test_a_field_of_another_kind_is_named(client: httpx.Client, path: str, field: str, value: Any) -> None:
    sent = json.dumps(ASKED[path] | {field: value})
    answer = client.post(path, content=sent)
    assert answer.status_code == 400, answer.text
    assert field in answer.json()["error"]["message"]


@pytest.mark.parametrize("digits", [25, 400, 5000])
def test_a_number_of_many_digits_is_refused(client: httpx.Client, digits: int) -> None:
    for field in ("seed", "temperature", "max_tokens"):
        raw = f'{{"model": "demo", "{field}": {"9" * digits}, "messages": [{{"role": "user", "content": "x"}}]}}'
        answer = client.post("/v1/chat/completions", content=raw)
        assert (answer.status_code, answer.json()["error"]["type"]) == (400, "invalid_request_error")


@pytest.mark.parametrize("priority", ["9" * 5000, "-1", "x", "1.5", "²", ""])
def test_a_priority_is_a_digit(client: httpx.Client, priority: str) -> None:
    headers = {"x-kvproxy-priority": priority.encode()}
    answer = client.post("/v1/chat/completions", json=ASKED["/v1/chat/completions"], headers=headers)
    assert (answer.status_code, answer.json()["error"]["param"]) == (400, "x-kvproxy-priority")


@pytest.mark.parametrize("id", ["9" * 5000, "x", "%C2%B2", "-1"])
def test_a_block_has_a_number(client: httpx.Client, id: str) -> None:
    assert client.get(f"/admin/blocks/{id}").status_code == 400


@pytest.mark.parametrize("limit", ["1e308", "9" * 400, "nan"])
def test_a_limit_is_a_number_that_a_list_could_have(client: httpx.Client, limit: str) -> None:
    answer = client.get("/admin/cache", params={"limit": limit})
    assert (answer.status_code, answer.json()["error"]["param"]) == (400, "limit")


def test_an_imported_id_that_is_no_text_is_refused(client: httpx.Client) -> None:
    client.post("/v1/chat/completions", json=ASKED["/v1/chat/completions"])
    line = json.loads(client.get("/admin/cache/export").text.split("\n")[0])
    for field in ("id", "prompt", "model"):
        answer = client.post("/admin/cache/import", content=json.dumps(line | {field: "\ud800"}))
        assert (answer.status_code, "line 1" in answer.json()["error"]["message"]) == (400, True)
    assert client.get("/admin/cache").status_code == 200


def test_bad_sampling_harms_nobody_else(client: httpx.Client) -> None:
    """It failed the step of everybody, and the prefix cache was emptied."""
    system = {"role": "system", "content": "You know a lot about blocks and queues. " * 20}
    body = {"model": "demo", "messages": [system, TURN], "max_tokens": 2}
    client.post("/v1/chat/completions", json=body)
    bad = {"top_k": 10**19, "top_p": 0.5, "temperature": 1}
    assert client.post("/v1/chat/completions", json=body | bad).status_code == 400
    again = client.post("/v1/chat/completions", json=body, headers={"cache-control": "no-cache"}).json()
    assert again["usage"]["prompt_tokens_details"]["cached_tokens"] > 200
