"""Codecs of the embedded engine: decoded requests, whole responses, and streams."""

import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kvproxy.apis import APIS
from kvproxy.apis.api import STREAM_FIELD, ApiName
from kvproxy.apis.codecs import CODECS
from kvproxy.apis.codecs.codec import Conversation, DecodedRequest, Echo, ResponseEncoder
from kvproxy.apis.codecs.generation import Delta, FinishReason, SamplingParams, TokenLogprob, ToolCall, Usage
from kvproxy.apis.json import JsonObject
from kvproxy.apis.sse import EventReader
from kvproxy.errors import InvalidRequest
from tests.requests import api_request

CHATS: list[ApiName] = ["chat", "messages", "responses"]


def delta(text: str = "", reason: FinishReason | None = None, index: int = 0, tokens: int = 0, **more: Any) -> Delta:
    return Delta(index, text, (), more.pop("logprobs", ()), reason, Usage(10, tokens, 4), **more)


def writer(api: ApiName, body: JsonObject | None = None, echo: Echo | None = None) -> ResponseEncoder:
    return CODECS[api].encoder(api_request(body or {}, api), "m", echo)


def streamed(api: ApiName, body: JsonObject, *pieces: Delta, echo: Echo | None = None) -> tuple[Any, Any, list[Any]]:
    """Return the assembled stream, the whole response, and the stream's events."""
    written = writer(api, {"stream": True, **body}, echo)
    stream = b"".join(b"".join(written.write(piece)) for piece in pieces) + b"".join(written.end())
    assembler, events = APIS[api].assembler(), EventReader().push(stream)
    for event in events:
        assembler.push(event)
    told = [json.loads(event.data) for event in events if event.data != b"[DONE]"]
    assembled = {name: value for name, value in assembler.result().items() if name != STREAM_FIELD}
    return assembled, written.response(), told


PIECES = st.lists(st.text(max_size=5), min_size=1, max_size=4)
USAGE: JsonObject = {"stream_options": {"include_usage": True}}


@settings(deadline=None, max_examples=40)
@given(st.sampled_from(CHATS), PIECES, st.sampled_from(["stop", "length"]))
def test_an_assembled_stream_equals_the_whole_response(api: ApiName, texts: list[str], reason: FinishReason) -> None:
    pieces = [delta(text, tokens=place) for place, text in enumerate(texts)]
    assembled, whole, _ = streamed(api, USAGE, *pieces, delta(reason=reason, tokens=len(texts)))
    assert assembled == whole
    assert APIS[api].prompt_and_completion_tokens(whole) == (10, len(texts))
    if "".join(texts) or api != "chat":
        assert APIS[api].output_text(whole) == "".join(texts)


@pytest.mark.parametrize("api", CHATS)
def test_assembled_tool_calls_equal_those_of_the_whole_response(api: ApiName) -> None:
    first, second = delta(tokens=1, calls=(ToolCall("f", '{"a":1}'),)), delta("", "stop", calls=(ToolCall("g", "{}"),))
    assembled, whole, _ = streamed(api, USAGE, first, second)
    if api == "chat":
        # A stream has no null content.
        whole["choices"][0]["message"]["content"] = ""
        listed = [call["function"] | {"id": call["id"]} for call in whole["choices"][0]["message"]["tool_calls"]]
    elif api == "messages":
        listed = [block | {"arguments": json.dumps(block["input"])} for block in whole["content"]]
    else:
        listed = [item | {"id": item["call_id"]} for item in whole["output"]]
    assert assembled == whole
    assert [(call["name"], json.loads(call["arguments"])) for call in listed] == [("f", {"a": 1}), ("g", {})]
    assert [call["id"][-2:] for call in listed] == ["-0", "-1"]


# For "stop" and "length", each without and with a tool call.
ENDS: dict[ApiName, list[str]] = {
    "chat": ["stop", "tool_calls", "length", "length"],
    "messages": ["end_turn", "tool_use", "max_tokens", "max_tokens"],
    "responses": ["completed", "completed", "incomplete", "incomplete"],
}


