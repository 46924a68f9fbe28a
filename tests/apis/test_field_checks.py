"""Validation of fields, questions, and keys of each API."""

from typing import Any

import pytest

from kvproxy.apis import APIS
from kvproxy.apis.api import ApiName
from kvproxy.apis.json import JsonObject, dumps
from kvproxy.errors import InvalidRequest, KvproxyError
from kvproxy.http.error_responses import error_body, error_response

CHAT = {"model": "m", "messages": [{"role": "user", "content": "x"}]}
TEXT = {"model": "m", "prompt": "x"}
BODIES: dict[ApiName, dict[str, Any]] = {
    "chat": CHAT,
    "completions": TEXT,
    "embeddings": {"model": "m", "input": "x"},
    "messages": CHAT | {"max_tokens": 5},
    "responses": {"model": "m", "input": "x"},
}

FINE: list[tuple[ApiName, dict[str, Any]]] = [
    ("chat", {"max_tokens": 1, "n": 1, "temperature": 0, "top_p": 0.0, "seed": -5}),
    ("chat", {"temperature": 2.0, "top_p": 1, "top_logprobs": 0, "stream": False}),
    ("chat", {"top_logprobs": 20, "tools": [], "stream_options": {}, "stop": ["a", "b"]}),
    ("chat", {"stop": "a", "tools": [{}], "stream_options": None, "tools_": 1}),
    ("chat", dict.fromkeys(("max_tokens", "n", "temperature", "top_p", "seed", "stream", "stop", "tools"))),
    ("chat", {"messages": [{"role": "user", "content": None}, {"role": "x", "content": [1]}]}),
    ("completions", {"max_tokens": 0}),
    ("completions", {"prompt": [7]}),
    ("embeddings", {"input": ["x"]}),
    ("messages", {"system": None, "top_k": 0, "stop_sequences": ["a"], "tools": [{}], "thinking": {}}),
    ("messages", {"system": [], "messages": [{"role": "user", "content": [1]}]}),
    ("responses", {"input": [{}], "text": {}, "reasoning": {}, "metadata": {}, "tools": [{}]}),
]
REFUSED: list[tuple[ApiName, str, str, list[Any]]] = [
    *[(name, "model", "model is required", ["", 5]) for name in ("chat", "completions", "messages", "responses")],
    ("chat", "max_tokens", "at least 1, not 0", [0]),
    ("chat", "max_completion_tokens", "at least 1", [0]),
    ("chat", "max_output_tokens", "at least 1", [0]),
    ("completions", "max_tokens", "at least 0, not -1", [-1]),
    ("chat", "n", r"at least 1|whole number, not (True|1\.0)", [0, True, 1.0]),
    ("chat", "seed", "whole number, not '5'", ["5"]),
    ("chat", "temperature", "from 0 to 2", [2.01, -0.01, True, float("nan")]),
    ("chat", "top_p", "from 0 to 1", [1.01, "1"]),
    ("chat", "top_logprobs", "at most 20, not 21|at least 0", [21, -1]),
    ("chat", "stream", "true or false", [1]),
    ("chat", "stop", "a text or a list of texts", [["a", 1], 1]),
    *[(name, "tools", "a list of objects", [{}, [1]]) for name in ("chat", "messages", "responses")],
    *[(name, "stream_options", "an object", [[], 5]) for name in ("chat", "completions", "responses")],
    ("chat", "messages", "at least one message", [[], "x"]),
    ("chat", "messages", r"messages\[0\] must be an object with a role", [[5]]),
    ("chat", "messages", r"messages\[1\] must be an object with a role", [[{"role": "user"}, {"role": 5}]]),
    ("chat", "messages", r"messages\[0\]\.content must be a text or a list", [[{"role": "user", "content": 5}]]),
    ("completions", "prompt", "prompt is required", [None, 5, "", []]),
    ("embeddings", "input", "input is required", [None, 5, "", []]),
    ("messages", "max_tokens", "max_tokens is required", [None]),
    ("messages", "messages", "messages is required", [None, []]),
    ("messages", "messages", r"messages\[0\]", [[5], [{"role": "user"}], [{"role": 5, "content": "x"}]]),
    ("messages", "system", "a text or a list of text blocks", [5]),
    ("messages", "stop_sequences", "a text or a list of texts", [5]),
    ("messages", "top_k", "at least 0", [-1]),
    ("messages", "thinking", "an object", [True]),
    ("responses", "input", "input is required", [None, 5, "", []]),
    ("responses", "input", "a list of objects", [[{}, 5]]),
    *[("responses", name, "an object", [5]) for name in ("text", "reasoning", "metadata")],
]


def test_values_within_bounds_are_accepted() -> None:
    for api, fields in FINE:
        APIS[api].check(BODIES[api] | fields)


@pytest.mark.parametrize(("api", "name", "expected", "values"), REFUSED)
def test_values_out_of_bounds_are_rejected_by_name(api: ApiName, name: str, expected: str, values: list[Any]) -> None:
    for value in values:
        with pytest.raises(InvalidRequest, match=expected) as raised:
            APIS[api].check(BODIES[api] | {name: value})
        assert str(raised.value.param).startswith(name)


