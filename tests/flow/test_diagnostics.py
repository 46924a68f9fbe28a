"""What Anthropic's and OpenAI's clients may ask of a prompt's reuse is answered where the embedded engine computes."""

import copy
from typing import Any

import httpx
import orjson
import pytest

from kvproxy.http.services import Services

SYSTEM = "You are a helper. Today is 2026-11-20."
TURNS = [{"role": "user", "content": "Hi"}, {"role": "assistant", "content": "Hello"}, {"role": "user", "content": "?"}]


def messages(url: str, previous: str | None, **fields: Any) -> dict[str, Any]:
    body = {"model": "demo", "max_tokens": 2, "system": SYSTEM, "messages": TURNS}
    body |= {"diagnostics": {"previous_message_id": previous}} | fields
    answer = httpx.post(f"{url}/v1/messages", json=body, timeout=60)
    assert answer.status_code == 200, answer.text
    if not fields.get("stream"):
        whole: dict[str, Any] = answer.json()
        return whole
    events = [orjson.loads(line[6:]) for line in answer.text.splitlines() if line.startswith("data: ")]
    assert events[-1]["type"] == "message_stop"
    found: dict[str, Any] = next(each["message"] for each in events if each["type"] == "message_start")
    return found


def later(turns: list[dict[str, Any]], place: int) -> list[dict[str, Any]]:
    changed = copy.deepcopy(turns)
    changed[place]["content"] += " there"
    return changed


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(
    ("fields", "cause"),
    [
        ({}, None),
        ({"messages": [*TURNS, {"role": "assistant", "content": "!"}, {"role": "user", "content": "And?"}]}, None),
        ({"system": SYSTEM.replace("20.", "21.")}, "system_changed"),
        ({"messages": later(TURNS, 0)}, "messages_changed"),
        ({"messages": later(TURNS, 2)}, "messages_changed"),
        ({"thinking": {"type": "disabled"}}, "unavailable"),
    ],
)
def test_messages(demo: tuple[str, Services], fields: dict[str, Any], cause: str | None, stream: bool) -> None:
    url, _ = demo
    first = messages(url, None)
    assert first["diagnostics"] is None
    told = messages(url, first["id"], stream=stream, **fields)["diagnostics"]
    if cause is None:
        assert told is None
        return
    assert told["cache_miss_reason"]["type"] == cause
    if cause != "unavailable":
        assert told["cache_miss_reason"]["cache_missed_input_tokens"] > 0


def test_messages_of_nobody_and_of_others(demo: tuple[str, Services]) -> None:
    url, _ = demo
    unknown = messages(url, "msg_none")["diagnostics"]
    assert unknown == {"cache_miss_reason": {"type": "previous_message_not_found"}}
    mine = messages(url, None)["id"]
    body = {"model": "demo", "max_tokens": 2, "messages": TURNS, "diagnostics": {"previous_message_id": mine}}
    theirs = httpx.post(f"{url}/v1/messages", json=body, headers={"x-api-key": "another"}, timeout=60).json()
    assert theirs["diagnostics"] == unknown
    del body["diagnostics"]
    assert "diagnostics" not in httpx.post(f"{url}/v1/messages", json=body, timeout=60).json()


def test_responses(demo: tuple[str, Services]) -> None:
    url, _ = demo

    def ask(compared: str | None, **fields: Any) -> dict[str, Any]:
        options = {"prompt_cache_options": {"comparison_response_id": compared}} if compared else {}
        body = {"model": "demo", "instructions": SYSTEM, "input": "What is a block?", "max_output_tokens": 2}
        answer = httpx.post(f"{url}/v1/responses", json=body | options | fields, timeout=60)
        assert answer.status_code == 200, answer.text
        whole: dict[str, Any] = answer.json()
        return whole

    first = ask(None)
    assert "prompt_cache_diagnostics" not in first
    assert ask(first["id"])["prompt_cache_diagnostics"] == {"type": "cache_hit"}
    assert ask("resp_none")["prompt_cache_diagnostics"] == {"type": "comparison_response_not_found"}
    for cause, fields in {
        "prompt_cache_key_changed": {"prompt_cache_key": "k"},
        "input_changed": {"input": "What is a chain?"},
    }.items():
        told = ask(first["id"], **fields)["prompt_cache_diagnostics"]
        assert (told["type"], told["reason"]) == ("cache_miss", cause)
        assert told["cache_missed_tokens"] > 0
