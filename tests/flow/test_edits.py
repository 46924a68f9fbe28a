"""What edits do to requests of each API, and that they reach the upstream, the key and the record."""

import json
import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Any

import httpx
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kvproxy.apis import APIS
from kvproxy.apis.api import ApiName
from kvproxy.apis.api_request import ApiRequest
from kvproxy.apis.json import dumps
from kvproxy.apis.message_parts import without_moved_texts
from kvproxy.errors import SettingsError
from kvproxy.exchange import SemanticKey
from kvproxy.flow.cache_keys import cache_key
from kvproxy.flow.conversation_digests import conversation_digests
from kvproxy.flow.prepare.prompt_edits import apply_edits
from kvproxy.index.entry import learning_namespace
from kvproxy.settings import load_settings
from kvproxy.settings.rules import EditSettings
from tests.plain_upstream import run_plain_upstream
from tests.servers import run_front
from tests.statuses import makes_entry

DATE = EditSettings(name="date", action="strip", pattern=r"Today is (\d{4}-\d\d-\d\d)", lead="Today is ")
MOVED = DATE.model_copy(update={"action": "move"})


def asked(body: Any, api: ApiName = "chat") -> ApiRequest:
    return ApiRequest(APIS[api], body, dumps(body), {}, "public", "1")


def said(role: str, content: Any) -> Any:
    return {"role": role, "content": content}


BODIES: dict[ApiName, Any] = {
    "chat": lambda text: {"messages": [said("system", text), said("user", "Why?")]},
    "messages": lambda text: {
        "system": [{"type": "text", "text": text}],
        "messages": [said("user", [{"type": "text", "text": "Why?"}])],
    },
    "responses": lambda text: {"instructions": text, "input": "Why?"},
}


@pytest.mark.parametrize("api", BODIES)
@settings(max_examples=20)
@given(day=st.integers(10, 28), other=st.integers(10, 28))
def test_a_stripped_span_makes_requests_equal_and_a_moved_one_stands_last(api: ApiName, day: int, other: int) -> None:
    one, two = (asked(BODIES[api](f"Be kind. Today is 2026-11-{each}. Be brief."), api) for each in (day, other))
    stripped = apply_edits(one, [DATE])
    assert stripped.body == apply_edits(two, [DATE]).body
    assert stripped.raw == dumps(stripped.body)
    assert stripped.control.tags == ("edit:date",)
    moved = apply_edits(one, [MOVED])
    assert str(moved.body).index("Today is 2026") > str(moved.body).index("Why?")
    assert str(moved.body).count(f"2026-11-{day}") == 1
    assert apply_edits(one, [DATE.model_copy(update={"model": "other-*"})]) is one


def test_developers_texts_plain_prompts_and_tools() -> None:
    body = {"messages": [said("developer", "Today is 2026-11-20."), said("user", "Today is 2026-11-20.")]}
    assert apply_edits(asked(body), [DATE]).body["messages"] == [said("developer", "Today is ."), body["messages"][1]]
    plain = EditSettings(name="n", action="move", role="prompt", pattern=r"^(#\d+) ")
    assert apply_edits(asked({"prompt": "#12 Write."}, "completions"), [plain]).body == {"prompt": " Write.\n\n#12"}
    tools = [{"function": {"name": name}} for name in "ba"]
    ordered = apply_edits(asked({"messages": [], "tools": tools}), [EditSettings(name="t", action="sort-tools")])
    assert ordered.body["tools"] == tools[::-1]
    properties = {"b": {"type": "string"}, "a": {"type": "string"}}
    tool = {"type": "function", "function": {"name": "f", "parameters": {"properties": properties}}}
    sorted_tool = apply_edits(asked({"messages": [], "tools": [tool]}), [EditSettings(name="t", action="sort-tools")])
    assert json.dumps(sorted_tool.body["tools"]) == json.dumps([tool], sort_keys=True)


def test_what_cannot_be_moved_is_left_where_it_is() -> None:
    last = asked({"messages": [said("system", "Today is 2026-11-20."), said("assistant", "Yes")]})
    assert apply_edits(last, [MOVED]) is last
    function = asked({"messages": [said("system", "Today is 2026-11-20."), {**said("function", "[3]"), "name": "f"}]})
    assert apply_edits(function, [MOVED]) is function
    nothing = asked({"messages": [said("system", "It is late."), said("user", "Why?")]})
    assert apply_edits(nothing, [DATE, MOVED]) is nothing


RESULT = {"type": "function_call_output", "call_id": "c1"}