@pytest.mark.parametrize("api", CHATS)
def test_finish_reasons(api: ApiName) -> None:
    calls = (ToolCall("f", "{}"),)
    deltas = [delta(*end) for reason in ("stop", "length") for end in (("x", reason), ("", reason))]
    deltas[1], deltas[3] = delta("", "stop", calls=calls), delta("", "length", calls=calls)
    wholes = [streamed(api, {}, each)[1] for each in deltas]
    ends = [whole["choices"][0] if api == "chat" else whole for whole in wholes]
    name = {"chat": "finish_reason", "messages": "stop_reason", "responses": "status"}[api]
    assert [end[name] for end in ends] == ENDS[api]
    if api == "responses":
        details = [whole["incomplete_details"] for whole in wholes]
        assert details == [None, None, *[{"reason": "max_output_tokens"}] * 2]


def test_chunks_of_a_chat() -> None:
    scored = TokenLogprob(7, "é", -0.5, ((7, "é", -0.5), (8, "b", -1.5)))
    _, whole, told = streamed("chat", {}, delta("é", logprobs=(scored,)), delta(index=1), delta("", "stop"))
    assert [chunk["choices"][0]["delta"] for chunk in told] == [
        {"role": "assistant", "content": ""},
        {"content": "é"},
        {"role": "assistant", "content": ""},
        {},
    ]
    assert [chunk["choices"][0]["index"] for chunk in told] == [0, 0, 1, 0]
    assert [chunk["choices"][0]["finish_reason"] for chunk in told] == [None, None, None, "stop"]
    assert all("usage" not in chunk for chunk in told)
    first = {"token": "é", "logprob": -0.5, "bytes": [195, 169]}
    content = [{**first, "top_logprobs": [first, {"token": "b", "logprob": -1.5, "bytes": [98]}]}]
    assert told[1]["choices"][0]["logprobs"] == {"content": content}
    assert [choice.get("logprobs") for choice in whole["choices"]] == [{"content": content}, None]
    usage = {"prompt_tokens": 10, "completion_tokens": 5, "total_tokens": 15}
    usage["prompt_tokens_details"] = {"cached_tokens": 4}  # type: ignore[assignment]
    _, whole, told = streamed("chat", USAGE, delta("a", tokens=2), delta("b", "stop", index=1, tokens=3))
    assert whole["usage"] == told[-1]["usage"] == usage
    assert [chunk["usage"] for chunk in told[:-1]] == [None] * (len(told) - 1)
    assert whole["id"] == told[0]["id"] == "chatcmpl-id"
    assert (whole["object"], told[0]["object"], whole["model"]) == ("chat.completion", "chat.completion.chunk", "m")


def test_events_of_a_message() -> None:
    _, _, told = streamed("messages", {}, delta("a", tokens=1), delta("b", tokens=2), delta("", "stop", tokens=3))
    block = ["content_block_start", "content_block_delta", "content_block_delta", "content_block_stop"]
    assert [event["type"] for event in told] == ["message_start", *block, "message_delta", "message_stop"]
    assert {event["index"] for event in told if "index" in event} == {0}
    counts = {"input_tokens": 6, "cache_creation_input_tokens": 0, "cache_read_input_tokens": 4}
    assert told[0]["message"]["usage"] == {**counts, "output_tokens": 0}
    assert told[5]["usage"] == {**counts, "output_tokens": 3}
    calls = [(ToolCall(name, "{}"),) for name in "fg"]
    _, _, told = streamed("messages", {}, delta(calls=calls[0]), delta("", "stop", calls=calls[1]))
    places = [(event["type"].removeprefix("content_block_"), event["index"]) for event in told if "index" in event]
    assert places == [(kind, place) for place in (0, 1) for kind in ("start", "delta", "stop")]
    # A client may run the tool before the message ends.
    encoder = writer("messages", {"stream": True})
    last = EventReader().push(b"".join(encoder.write(delta(calls=calls[0]))))[-1]
    assert json.loads(last.data)["type"] == "content_block_stop"


