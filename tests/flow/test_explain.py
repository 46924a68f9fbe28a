"""What is told of a request beforehand is what happens to it: for each API, tenant and way to write it."""

from collections.abc import Iterator
from typing import Any

import httpx
import pytest

from kvproxy.http.services import Services

SYSTEM = "You know all about caches. " * 10
QUESTION = "What is a block table?"
BODIES: dict[str, tuple[str, dict[str, Any]]] = {
    "chat": (
        "/v1/chat/completions",
        {"messages": [{"role": "system", "content": SYSTEM}, {"role": "user", "content": QUESTION}], "max_tokens": 4},
    ),
    "completions": ("/v1/completions", {"prompt": SYSTEM + QUESTION, "max_tokens": 4}),
    "messages": (
        "/v1/messages",
        {"system": SYSTEM, "messages": [{"role": "user", "content": QUESTION}], "max_tokens": 4},
    ),
    "responses": ("/v1/responses", {"instructions": SYSTEM, "input": QUESTION, "max_output_tokens": 4}),
}


@pytest.fixture(scope="module")
def client(demo: tuple[str, Services]) -> Iterator[httpx.Client]:
    with httpx.Client(base_url=demo[0], timeout=60) as client:
        yield client


def told(client: httpx.Client, api: str, body: dict[str, Any], **headers: str) -> dict[str, Any]:
    answer = client.post("/admin/explain", params={"api": api}, json=body, headers=headers)
    assert answer.status_code == 200, answer.text
    found: dict[str, Any] = answer.json()
    return found


@pytest.mark.parametrize("api", BODIES)
def test_it_is_true_for_every_api(client: httpx.Client, api: str) -> None:
    path, fields = BODIES[api]
    body = {"model": "demo", "temperature": 0} | fields
    key = {"authorization": f"Bearer {api}"}
    before = told(client, api, body, **key)
    assert (before["exact"]["hit"], before["api"]) == (False, api)
    client.post(path, json=body, headers=key)
    for temperature in (0, 0.0):
        after = told(client, api, body | {"temperature": temperature}, **key)
        assert (after["layer"], after["exact"]["hit"]) == ("exact", True)
        hit = client.post(path, json=body | {"temperature": temperature}, headers=key)
        assert 'detail="exact"' in hit.headers["cache-status"]
    assert after["prefix"]["matched_tokens"] > 30


def test_it_knows_who_asks(client: httpx.Client) -> None:
    path, fields = BODIES["chat"]
    body = {"model": "demo", "seed": 7} | fields
    client.post(path, json=body, headers={"x-api-key": "mine"})
    mine = told(client, "chat", body, **{"x-api-key": "mine"})
    assert (mine["layer"], mine["other_tenants"]) == ("exact", False)
    for headers in ({}, {"authorization": "Bearer other"}):
        theirs = told(client, "chat", body, **headers)
        assert (theirs["exact"]["hit"], theirs["other_tenants"]) == (False, True)
        assert theirs["tenant"] != mine["tenant"]
    assert not told(client, "chat", body | {"seed": 8})["other_tenants"]


def test_after_a_semantic_hit_it_finds_the_neighbour(client: httpx.Client) -> None:
    def body(question: str) -> dict[str, Any]:
        return {"model": "demo", "temperature": 0, "messages": [{"role": "user", "content": question}]}

    client.post("/v1/chat/completions", json=body("What is a hash chain?"))
    hit = client.post("/v1/chat/completions", json=body("Can you tell me what a hash chain is?"))
    assert "semantic" in hit.headers["cache-status"]
    after = told(client, "chat", body("Can you tell me what a hash chain is?") | {"temperature": 0.0})
    assert after["layer"] == "semantic"
    neighbours = after["semantic"]["neighbours"]
    assert [each["prompt"] for each in neighbours if each["served"]] == ["What is a hash chain?"]
    figures = [each[name] for each in neighbours for name in ("similarity", "score", "error") if each[name] is not None]
    assert figures == [round(figure, 4) for figure in figures]


def test_an_api_that_there_is_not_is_named(client: httpx.Client) -> None:
    answer = client.post("/admin/explain", params={"api": "speech"}, json={})
    assert (answer.status_code, answer.json()["error"]["param"]) == (400, "api")
