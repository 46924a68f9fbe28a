"""Breakpoints of requests to Anthropic: the rules of the provider, and equal prompts."""

import json
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from kvproxy.apis import APIS
from kvproxy.apis.api_request import ApiRequest
from kvproxy.apis.json import dumps
from kvproxy.apis.request_directives import RequestDirectives
from kvproxy.flow.prepare.breakpoints import with_breakpoints
from kvproxy.settings.rules import RuleSettings
from tests.anthropic_upstream import _blocks, _broken_rule

LONG = "word " * 2_000
MODEL = "claude-test"


def request(body: dict[str, Any], lifetime: Any = "5m") -> ApiRequest:
    control = RequestDirectives(rule=RuleSettings(name="r", breakpoints=lifetime))
    return ApiRequest(APIS["messages"], body, dumps(body), {}, "public", "1", control=control)


def marks(body: dict[str, Any]) -> list[str]:
    found = [f"tools.{n}" for n, tool in enumerate(body.get("tools", [])) if "cache_control" in tool]
    if isinstance(body.get("system"), list):
        found += [f"system.{n}" for n, block in enumerate(body["system"]) if "cache_control" in block]
    for number, message in enumerate(body["messages"]):
        if isinstance(message["content"], list):
            found += [
                f"messages.{number}.{n}" for n, block in enumerate(message["content"]) if "cache_control" in block
            ]
    return found


def unmarked(value: Any) -> Any:
    """The body as the model reads it."""
    if isinstance(value, dict):
        plain = {name: unmarked(each) for name, each in value.items() if name != "cache_control"}
        for name in ("content", "system"):
            if isinstance(plain.get(name), str):
                plain[name] = [{"type": "text", "text": plain[name]}]
        return plain
    return [unmarked(each) for each in value] if isinstance(value, list) else value


def chat(*messages: Any, **more: Any) -> dict[str, Any]:
    roles = ("user", "assistant")
    turns = [{"role": roles[number % 2], "content": content} for number, content in enumerate(messages)]
    return {
        "model": MODEL,
        "max_tokens": 9,
        "system": LONG,
        "tools": [{"name": "t", "description": LONG}],
        "messages": turns,
    } | more


def test_tools_system_and_the_ends_of_both_requests_are_marked() -> None:
    changed = with_breakpoints(request(chat("one", "answer", "two")))
    assert marks(changed.body) == ["tools.0", "system.0", "messages.0.0", "messages.2.0"]
    assert changed.body["system"][0]["cache_control"] == {"type": "ephemeral"}  # type: ignore[index,call-overload]
    assert "breakpoints:1 tools + 1 system + 2 messages" in changed.control.tags
    assert json.loads(changed.raw) == changed.body


def test_without_a_rule_or_a_long_prompt_nothing_changes() -> None:
    for unchanged in (
        request(chat("one"), None),
        request({"model": MODEL, "max_tokens": 9, "messages": [{"role": "user", "content": "Hi"}]}),
        request(chat("one", system="short", tools=[], model="claude-opus-4-5")),
    ):
        assert with_breakpoints(unchanged) is unchanged


def test_badly_placed_breakpoints_are_corrected() -> None:
    mark = {"cache_control": {"type": "ephemeral"}}
    many = [{"type": "text", "text": f"{LONG}{number}", **mark} for number in range(5)]
    body = chat(
        "one", [{"type": "thinking", "thinking": "x", "signature": "s", **mark}], [{"type": "text", "text": "", **mark}]
    )
    changed = with_breakpoints(request(body | {"system": many}, "1h")).body
    # A breakpoint for the whole body is one of the four.
    whole = with_breakpoints(request(body | {"system": many, "cache_control": {"type": "ephemeral"}})).body
    assert len(marks(whole)) == 3
    assert marks(changed) == ["system.2", "system.3", "system.4", "messages.0.0"]
    assert _broken_rule(list(_blocks(changed))) is None
    assert all(block["cache_control"]["ttl"] == "1h" for block, _ in _blocks(changed) if "cache_control" in block)


def test_well_placed_breakpoints_of_the_client_stay() -> None:
    body = with_breakpoints(request(chat("one", "answer", "two"))).body
    assert with_breakpoints(request(body)).body is body


_block = st.sampled_from(
    [
        {"type": "text", "text": ""},
        {"type": "text", "text": LONG},
        {"type": "text", "text": "a"},
        {"type": "thinking", "thinking": "t", "signature": "s"},
        {
            "type": "tool_result",
            "tool_use_id": "1",
            "content": [{"type": "text", "text": "x", "cache_control": {"type": "ephemeral"}}],
        },
        {"type": "tool_use", "id": "1", "name": "t", "input": {"a": 1}},
    ]
)
_marked = st.builds(
    lambda block, mark: {**block, "cache_control": mark} if mark else block,
    _block,
    st.sampled_from([None, None, {"type": "ephemeral"}, {"type": "ephemeral", "ttl": "1h"}]),
)
_content = st.one_of(st.sampled_from(["", "hi", LONG]), st.lists(_marked, max_size=4))


@given(
    st.lists(_content, min_size=1, max_size=6),
    _content,
    st.lists(
        st.sampled_from([{"name": "a"}, {"name": "b", "description": LONG}, {"name": "c", "defer_loading": True}]),
        max_size=3,
    ),
    st.sampled_from(["5m", "1h"]),
)
def test_the_rules_of_the_provider_hold_and_the_prompt_is_unchanged(
    contents: Any, system: Any, tools: Any, lifetime: str
) -> None:
    body = chat(*contents, system=system, tools=tools)
    changed = with_breakpoints(request(body, lifetime))
    if changed.body is not body:
        assert _broken_rule(list(_blocks(changed.body))) is None
    assert unmarked(changed.body) == unmarked(body)