def test_events_of_a_response() -> None:
    _, whole, told = streamed("responses", {"instructions": "i"}, delta("a"), delta("b", "stop", tokens=2))
    assert [event["sequence_number"] for event in told] == list(range(len(told)))
    assert [event["type"].removeprefix("response.") for event in told] == (
        "created in_progress output_item.added content_part.added output_text.delta output_text.delta output_text.done"
        " content_part.done output_item.done completed"
    ).split()
    assert {event["output_index"] for event in told if "output_index" in event} == {0}
    assert {event["content_index"] for event in told if "content_index" in event} == {0}
    assert (told[2]["item"]["status"], told[8]["item"]["status"]) == ("in_progress", "completed")
    assert (told[6]["text"], told[7]["part"]["text"], told[3]["part"]["text"]) == ("ab", "ab", "")
    begun = told[0]["response"]
    assert (begun["status"], begun["output"], begun["usage"], begun["instructions"]) == ("in_progress", [], None, "i")
    assert (begun["store"], begun["parallel_tool_calls"]) == (False, True)
    assert whole["usage"] == {
        "input_tokens": 10,
        "input_tokens_details": {"cached_tokens": 4},
        "output_tokens": 2,
        "output_tokens_details": {"reasoning_tokens": 0},
        "total_tokens": 12,
    }
    calls = (ToolCall("f", "{}"),), (ToolCall("g", '{"a": 1}'), ToolCall("h", "{}"))
    _, _, told = streamed("responses", {}, delta(calls=calls[0]), delta("", "stop", calls=calls[1]))
    added = [event for event in told if event["type"] == "response.output_item.added"]
    assert [event["output_index"] for event in added] == [0, 1, 2]
    assert {(event["item"]["arguments"], event["item"]["status"]) for event in added} == {("", "in_progress")}
    assert not [event for event in told if "text" in event["type"]]


LOGPROBS = tuple(
    TokenLogprob(place, text, -float(place), ((9, "z", -0.1), (8, "y", -0.2)), 3)
    for place, text in enumerate(("bc", "d"))
)


def test_an_echoed_completion_has_log_probabilities() -> None:
    body: JsonObject = {"logprobs": 1, "echo": True, "prompt_logprobs": 1}
    scored = (TokenLogprob(5, "bc", -3.0, ((9, "z", -0.1), (8, "y", -0.2)), 3),)
    pieces = (
        delta("bc", logprobs=LOGPROBS[:1], prompt_logprobs=scored),
        delta("d", "stop", tokens=2, logprobs=LOGPROBS[1:]),
    )
    assembled, whole, told = streamed("completions", body, *pieces, echo=Echo("abc", "a"))
    (choice,) = whole["choices"]
    assert (choice["text"], choice["finish_reason"]) == ("abcbcd", "stop")
    top = {"z": -0.1}
    assert choice["logprobs"] == {
        "tokens": ["a", "bc", "bc", "d"],
        "token_logprobs": [None, -3.0, 0.0, -1.0],
        "top_logprobs": [None, top, top, top],
        "text_offset": [0, 1, 3, 5],
    }
    own, best = {"logprob": -3.0, "rank": 3, "decoded_token": "bc"}, {"logprob": -0.1, "rank": 1, "decoded_token": "z"}
    assert choice["prompt_logprobs"] == [None, {"5": own, "9": best}]
    assert assembled["choices"][0]["logprobs"] == choice["logprobs"]
    assert [chunk["choices"][0]["text"] for chunk in told] == ["abc", "bc", "d"]
    assert assembled["choices"][0]["text"] == choice["text"]


def test_completions_have_requested_fields_only() -> None:
    _, whole, told = streamed("completions", {}, delta("a", logprobs=()), delta(), delta("", "length", tokens=1))
    assert whole["choices"] == [{"index": 0, "text": "a", "logprobs": None, "finish_reason": "length"}]
    assert [chunk["choices"][0]["text"] for chunk in told] == ["a", ""]
    assert all("usage" not in chunk for chunk in told)
    _, whole, told = streamed("completions", USAGE, delta("a", "stop", tokens=1))
    assert told[-1]["usage"] == whole["usage"]
    assert [chunk["usage"] for chunk in told[:-1]] == [None]
    _, whole, told = streamed("completions", {}, delta("a", "stop"), echo=Echo("p", "p"))
    assert whole["choices"][0]["text"] == "pa"
    assert told[0]["choices"][0] == {"index": 0, "text": "p", "logprobs": None, "finish_reason": None}
    # Each choice has its own offsets.
    body: JsonObject = {"logprobs": 0}
    pieces = [delta("bc", logprobs=LOGPROBS[:1], index=0), delta("d", logprobs=LOGPROBS[1:], index=1)]
    _, _, told = streamed("completions", body, *pieces, delta("d", "stop", logprobs=LOGPROBS[1:]))
    assert [chunk["choices"][0]["logprobs"]["text_offset"] for chunk in told] == [[0], [0], [2]]
    assert told[0]["choices"][0]["logprobs"]["top_logprobs"] == [{}]


