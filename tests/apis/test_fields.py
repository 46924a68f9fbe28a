"""What each API takes, at its bounds, and what it refuses with the field's name."""

from typing import Any

import pytest

from kvproxy.apis import APIS
from kvproxy.apis.api import ApiName
from kvproxy.apis.fields import check_number
from kvproxy.errors import InvalidRequest

CHAT = {"model": "m", "messages": [{"role": "user", "content": "x"}]}
TEXT = {"model": "m", "prompt": "x"}

FINE: list[tuple[ApiName, dict[str, Any]]] = [
    ("chat", {"max_tokens": 1, "n": 1, "temperature": 0, "top_p": 0.0, "seed": -5}),
    ("chat", {"temperature": 2.0, "top_p": 1, "top_logprobs": 0, "stream": False}),
    ("chat", {"top_logprobs": 20, "tools": [], "stream_options": {}, "stop": ["a", "b"]}),
    ("chat", {"stop": "a", "tools": [{}], "stream_options": None, "tools_": 1}),
    ("chat", dict.fromkeys(("max_tokens", "n", "temperature", "top_p", "seed", "stream", "stop", "tools"))),
    ("chat", {"messages": [{"role": "user", "content": None}, {"role": "x", "content": [1]}]}),
    ("completions", {"max_tokens": 0}),
]
REFUSED: list[tuple[ApiName, str, Any, str]] = [
    ("chat", "model", "", "model is required"),
    ("chat", "model", 5, "model is required"),
    ("chat", "max_tokens", 0, "at least 1, not 0"),
    ("chat", "max_completion_tokens", 0, "at least 1"),
    ("chat", "max_output_tokens", 0, "at least 1"),
    ("completions", "max_tokens", -1, "at least 0, not -1"),
    ("chat", "n", 0, "at least 1"),
    ("chat", "n", True, "whole number, not True"),
    ("chat", "n", 1.0, r"whole number, not 1\.0"),
    ("chat", "seed", "5", "whole number, not '5'"),
    ("chat", "temperature", 2.01, "from 0 to 2"),
    ("chat", "temperature", -0.01, "from 0 to 2"),
    ("chat", "temperature", True, "from 0 to 2"),
    ("chat", "temperature", float("nan"), "from 0 to 2"),
    ("chat", "top_p", 1.01, "from 0 to 1"),
    ("chat", "top_p", "1", "from 0 to 1"),
    ("chat", "top_logprobs", 21, "at most 20, not 21"),
    ("chat", "top_logprobs", -1, "at least 0"),
    ("chat", "stream", 1, "true or false"),
    ("chat", "stop", ["a", 1], "a text or a list of texts"),
    ("chat", "stop", 1, "a text or a list of texts"),
    ("chat", "tools", {}, "a list of objects"),
    ("chat", "tools", [1], "a list of objects"),
    ("chat", "stream_options", [], "an object"),
    ("chat", "messages", [], "at least one message"),
    ("chat", "messages", "x", "at least one message"),
    ("chat", "messages", [5], r"messages\[0\] must be an object with a role"),
    ("chat", "messages", [{"role": "user"}, {"role": 5}], r"messages\[1\] must be an object with a role"),
    ("chat", "messages", [{"role": "user", "content": 5}], r"messages\[0\]\.content is a text or a list"),
]


@pytest.mark.parametrize(("api", "fields"), FINE)
def test_what_is_within_its_bounds_is_taken(api: ApiName, fields: dict[str, Any]) -> None:
    APIS[api].check((CHAT if api == "chat" else TEXT) | fields)


@pytest.mark.parametrize(("api", "name", "value", "expected"), REFUSED)
def test_what_is_beyond_is_refused_by_its_name(api: ApiName, name: str, value: Any, expected: str) -> None:
    with pytest.raises(InvalidRequest, match=expected) as raised:
        APIS[api].check((CHAT if api == "chat" else TEXT) | {name: value})
    assert str(raised.value.param).startswith(name)


def test_a_long_value_is_cut_in_the_message() -> None:
    with pytest.raises(InvalidRequest, match=r"not 'x{39}\.\.\.$"):
        check_number({"a": "x" * 100}, "a", 0, 1)
    with pytest.raises(InvalidRequest, match=r"not '" + "x" * 38 + "'$"):
        check_number({"a": "x" * 38}, "a", 0, 1)
    with pytest.raises(InvalidRequest, match="a number of so many digits"):
        check_number({"a": 10**5000}, "a", 0, 1)


def test_a_question_is_the_last_turn_of_the_user_as_text() -> None:
    ask = APIS["chat"].question
    turn = {"role": "user", "content": "What is it?"}
    found = ask({"model": "m", "messages": [{"role": "system", "content": "s"}, turn]})
    assert found is not None
    assert (found.text, found.similar) == ("What is it?", True)
    assert found.rest == {"model": "m", "messages": [{"role": "system", "content": "s"}], "last": {"role": "user"}}
    for messages in ([], [5], [turn, 5], [turn | {"role": "assistant"}], [turn | {"content": " "}], "x"):
        assert ask({"model": "m", "messages": messages}) is None  # type: ignore[dict-item]
    for more in ({"n": 2}, {"prompt_logprobs": 0}, {"response_format": {"type": "json_object"}}, {"tools": [{}]}):
        asked = ask({"model": "m", "messages": [turn], **more})
        assert asked is not None
        assert not asked.similar, more
    for more in ({"n": 1}, {"response_format": {"type": "text"}}, {"response_format": None}, {"prompt_logprobs": None}):
        asked = ask({"model": "m", "messages": [turn], **more})
        assert asked is not None
        assert asked.similar, more


def test_what_a_listing_and_a_judge_are_shown() -> None:
    chat = APIS["chat"]
    assert chat.shown(CHAT) == "x"
    assert chat.shown({"messages": [{"content": "a"}, {"content": "b"}]}) == "b"
    answer = {"message": {"content": "yes"}}
    assert chat.said({"choices": [answer]}) == "yes"
    assert chat.said({"choices": [answer, answer]}) is None
    assert chat.said({"choices": []}) is chat.said({"choices": "x"}) is None
    assert chat.usage({"usage": {"prompt_tokens": 3, "completion_tokens": 4}}) == (3, 4)
    assert chat.usage({"usage": {"prompt_tokens": -1, "completion_tokens": 2**53}}) == (0, 0)
    assert chat.usage({"usage": {"prompt_tokens": "3", "completion_tokens": 2**53 - 1}}) == (0, 2**53 - 1)
    assert chat.usage({}) == (0, 0)
