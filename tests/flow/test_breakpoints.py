"""Breakpoints of requests to Anthropic: the rules of the provider, and equal prompts."""

import json
import typing
from typing import Any

from anthropic.types.beta import BetaContentBlockParam
from hypothesis import given
from hypothesis import strategies as st

from kvproxy.apis import APIS
from kvproxy.apis.api_request import ApiRequest
from kvproxy.apis.json import dumps
from kvproxy.apis.request_directives import RequestDirectives
from kvproxy.flow.prepare.breakpoints import UNMARKED_BLOCKS, with_breakpoints
from kvproxy.settings.rules import RuleSettings
from tests.anthropic_upstream import broken_rule

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
    assert broken_rule(changed) is None
    assert json.dumps(changed).count('"cache_control"') == json.dumps(changed).count('"ttl": "1h"') == 4


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
        assert broken_rule(changed.body) is None
    assert unmarked(changed.body) == unmarked(body)


def test_the_end_of_the_tools_replaces_a_mark_of_the_client_shortly_after_it() -> None:
    mark = {"cache_control": {"type": "ephemeral"}}
    system = [
        {"type": "text", "text": "x-anthropic-billing-header: cc_version=2"},
        {"type": "text", "text": "You are an agent.", **mark},
        {"type": "text", "text": LONG, **mark},
    ]
    body = chat("one", "answer", [{"type": "text", "text": "two", **mark}], system=system)
    assert marks(with_breakpoints(request(body)).body) == ["tools.0", "system.2", "messages.0.0", "messages.2.0"]


def test_blocks_without_cache_control_in_the_sdk_have_no_mark() -> None:
    types = [kind for kind in typing.get_args(BetaContentBlockParam) if hasattr(kind, "__required_keys__")]
    unmarked_types = {
        name
        for hints in map(typing.get_type_hints, types)
        if "cache_control" not in hints
        for name in typing.get_args(hints["type"])
    }
    # `reasoning` is a type of other APIs.
    assert unmarked_types == UNMARKED_BLOCKS - {"reasoning"}
    switch = {"type": "fallback", "from": {"model": "a"}, "to": {"model": "b"}}
    body = chat(LONG, [{"type": "text", "text": LONG}, switch], LONG, [switch], LONG)
    found = with_breakpoints(request(body)).body
    assert "messages.4.0" in marks(found)
    assert [json.dumps(found).count(json.dumps(block)) for block in (switch, {"type": "text", "text": LONG})] == [2, 1]


def test_a_request_that_nobody_continues_has_no_mark_at_its_end() -> None:
    mark = {"cache_control": {"type": "ephemeral"}}
    body = chat("one", "answer", [{"type": "text", "text": "Summarise.", **mark}], cache_control={"type": "ephemeral"})
    changed = with_breakpoints(request(body), is_continued=False)
    assert marks(changed.body) == ["tools.0", "system.0", "messages.0.0"]
    assert "cache_control" not in changed.body
    title = with_breakpoints(
        request(chat([{"type": "text", "text": LONG, **mark}], system="short", tools=[])), is_continued=False
    )
    assert marks(title.body) == []