USER: JsonObject = {"role": "user", "content": "x"}
BODIES: dict[ApiName, JsonObject] = {
    "chat": {"messages": [USER]},
    "completions": {"prompt": "x"},
    "messages": {"messages": [USER]},
    "responses": {"input": "x"},
}


def wanted(api: ApiName, **fields: Any) -> DecodedRequest:
    return CODECS[api].decode({**BODIES[api], **fields}, SamplingParams())


@pytest.mark.parametrize("api", BODIES)
def test_missing_fields_use_the_models_defaults(api: ApiName) -> None:
    prompt = "x" if api == "completions" else Conversation((USER,))
    found = wanted(api)
    assert found == DecodedRequest(prompt, SamplingParams(max_tokens=16 if api == "completions" else None))
    recommended = SamplingParams(temperature=0.7, top_p=0.8, top_k=20)
    drawn = CODECS[api].decode({**BODIES[api], "top_p": 0.5}, recommended).sampling
    assert (drawn.temperature, drawn.top_p, drawn.top_k) == (0.7, 0.5, 20)


def test_fields_are_decoded() -> None:
    drawn = {"temperature": 0.5, "top_p": 0.25}
    common = {**drawn, "cache_salt": "s", "priority": -2}
    chat = wanted(
        "chat", **common, top_k=3, seed=4, stop="e", n=2, max_tokens=7, logprobs=True, top_logprobs=5, ignore_eos=True,
        prompt_logprobs=0,
    )  # fmt: skip
    assert chat.sampling == SamplingParams(7, 0.5, 0.25, 3, 4, ("e",), 5, 2, ignore_eos=True, prompt_logprobs=0)
    assert (chat.salt, chat.queue_priority, chat.echo) == ("s", -2, False)
    assert wanted("chat", max_tokens=7, max_completion_tokens=3).sampling.max_tokens == 3
    assert wanted("chat", logprobs=True).sampling.logprobs == 0
    assert wanted("chat", top_logprobs=5).sampling.logprobs is None
    text = wanted("completions", **common, max_tokens=0, stop=["a", "b"], echo=True, logprobs=2, prompt_logprobs=1)
    assert text.sampling == SamplingParams(0, 0.5, 0.25, stop=("a", "b"), logprobs=2, prompt_logprobs=2)
    assert (text.salt, text.queue_priority, text.echo) == ("s", -2, True)
    assert wanted("completions", logprobs=2).sampling.prompt_logprobs is None
    message = wanted("messages", **common, max_tokens=7, top_k=3, stop_sequences=["e"])
    assert message.sampling == SamplingParams(7, 0.5, 0.25, 3, stop=("e",))
    assert (message.salt, message.queue_priority) == ("s", -2)
    response = wanted("responses", **common, max_output_tokens=7)
    assert response.sampling == SamplingParams(7, 0.5, 0.25)
    assert (response.salt, response.queue_priority) == ("s", -2)


REFUSED: list[tuple[ApiName, str, list[Any]]] = [
    ("chat", "echo", [True]),
    ("chat", "frequency_penalty", [1]),
    ("chat", "modalities", [["text", "audio"]]),
    ("chat", "guided_regex", ["a"]),
    ("chat", "top_k", [-2, 2**31]),
    ("chat", "seed", [2**64, -(2**63) - 1]),
    ("chat", "priority", [2**31, -(2**31) - 1]),
    ("chat", "n", [0, 129]),
    ("chat", "prompt_logprobs", [-1, 21]),
    ("chat", "ignore_eos", [1]),
    ("chat", "cache_salt", [1]),
    ("completions", "logprobs", [-1, 21]),
    ("completions", "prompt", [["a"], [1, True], []]),
    ("completions", "echo", ["yes"]),
    ("messages", "thinking", [{"type": "other"}]),
    ("messages", "container", ["c"]),
    ("messages", "output_config", [{"style": "low"}]),
    ("messages", "system", [[{"type": "image"}]]),
    ("responses", "previous_response_id", ["r"]),
    ("responses", "background", [True]),
    ("responses", "input", [[{"type": "computer_call"}]]),
    ("responses", "input", [[{"role": "user", "content": content}] for content in ([{"type": "input_image"}], 5)]),
]
TAKEN: list[tuple[ApiName, str, list[Any]]] = [
    ("chat", "frequency_penalty", [0]),
    ("chat", "repetition_penalty", [1]),
    ("chat", "best_of", [1]),
    ("chat", "modalities", [["text"]]),
    ("chat", "continue_final_message", [False]),
    ("chat", "use_beam_search", [False]),
    ("chat", "top_k", [-1, 2**31 - 1]),
    ("chat", "seed", [2**64 - 1, -(2**63)]),
    ("chat", "priority", [2**31 - 1, -(2**31)]),
    ("chat", "n", [128]),
    ("chat", "prompt_logprobs", [20]),
    ("completions", "logprobs", [0, 20]),
    ("messages", "thinking", [{"type": "disabled"}, {"type": "enabled", "budget_tokens": 9}]),
    ("messages", "output_config", [{}, {"effort": "low"}]),
    ("messages", "mcp_servers", [[{}]]),
    ("responses", "tools", [[{"type": "web_search"}]]),
    ("responses", "background", [False]),
]