def allows_semantic(api: ApiName, body: Any) -> bool:
    question = APIS[api].question(body)
    assert question is not None
    return question.allows_semantic


def test_the_question_of_a_chat() -> None:
    ask = APIS["chat"].question
    turn = {"role": "user", "content": "What is it?"}
    found = ask({"model": "m", "messages": [{"role": "system", "content": "s"}, turn]})
    assert found is not None
    assert (found.text, found.allows_semantic) == ("What is it?", True)
    assert found.rest == {"model": "m", "messages": [{"role": "system", "content": "s"}], "last": {"role": "user"}}
    for messages in ([], [5], [turn, 5], [turn | {"role": "assistant"}], [turn | {"content": " "}], "x"):
        assert ask({"model": "m", "messages": messages}) is None  # type: ignore[dict-item]
    for more in ({"n": 2}, {"prompt_logprobs": 0}, {"response_format": {"type": "json_object"}}, {"tools": [{}]}):
        assert not allows_semantic("chat", {"messages": [turn], **more}), more
    for more in ({"response_format": None}, {"prompt_logprobs": None}):
        assert allows_semantic("chat", {"messages": [turn], **more}), more


def test_the_question_of_responses() -> None:
    ask = APIS["responses"].question
    turn: JsonObject = {"role": "user", "content": [{"type": "input_text", "text": "why"}]}
    said: JsonObject = {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": "so"}]}
    found = ask({"input": [said, turn]})
    assert found is not None
    assert (found.text, found.allows_semantic) == ("why", True)
    assert found.rest == {"input": [said], "last": {"role": "user"}}
    # Input items other than text messages prevent semantic hits.
    for before in ({"type": "function_call_output", "output": "5"}, said | {"role": "user"}):
        assert not allows_semantic("responses", {"input": [before, turn]})
    for items in (" ", "", [], 5, [turn, 5], [turn, said], [turn, {"type": "function_call_output", "content": "x"}]):
        assert ask({"input": items}) is None  # type: ignore[dict-item]
    for more in ({"text": {"format": {"type": "json_object"}}}, {"text": "x"}, {"reasoning": {"effort": "low"}}):
        for given in ("why", [turn]):
            assert not allows_semantic("responses", {"input": given, **more}), more  # type: ignore[dict-item]
    for text in (None, {}, {"format": None}, {"format": {"type": "text"}}):
        assert allows_semantic("responses", {"input": "why", "text": text}), text


def test_the_question_of_messages() -> None:
    ask = APIS["messages"].question
    turn: JsonObject = {"role": "user", "content": "why"}
    image: JsonObject = {"role": "user", "content": [{"type": "image"}]}
    for before, similar in ((turn, True), (image, False)):
        found = ask({"messages": [before, turn]})
        assert found is not None
        assert (found.text, found.allows_semantic) == ("why", similar)
    for turns in ([turn, image], [turn, {"role": "assistant", "content": "x"}], [turn, {"role": "user"}], [], "x"):
        assert ask({"messages": turns}) is None  # type: ignore[dict-item]


def test_cacheable_requests() -> None:
    requests: list[tuple[ApiName, JsonObject, bool]] = [
        ("chat", {"stream": True}, True),
        ("chat", {"prompt_logprobs": 0}, True),
        ("chat", {"stream": True, "prompt_logprobs": 0}, False),
        ("completions", {"stream": True, "prompt_logprobs": 0}, False),
        ("embeddings", {}, True),
        ("embeddings", {"stream": True}, False),
        ("messages", {"stream": True}, True),
        ("messages", {"container": "c"}, False),
        ("responses", {"stream": True}, True),
        ("responses", {"conversation": "c"}, False),
        ("responses", {"background": True}, False),
        ("responses", {"background": False}, True),
    ]
    for name, fields, cacheable in requests:
        assert APIS[name].is_cacheable(fields) == cacheable, (name, fields)


def test_display_text_output_text_and_usage() -> None:
    chat = APIS["chat"]
    assert chat.display_text(CHAT) == "x"
    assert chat.display_text({"messages": [{"content": "a"}, {"content": "b"}]}) == "b"
    answer = {"message": {"content": "yes"}}
    assert chat.output_text({"choices": [answer]}) == "yes"
    assert chat.output_text({"choices": [answer, answer]}) is None
    assert chat.output_text({"choices": []}) is chat.output_text({"choices": "x"}) is None
    assert chat.prompt_and_completion_tokens({"usage": {"prompt_tokens": 3, "completion_tokens": 4}}) == (3, 4)
    assert chat.prompt_and_completion_tokens({"usage": {"prompt_tokens": -1, "completion_tokens": 2**25 + 1}}) == (
        None,
        None,
    )
    assert chat.prompt_and_completion_tokens({"usage": {"prompt_tokens": "3", "completion_tokens": 2**25}}) == (
        None,
        2**25,
    )
    assert chat.prompt_and_completion_tokens({}) == (None, None)
    assert APIS["completions"].display_text({"prompt": [1, 2]}) == "[1,2]"
    assert APIS["embeddings"].display_text({"input": ["a"]}) == '["a"]'
    assert APIS["messages"].display_text({"messages": [{"content": "a"}, {"content": [1]}]}) == "[1]"
    assert APIS["messages"].display_text({"messages": 5}) == "5"
    reminder = {"type": "text", "text": "<system-reminder>The project is in Python.</system-reminder>"}
    asked: list[Any] = [{"role": "user", "content": [reminder, {"type": "text", "text": "What is x?"}]}]
    called: Any = {"role": "assistant", "content": [{"type": "tool_use", "id": "1", "name": "read", "input": {}}]}
    result: Any = {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "1", "content": "y" * 99}]}
    context: Any = {"role": "system", "content": "Available agent types: general"}
    endings: list[Any] = [[], [context], [called, result], [called, {"role": "tool", "content": "y"}]]
    for after in endings:
        assert APIS["messages"].display_text({"messages": [*asked, *after]}) == "What is x?"
        assert APIS["responses"].display_text({"input": [*asked, *after]}) == "What is x?"
    picture: list[Any] = [{"type": "image_url", "image_url": {"url": "data:"}}, {"type": "text", "text": "What is it?"}]
    assert chat.display_text({"messages": [{"role": "user", "content": picture}]}) == "What is it?"
    responses = APIS["responses"]
    for given, text in (("a", "a"), (["a", {"content": "b"}], "b"), ([{"type": "x"}], '{"type":"x"}'), ([], "[]")):
        assert responses.display_text({"input": given}) == text  # type: ignore[dict-item]
    assert responses.output_text({"output": [{"type": "function_call", "content": None}]}) is None
    assert APIS["messages"].output_text({"content": [{"type": "tool_use", "name": "f"}]}) is None
    assert chat.output_text({"choices": [{"message": {"content": None, "tool_calls": [{}]}}]}) is None
    assert responses.output_text({"output": []}) is responses.output_text({"output": [{"content": "a"}] * 2}) is None
    assert APIS["completions"].output_text({"choices": [{"text": "a"}]}) == "a"
    assert APIS["completions"].output_text({"choices": [{"text": "a"}] * 2}) is None
    assert APIS["embeddings"].output_text({"data": [{"embedding": [1]}]}) is None
    told: JsonObject = {"usage": {"input_tokens": 3, "output_tokens": 4, "prompt_tokens": 5}}
    usages = [APIS[name].prompt_and_completion_tokens(told) for name in ("messages", "responses", "embeddings")]
    assert usages == [(3, 4), (3, 4), (5, 0)]