@pytest.mark.parametrize(
    ("api", "last", "end"),
    [
        ("chat", said("tool", "3 files"), said("tool", "3 files\n\nToday is 2026-11-20")),
        (
            "chat",
            said("tool", [{"type": "text", "text": "3 files"}]),
            said("tool", [{"type": "text", "text": text} for text in ("3 files", "Today is 2026-11-20")]),
        ),
        ("responses", {**RESULT, "output": "3 files"}, {**RESULT, "output": "3 files\n\nToday is 2026-11-20"}),
        (
            "responses",
            {**RESULT, "output": [{"type": "input_image", "image_url": "u"}]},
            {
                **RESULT,
                "output": [
                    {"type": "input_image", "image_url": "u"},
                    {"type": "input_text", "text": "Today is 2026-11-20"},
                ],
            },
        ),
        # A result in JSON stays JSON.
        (
            "chat",
            said("tool", '{"files": 3}'),
            said("tool", [{"type": "text", "text": text} for text in ('{"files": 3}', "\n\nToday is 2026-11-20")]),
        ),
        (
            "responses",
            {**RESULT, "output": "[3]"},
            {**RESULT, "output": [{"type": "input_text", "text": text} for text in ("[3]", "\n\nToday is 2026-11-20")]},
        ),
        (
            "messages",
            said("user", [{"type": "tool_result", "tool_use_id": "c1", "content": "[3]"}]),
            said(
                "user",
                [
                    {"type": "tool_result", "tool_use_id": "c1", "content": "[3]"},
                    {"type": "text", "text": "Today is 2026-11-20"},
                ],
            ),
        ),
    ],
)
def test_a_span_moves_behind_the_result_of_a_tool(api: ApiName, last: Any, end: Any) -> None:
    """Such is most of an agent's requests. The next turn has the result without the text."""
    name = "input" if api == "responses" else "messages"
    moved = apply_edits(
        asked({name: [said("system", "Today is 2026-11-20."), said("user", "Why?"), last]}, api), [MOVED]
    )
    assert moved.control.tags == ("edit:date",)
    assert moved.body[name] == [said("system", "Today is ."), said("user", "Why?"), end]
    plain = asked({name: [said("system", "Today is ."), said("user", "Why?"), last]}, api)
    assert list(conversation_digests(moved)) == list(conversation_digests(plain))
    two: Any = apply_edits(moved, [MOVED.model_copy(update={"pattern": "(Why)"} | {"role": "user"})])
    assert without_moved_texts(two.body[name][-1], two.moved_texts) == last


def test_a_move_keeps_the_spans_of_all_messages() -> None:
    body: Any = {"messages": [said("system", f"Today is 2026-11-{day}.") for day in (20, 21)] + [said("user", "Hello")]}
    moved: Any = apply_edits(asked(body), [MOVED]).body["messages"][-1]["content"]
    assert "2026-11-20" in moved
    assert "2026-11-21" in moved


@pytest.mark.parametrize(
    ("pattern", "fix"), [("a(b", "is not a regular expression"), ("ab", "0 groups"), ("(a)(b)", "2 groups")]
)
def test_a_pattern_needs_one_group(tmp_path: Path, pattern: str, fix: str) -> None:
    with pytest.raises(SettingsError, match=fix):
        load_settings(data=tmp_path, edits=[{"name": "x", "action": "strip", "pattern": pattern}])


def test_a_proxy_makes_them_and_its_record_tells(tmp_path: Path) -> None:
    edit = {"name": "date", "action": "strip", "pattern": r"Today is (\d{4}-\d\d-\d\d)"}
    with (
        run_plain_upstream() as upstream,
        run_front(tmp_path, upstream, edits=[edit]) as (url, _),
        httpx.Client(base_url=url, timeout=300) as client,
    ):

        def ask(day: int) -> httpx.Response:
            messages = [said("system", f"Today is 2026-11-{day}."), said("user", "What is a block?")]
            return client.post("/v1/chat/completions", json={"model": "demo", "messages": messages})

        assert makes_entry(ask(20).headers["cache-status"])
        assert "exact" in ask(21).headers["cache-status"]
        told = client.get("/admin/cache").json()
    assert told[0]["tags"] == ["edit:date"]
    assert "2026-11-20" not in json.dumps(told)
    with closing(sqlite3.connect(tmp_path / "journal.db")) as journal, journal:
        assert journal.execute("select distinct tags from requests").fetchall() == [("edit:date",)]


def test_content_of_no_known_kind_and_a_turn_without_content_stay_as_they_are() -> None:
    odd = [{"role": "system", "name": "clock"}, said("system", {"odd": 1}), said("system", [5, {"text": 6}])]
    found: Any = apply_edits(asked({"messages": [*odd, said("system", "Today is 2026-11-20.")]}), [DATE]).body
    assert found["messages"] == [*odd, said("system", "Today is .")]


@pytest.mark.parametrize("api", BODIES)
def test_a_moved_text_is_no_part_of_the_compared_question(api: ApiName) -> None:
    def key(day: int) -> SemanticKey:
        return cache_key(apply_edits(asked(BODIES[api](f"Today is 2026-11-{day}."), api), [MOVED]), "b").semantic

    assert (key(20).text, key(20).prompt) == ("Why?", "Why?")
    assert key(20).namespace == key(20).namespace != key(21).namespace
    assert learning_namespace(key(20).namespace) == learning_namespace(key(21).namespace)


def test_a_question_beside_passages_is_found_although_a_text_was_moved_behind_it() -> None:
    passages = "Context:\nParcels take three days, letters take two days, and both of them are insured."
    content = [{"type": "text", "text": text} for text in (passages, "How long does a parcel take?")]
    body = {"messages": [said("system", "Today is 2026-11-20."), said("user", content)]}
    assert cache_key(apply_edits(asked(body), [MOVED]), "b").semantic.text == "How long does a parcel take?"