def test_unsupported_fields_are_rejected_by_name_and_other_values_accepted() -> None:
    for api, name, values in REFUSED:
        for value in values:
            with pytest.raises(InvalidRequest) as raised:
                wanted(api, **{name: value})
            assert raised.value.param == name
    for api, name, values in TAKEN:
        for value in values:
            assert wanted(api, **{name: value}).prompt == wanted(api).prompt
    with pytest.raises(InvalidRequest, match="remove stream"):
        wanted("chat", stream=True, prompt_logprobs=0)
    assert wanted("chat", stream=False, prompt_logprobs=0).sampling.prompt_logprobs == 0


def test_prompts_of_chats_and_messages_for_templates() -> None:
    parts = [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]
    chat = CODECS["chat"].decode_prompt
    given: Any = [{"role": "user", "content": parts}, {"role": "assistant", "content": None}]
    texts = Conversation(({"role": "user", "content": "ab"}, {"role": "assistant", "content": ""}))
    assert chat({"messages": given}) == texts
    for part in ({"type": "image"}, {"type": "text"}, "a"):
        with pytest.raises(InvalidRequest):
            chat({"messages": [{"role": "user", "content": [part]}]})  # type: ignore[list-item]
    messages = CODECS["messages"].decode_prompt
    calls: list[Any] = [
        {"type": "thinking", "thinking": "hm"},
        {"type": "text", "text": "c"},
        {"type": "tool_use", "id": "t", "name": "f", "input": {"a": 1}},
    ]
    results: list[Any] = [
        {"type": "tool_result", "tool_use_id": "t", "content": [{"type": "text", "text": "r"}]},
        {"type": "tool_result", "tool_use_id": "u"},
    ]
    tools: list[Any] = [{"name": "f", "description": "d", "input_schema": {"type": "object"}}, {"name": "g"}]
    turns = [USER, {"role": "assistant", "content": calls}, {"role": "user", "content": results}]
    found = messages({"system": parts, "messages": turns, "tools": tools})  # type: ignore[dict-item]
    call = {"id": "t", "type": "function", "function": {"name": "f", "arguments": '{"a":1}'}}
    assert found.messages == (
        {"role": "system", "content": "ab"},
        USER,
        {"role": "assistant", "content": "c", "tool_calls": [call], "reasoning_content": "hm"},
        {"role": "tool", "tool_call_id": "t", "content": "r"},
        {"role": "tool", "tool_call_id": "u", "content": ""},
    )
    assert [tool["function"] for tool in found.tools] == [
        {"name": "f", "description": "d", "parameters": {"type": "object"}},
        {"name": "g", "description": "", "parameters": {}},
    ]
    with pytest.raises(InvalidRequest, match="text only"):
        messages({"messages": [{"role": "user", "content": [{"type": "image"}]}]})


