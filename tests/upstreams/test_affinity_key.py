"""Affinity keys: requests of one conversation share a key."""

from collections import Counter
from typing import Any

import pytest

from kvproxy.apis import APIS
from kvproxy.apis.api_request import ApiRequest
from kvproxy.upstreams.affinity_key import affinity_key
from kvproxy.upstreams.routing import engine_order

SYSTEM = "You are the assistant of a shop, and you answer politely. " * 60


def request(body: dict[str, Any], api: str = "chat", tenant: str = "t", **headers: str) -> ApiRequest:
    names = {name.replace("_", "-"): value for name, value in headers.items()}
    return ApiRequest(APIS[api], {"model": "m"} | body, b"", names, tenant, "id")


def chat(*said: str) -> dict[str, Any]:
    roles = ["user", "assistant"] * len(said)
    turns = [{"role": role, "content": text} for role, text in zip(roles, said, strict=False)]
    return {"messages": [{"role": "system", "content": SYSTEM}, *turns]}


@pytest.mark.parametrize(
    ("api", "body", "headers"),
    [
        ("chat", {}, {"x_session_id": "s1"}),
        ("chat", {"prompt_cache_key": "s1"}, {}),
        ("responses", {"prompt_cache_key": "s1"}, {}),
        ("messages", {"metadata": {"user_id": "s1"}}, {}),
        ("completions", {}, {"x_session_id": "s1"}),
    ],
)
def test_requests_of_a_named_session_share_a_key(api: str, body: dict[str, Any], headers: dict[str, str]) -> None:
    keys = {affinity_key(request({**chat(text), "prompt": text, **body}, api, **headers)) for text in "abcdef"}
    assert len(keys) == 1
    # Sessions of other tenants and models have other keys.
    assert affinity_key(request({**chat("a"), **body}, api, "u", **headers)) not in keys
    assert affinity_key(request({**chat("a"), **body, "model": "n"}, api, **headers)) not in keys


@pytest.mark.parametrize("odd", [None, "", 7, ["s"], {"user_id": 3}])
def test_invalid_session_names_are_ignored(odd: Any) -> None:
    plain = affinity_key(request(chat("a")))
    assert affinity_key(request({**chat("a"), "prompt_cache_key": odd if not isinstance(odd, dict) else None})) == plain
    assert affinity_key(request({**chat("a"), "metadata": odd})) == plain


def test_conversations_with_one_system_prompt_are_distributed_and_sticky() -> None:
    begun = {text: affinity_key(request(chat(text))) for text in map(str, range(300))}
    for text, key in begun.items():
        assert affinity_key(request(chat(text, "yes", "and then?", "no", "so?"))) == key
    owners = Counter(engine_order(dict.fromkeys("abc", 1.0), key)[0] for key in begun.values())
    assert min(owners.values()) > 50
    # Responses and Messages have other fields for the system prompt.
    for api, body in (("responses", {"instructions": SYSTEM}), ("messages", {"system": SYSTEM})):
        name = "input" if api == "responses" else "messages"
        keys = {
            affinity_key(request({**body, name: [{"role": "user", "content": text}]}, api))
            for text in map(str, range(9))
        }
        assert len(keys) == 9


def test_a_growing_raw_prompt_keeps_its_key() -> None:
    begun = {text: affinity_key(request({"prompt": text + SYSTEM}, "completions")) for text in map(str, range(50))}
    assert len(set(begun.values())) == 50
    for text, key in begun.items():
        assert affinity_key(request({"prompt": f"{text}{SYSTEM} and more"}, "completions")) == key
