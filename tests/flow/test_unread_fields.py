"""Fields and ids that no model reads change neither keys nor explanations, and ids that a provider reads do."""

import uuid
from typing import Any

import pytest

from kvproxy.apis.api import ApiName
from kvproxy.flow.cache_keys import cache_key
from kvproxy.flow.conversation_digests import conversation_digests
from kvproxy.journal.request_regions import regions_of
from tests.requests import api_request, chat


def exact(body: dict[str, Any], api: ApiName = "responses") -> str:
    return cache_key(api_request(body, api), "x").exact


def codex() -> dict[str, Any]:
    """A request in Codex's form, with new random ids."""
    session, call = str(uuid.uuid4()), f"call_{uuid.uuid4()}"

    def item(role: str, text: str) -> dict[str, Any]:
        content = [{"type": "input_text", "text": text}]
        return {"type": "message", "id": f"msg_{uuid.uuid4()}", "role": role, "content": content}

    reasoning = {"type": "reasoning", "id": f"rs_{uuid.uuid4()}", "summary": [], "encrypted_content": "gAAA"}
    function = {"type": "function_call", "id": f"fc_{uuid.uuid4()}", "name": "exec", "arguments": "{}", "call_id": call}
    output = {"type": "function_call_output", "id": f"fco_{uuid.uuid4()}", "call_id": call, "output": "a.py"}
    return {
        "model": "gpt",
        "instructions": "You are a coding agent.",
        "input": [item("developer", "Rules"), item("user", "List the files"), reasoning, function, output],
        "client_metadata": {"session": session, "turn_started_at_unix_ms": session},
        "prompt_cache_key": session,
        "prompt_cache_options": {"mode": "implicit"},
        "safety_identifier": session,
        "metadata": {"run": session},
        "include": ["reasoning.encrypted_content"],
        "store": False,
        "stream": True,
    }


def test_equal_requests_of_codex_have_one_key_and_one_conversation() -> None:
    first, second = codex(), codex()
    assert exact(first) == exact(second)
    requests = [api_request(body, "responses") for body in (first, second)]
    assert [*conversation_digests(requests[0])] == [*conversation_digests(requests[1])]
    # The ledger and `explain` compare these regions.
    regions = [regions_of(cache_key(request, "x").parts) for request in requests]
    assert regions[1].changes_since(regions[0]) == []
    changed = second | {"input": [*second["input"][:-1], {**second["input"][-1], "output": "b.py"}]}
    assert exact(first) != exact(changed)


@pytest.mark.parametrize(
    "item",
    [
        {"type": "item_reference", "id": "a"},
        {"id": "a"},
        {"type": "image_generation_call", "id": "a", "status": "completed"},
        {"type": "reasoning", "id": "a", "summary": []},
        {"type": "item_of_next_year", "id": "a"},
    ],
    ids=lambda item: str(item.get("type")),
)
def test_an_id_stays_if_the_provider_may_have_content_under_it(item: dict[str, Any]) -> None:
    bodies = [{"model": "m", "input": [{**item, "id": id}, {"role": "user", "content": "x"}]} for id in "ab"]
    assert exact(bodies[0]) != exact(bodies[1])


def test_the_order_of_outputs_counts_if_their_calls_are_in_the_previous_response() -> None:
    def body(*ids: str, **more: Any) -> dict[str, Any]:
        texts = zip(ids, ("12 degrees", "13 degrees"), strict=True)
        outputs = [{"type": "function_call_output", "call_id": id, "output": text} for id, text in texts]
        return {"model": "m", "input": outputs, **more}

    assert exact(body("a", "b", previous_response_id="r")) != exact(body("b", "a", previous_response_id="r"))
    assert exact(body("a", "b", previous_response_id="r")) == exact(body("a", "b", previous_response_id="r"))


def test_approvals_refer_to_their_request() -> None:
    def body(first: str, second: str, approved: str) -> dict[str, Any]:
        asked = [{"type": "mcp_approval_request", "id": id, "name": "f", "arguments": id[0]} for id in (first, second)]
        return {
            "model": "m",
            "input": [*asked, {"type": "mcp_approval_response", "approval_request_id": approved, "approve": True}],
        }

    assert exact(body("a-1", "b-1", "a-1")) == exact(body("a-2", "b-2", "a-2")) != exact(body("a-1", "b-1", "b-1"))


@pytest.mark.parametrize("api", ["chat", "responses", "messages"])
def test_markers_of_the_providers_cache_are_not_read(api: ApiName) -> None:
    kind = "input_text" if api == "responses" else "text"
    name = "input" if api == "responses" else "messages"
    for marker in ("cache_control", "prompt_cache_breakpoint"):
        bodies = [
            {"model": "m", name: [{"role": "user", "content": [{"type": kind, "text": "x", **more}]}]}
            for more in ({}, {marker: {"type": "ephemeral"}})
        ]
        assert exact(bodies[0], api) == exact(bodies[1], api)


def test_a_text_equals_one_text_block_in_messages_only() -> None:
    def bodies(*more: dict[str, Any]) -> list[dict[str, Any]]:
        return [
            chat("x", messages=[{"role": "user", "content": each}]) for each in ("x", [{"type": "text", "text": "x"}])
        ]

    assert len({exact(body, "messages") for body in bodies()}) == 1
    assert len({exact(body, "chat") for body in bodies()}) == 2


@pytest.mark.parametrize("value", [False, [], {}, None])
@pytest.mark.parametrize("api", ["chat", "messages"])
def test_a_field_named_as_the_last_turn_is_in_the_namespace(api: ApiName, value: Any) -> None:
    keys = [cache_key(api_request(chat("x") | more, api), "x") for more in ({}, {"last": value}, {"last turn": value})]
    assert len({key.semantic.namespace for key in keys}) == (1 if value is None else 3)