MESSAGES_ERRORS = {
    400: "invalid_request_error",
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    413: "request_too_large",
    429: "rate_limit_error",
    500: "api_error",
    503: "overloaded_error",
}


@pytest.mark.parametrize(("status", "kind"), MESSAGES_ERRORS.items())
def test_error_bodies(status: int, kind: str) -> None:
    error = KvproxyError("what is wrong", param="p")
    error.status, error.code = status, "c"  # type: ignore[misc]
    retried = "x-should-retry" not in error_response(error, {"path": "/v1/models"}).headers
    assert retried is (status in (429, 500, 503))
    for name in ("chat", "completions", "embeddings", "responses"):
        told = error_body(error, APIS[name].path)
        assert told == {"error": {"message": "what is wrong", "type": "server_error", "param": "p", "code": "c"}}
    assert error_body(error, APIS["messages"].path) == {
        "type": "error",
        "error": {"type": kind, "message": "what is wrong"},
    }


CONSTRAINTS: dict[str, Any] = {
    "guided_json": {"type": "object"},
    "structured_outputs": {"choice": ["a"]},
    "documents": [{"text": "The pool is full."}],
    "previous_response_id": "resp_1",
    "a_field_of_tomorrow": 1,
}
HARMLESS: dict[str, Any] = {
    "temperature": 0,
    "max_completion_tokens": 50,
    "stop": ["a"],
    "reasoning_effort": "low",
    "chat_template_kwargs": {"enable_thinking": False},
    "logprobs": False,
    "tools": [],
    "n": 1,
    "tool_choice": "auto",
    "response_format": {"type": "text"},
}
QUESTIONS: dict[ApiName, dict[str, Any]] = {
    "chat": {"model": "m", "messages": [{"role": "user", "content": "why"}]},
    "messages": {"model": "m", "max_tokens": 9, "messages": [{"role": "user", "content": "why"}]},
    "responses": {"model": "m", "input": "why"},
}


@pytest.mark.parametrize("api", QUESTIONS)
def test_only_known_harmless_fields_allow_semantic_hits(api: ApiName) -> None:
    for fields, expected in ((HARMLESS, True), (CONSTRAINTS, False)):
        for name, value in fields.items():
            assert allows_semantic(api, {**QUESTIONS[api], name: value}) is expected, name


def test_integers_may_exceed_64_bits() -> None:
    assert dumps({"b": 2**70, "a": 1}, sort_keys=True) == b'{"a":1,"b":1180591620717411303424}'