def test_prompts_of_responses_for_templates() -> None:
    prompt = CODECS["responses"].decode_prompt
    assert prompt({"input": "x", "instructions": "i"}) == Conversation(({"role": "system", "content": "i"}, USER))
    items: list[Any] = [
        {"role": "developer", "content": [{"type": "input_text", "text": "a"}, {"type": "text", "text": "b"}]},
        {"type": "function_call", "call_id": "c", "name": "f", "arguments": "{}"},
        {"type": "function_call_output", "call_id": "c", "output": "r"},
    ]
    tools: list[Any] = [{"type": "function", "name": "f", "strict": True}, {"type": "web_search"}]
    call = {"id": "c", "type": "function", "function": {"name": "f", "arguments": "{}"}}
    turns = (
        {"role": "system", "content": "ab"},
        {"role": "assistant", "content": "", "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "c", "content": "r"},
    )
    assert prompt({"input": items, "tools": tools}) == Conversation(
        turns, ({"type": "function", "function": {"name": "f"}},)
    )


SCHEMA: JsonObject = {"type": "object", "properties": {"a": {"type": "integer"}}}
TOOL: JsonObject = {"type": "function", "function": {"name": "f", "parameters": SCHEMA}}
BARE: JsonObject = {"type": "function", "function": {"name": "g"}}


def test_output_formats() -> None:
    assert wanted("chat", response_format={"type": "text"}).grammar is None
    anything = wanted("chat", response_format={"type": "json_object"}).grammar
    assert anything is not None
    assert (anything.kind, json.loads(anything.text)) == ("json_schema", {"type": "object"})
    form: JsonObject = {"type": "json_schema", "schema": SCHEMA}
    asked: list[tuple[ApiName, JsonObject]] = [
        ("chat", {"response_format": {"type": "json_schema", "json_schema": {"schema": SCHEMA}}}),
        ("completions", {"response_format": form}),
        ("messages", {"output_format": form}),
        ("messages", {"output_config": {"format": form}}),
        ("responses", {"text": {"format": form}}),
    ]
    for api, fields in asked:
        found = wanted(api, **fields).grammar
        assert found is not None
        assert json.loads(found.text) == SCHEMA
    without: list[Any] = [{"type": "grammar"}, {"type": "json_schema"}, 5]
    for bad in (*without, {"type": "json_schema", "json_schema": {"schema": 5}}):
        with pytest.raises(InvalidRequest):
            wanted("chat", response_format=bad)


@pytest.mark.parametrize(
    ("choice", "names", "required", "parallel"),
    [
        (None, ["f", "g"], False, True),
        ("auto", ["f", "g"], False, True),
        ({"type": "auto", "disable_parallel_tool_use": True}, ["f", "g"], False, False),
        ("required", ["f", "g"], True, True),
        ({"type": "any"}, ["f", "g"], True, True),
        ({"type": "function", "function": {"name": "g"}}, ["g"], True, False),
        ({"type": "tool", "name": "f"}, ["f"], True, False),
    ],
)
def test_tool_choices(choice: Any, names: list[str], required: bool, parallel: bool) -> None:
    tools = wanted("chat", tools=[TOOL, BARE], tool_choice=choice).tools
    assert tools is not None
    assert (list(tools.schemas), tools.required, tools.parallel) == (names, required, parallel)
    assert tools.schemas == {
        name: schema for name, schema in (("f", SCHEMA), ("g", {"type": "object"})) if name in names
    }
    one = wanted("chat", tools=[TOOL, BARE], tool_choice=choice, parallel_tool_calls=False).tools
    assert one is not None
    assert not one.parallel


def test_no_tools_and_invalid_tool_choices() -> None:
    assert wanted("chat", tools=[TOOL], tool_choice="none").tools is None
    assert wanted("chat", tools=[], tool_choice="required").tools is None
    both = {"tools": [TOOL], "response_format": {"type": "json_object"}}
    assert wanted("chat", **both, tool_choice="none").grammar is not None
    for fields in (both, {"tools": [{"type": "function", "function": {"name": ""}}]}, {"tools": [{"type": "custom"}]}):
        with pytest.raises(InvalidRequest):
            wanted("chat", **fields)
    for choice in ("sometimes", {"type": "function"}, {"type": "custom", "name": "f"}, {"type": "tool", "name": "h"}):
        with pytest.raises(InvalidRequest) as raised:
            wanted("chat", tools=[TOOL], tool_choice=choice)
        assert raised.value.param == "tool_choice"


def test_reasoning_items_become_a_part_of_the_answer_after_them() -> None:
    items: Any = [
        {"role": "user", "content": "a"},
        {"type": "reasoning", "content": [{"type": "reasoning_text", "text": "hm"}]},
        {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": "b"}]},
        {"role": "user", "content": "c"},
    ]
    found = CODECS["responses"].decode_prompt({"input": items})
    assert isinstance(found, Conversation)
    assert found.messages[1] == {"role": "assistant", "content": "b", "reasoning_content": "hm"}
    assert found.messages[2] == {"role": "user", "content": "c"}
