"""Tool call ids do not change the key of a conversation, and nothing else is lost by that."""

import copy
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvproxy.apis import APIS
from kvproxy.apis.api_request import ApiRequest
from kvproxy.flow.cache_keys import cache_key
from kvproxy.flow.random_ids import without_random_ids

LETTERS = "abcdefghijklmnopqrstuvwxyz"
ID = st.text(LETTERS, min_size=12, max_size=16).map(lambda text: f"toolu_{text}")


def chat(first: str, second: str, answered: str, content: str = "12 degrees") -> dict[str, Any]:
    calls = [
        {"id": id, "type": "function", "function": {"name": "weather", "arguments": f'{{"city": "{city}"}}'}}
        for id, city in ((first, "Bern"), (second, "Rome"))
    ]
    messages = [
        {"role": "user", "content": "How warm is it?"},
        {"role": "assistant", "tool_calls": calls},
        {"role": "tool", "tool_call_id": answered, "content": content},
    ]
    return {"model": "m", "messages": messages}


def messages(first: str, second: str, answered: str, content: str = "12 degrees") -> dict[str, Any]:
    uses = [
        {"type": "tool_use", "id": id, "name": "weather", "input": {"city": city}}
        for id, city in ((first, "Bern"), (second, "Rome"))
    ]
    result = [{"type": "tool_result", "tool_use_id": answered, "content": content}]
    turns = [("user", "How warm is it?"), ("assistant", uses), ("user", result)]
    return {"model": "m", "max_tokens": 9, "messages": [{"role": role, "content": each} for role, each in turns]}


def responses(first: str, second: str, answered: str, content: str = "12 degrees") -> dict[str, Any]:
    calls = [
        {"type": "function_call", "id": f"fc_{id}", "call_id": id, "name": "weather", "arguments": city}
        for id, city in ((first, "Bern"), (second, "Rome"))
    ]
    return {"model": "m", "input": [*calls, {"type": "function_call_output", "call_id": answered, "output": content}]}


def key(name: str, body: dict[str, Any]) -> str:
    request = ApiRequest(APIS[name], body, b"", {}, "public", "id")
    return cache_key(request, "backend").exact


@pytest.mark.parametrize("build", [chat, messages, responses])
def test_conversations_with_other_ids_have_the_same_key(build: Callable[..., dict[str, Any]]) -> None:
    def exact(*arguments: str) -> str:
        return key(build.__name__, build(*arguments))

    one, two, three, four = (f"toolu_{number}" for number in range(4))
    same = exact(one, two, one)
    assert exact(three, four, three) == same
    # The same texts with references to the other call are another conversation.
    assert same not in (exact(three, four, four), exact(one, one, one), exact(one, two, three))
    assert exact(three, four, three, "13 degrees") != same
    # An id that a text mentions stays.
    assert exact(one, two, one, f"see {one}") != exact(three, two, three, f"see {one}")


def renamed(value: Any, names: dict[str, str]) -> Any:
    """The naive model: replace every text that is an id, wherever it is."""
    if isinstance(value, dict):
        return {name: renamed(inner, names) for name, inner in value.items()}
    if isinstance(value, list):
        return [renamed(item, names) for item in value]
    return names.get(value, value) if isinstance(value, str) else value


TURNS = st.lists(
    st.one_of(
        st.tuples(st.just("call"), st.integers(0, 3), st.sampled_from(["Bern", "Rome"])),
        st.tuples(st.just("result"), st.integers(0, 3), st.sampled_from(["12", "13"])),
    ),
    max_size=6,
)


def conversation(turns: list[tuple[str, int, str]], ids: list[str]) -> dict[str, Any]:
    found = []
    for kind, number, text in turns:
        call = {"id": ids[number], "type": "function", "function": {"name": "weather", "arguments": text}}
        result = {"role": "tool", "tool_call_id": ids[number], "content": text}
        found.append({"role": "assistant", "tool_calls": [call]} if kind == "call" else result)
    return {"model": "m", "messages": found}


@given(TURNS, TURNS, st.lists(ID, min_size=8, max_size=8, unique=True))
def test_keys_are_equal_only_after_a_renaming(
    one: list[tuple[str, int, str]], two: list[tuple[str, int, str]], ids: list[str]
) -> None:
    left, right = conversation(one, ids[:4]), conversation(two, ids[4:])
    original = copy.deepcopy(left)
    used = [list(dict.fromkeys(number for _, number, _ in turns)) for turns in (one, two)]
    pairs = dict(zip((ids[number] for number in used[0]), (ids[4 + number] for number in used[1]), strict=False))
    is_renaming = len(used[0]) == len(used[1]) and renamed(left, pairs) == right
    assert (key("chat", left) == key("chat", right)) == is_renaming
    assert left == original
    assert without_random_ids(without_random_ids(left)) == without_random_ids(left)
