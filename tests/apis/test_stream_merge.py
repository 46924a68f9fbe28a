"""Streams of many servers are assembled completely, and ambiguous ones are not stored, with the cause."""

import asyncio
from typing import Any

import pytest

from kvproxy.apis import APIS
from kvproxy.apis.api import STREAM_FIELD, ApiName, response_for_client
from kvproxy.apis.json import JsonObject, as_object, dumps, loads
from kvproxy.apis.not_stored import UnstorableResponse
from kvproxy.apis.sse import DONE, EventReader, encode_event
from kvproxy.flow.backend_response import UpstreamReader

HEAD: JsonObject = {"id": "c", "object": "chat.completion.chunk", "created": 1, "model": "m"}


def assemble(api: ApiName, *events: Any, end: bytes = b"") -> JsonObject:
    reader = UpstreamReader(APIS[api], stream=True, limit=1 << 20)
    reader.push(b"".join(event if isinstance(event, bytes) else encode_event(event) for event in events) + end)
    whole = asyncio.run(reader.result())
    if obstacle := APIS[api].why_not_stored(whole, {}):
        raise UnstorableResponse(obstacle.cause, obstacle.detail)
    return whole


def chunk(delta: Any = None, reason: str | None = None, **fields: Any) -> JsonObject:
    return {**HEAD, "choices": [{"index": 0, "delta": delta or {}, "finish_reason": reason}], **fields}


def chat(*deltas: Any, **fields: Any) -> JsonObject:
    chunks = [delta if "choices" in delta else chunk(delta, **fields) for delta in deltas]
    return assemble("chat", *chunks, chunk({}, "stop"), encode_event(DONE))


def with_message(content: str, repeated: str) -> JsonObject:
    choice: JsonObject = {
        "index": 0,
        "delta": {"content": content},
        "message": {"content": repeated},
        "finish_reason": None,
    }
    return {**HEAD, "choices": [choice]}


def message_of(whole: JsonObject) -> Any:
    return as_object(whole["choices"][0])["message"]  # type: ignore[index, call-overload]


def replayed(api: ApiName, whole: JsonObject) -> list[Any]:
    stream = b"".join(APIS[api].replay(as_object(loads(dumps(whole))), {}))
    return [loads(event.data) for event in EventReader().push(stream) if event.data != DONE]


@pytest.mark.parametrize(
    ("deltas", "merged"),
    [
        # MiniMax and NIM repeat the name and the id in each delta.
        (
            [{"tool_calls": [{"index": 0, "id": "a", "type": "function", "function": {"name": "f", "arguments": part}}]}
             for part in ("", '{"a":', "1}")],
            {"tool_calls": [{"id": "a", "type": "function", "function": {"name": "f", "arguments": '{"a":1}'}}]},
        ),
        (
            [{"tool_calls": [{"index": 0, "id": "a", "function": {"name": name, "arguments": ""}}]} for name in ("get", "get_x")],
            {"tool_calls": [{"id": "a", "function": {"name": "get_x", "arguments": ""}}]},
        ),
        # Two calls in one chunk, two fragments of one call in one chunk, and indices that do not begin at 0.
        (
            [{"tool_calls": [{"index": 2, "id": "b", "function": {"name": "g", "arguments": "{"}},
                             {"index": 1, "id": "a", "function": {"name": "f", "arguments": "{}"}},
                             {"index": 2, "function": {"arguments": "}"}}]}],
            {"tool_calls": [{"id": "a", "function": {"name": "f", "arguments": "{}"}},
                            {"id": "b", "function": {"name": "g", "arguments": "{}"}}]},
        ),
        # Without indices, ids identify whole calls.
        (
            [{"tool_calls": [{"id": id, "function": {"name": "f", "arguments": "{}"}}]} for id in "ab"],
            {"tool_calls": [{"id": id, "function": {"name": "f", "arguments": "{}"}} for id in "ab"]},
        ),
        # OpenRouter repeats type, format, and null ids.
        (
            [{"reasoning_details": [{"type": "reasoning.text", "format": "f1", "id": None, "index": 0, **part}]}
             for part in ({"text": "a"}, {"text": "a"}, {"signature": "S"})],
            {"reasoning_details": [{"type": "reasoning.text", "format": "f1", "id": None, "index": 0, "text": "aa",
                                    "signature": "S"}]},
        ),
        ([{"audio": {"id": "x", "data": "QUJD"}}, {"audio": {"data": "QUJD", "transcript": "a"}}, {"audio": {"expires_at": 5}}],
         {"audio": {"id": "x", "data": "QUJDQUJD", "transcript": "a", "expires_at": 5}}),
        ([{"function_call": {"name": "f"}}, {"function_call": {"arguments": "{"}}, {"function_call": {"arguments": "}"}}],
         {"function_call": {"name": "f", "arguments": "{}"}}),
        ([{"content": "x"}, {"annotations": [{"type": "url_citation"}, {"type": "url_citation"}]}, {"annotations": []}],
         {"annotations": [{"type": "url_citation"}, {"type": "url_citation"}]}),
        ([{"content": None}, {"content": "ha"}, {"content": "ha"}], {"content": "haha"}),
        ([{"content": "x"}, {"vendor": {"score": 1, "note": "a"}}, {"vendor": {"score": 2, "note": "b"}}],
         {"vendor": {"score": 2, "note": "ab"}}),
        ([{"role": "assistant", "content": "a"}, {"role": "assistant", "content": "b"}], {"role": "assistant", "content": "ab"}),
        # Mistral's parts of content.
        ([{"content": [{"type": "thinking", "thinking": [{"type": "text", "text": "a"}]}]}],
         {"content": [{"type": "thinking", "thinking": [{"type": "text", "text": "a"}]}]}),
    ],
)  # fmt: skip
def test_deltas_are_merged_completely(deltas: list[JsonObject], merged: JsonObject) -> None:
    whole = chat(*deltas)
    assert {name: message_of(whole)[name] for name in merged} == merged
    again = assemble("chat", *replayed("chat", whole))
    assert message_of(again) == message_of(whole)


@pytest.mark.parametrize(
    ("deltas", "field"),
    [
        ([{"images": [{"type": "image_url"}]}, {"images": [{"type": "image_url"}]}], "images"),
        ([{"thinking_blocks": [{"thinking": text}]} for text in "ab"], "thinking_blocks"),
        ([{"sources": ["a"]}, {"sources": ["b"]}], "sources"),
        ([{"tool_calls": [{"index": 0, "id": id, "function": {"name": "f"}}]} for id in ("a", "b")], "tool_calls.id"),
        ([{"tool_calls": [{"index": 0, "id": id, "function": {"name": "f"}}]} for id in ("a1", "a10")], "tool_calls.id"),
        ([{"tool_calls": [{"index": 0, "function": {"name": n}}]} for n in ("get_", "x")], "tool_calls.function.name"),
        ([{"tool_calls": [{"index": 0, "function": {"arguments": '{"a":1}'}}]}] * 2, "tool_calls.function.arguments"),
        ([{"tool_calls": [{"index": 0, "function": {"arguments": a}}]} for a in ("{", '{"a":1}')],
         "tool_calls.function.arguments"),
        ([{"tool_calls": [{"function": {"name": "f"}}]}, {"tool_calls": [{"function": {"arguments": "{}"}}]}], "tool_calls"),
        ([{"reasoning_details": [{"index": 0, "type": kind}]} for kind in ("text", "encrypted")], "reasoning_details.type"),
        # Repeated in each delta, or more text?
        ([{"mood": "calm"}, {"mood": "calm"}], "mood"),
        ([{"content": "a"}, {"content": [{"text": "b"}]}], "content"),
        ([{"content": "a"}, {"content": {"text": "b"}}], "content"),
        ([{"annotations": [{"url": "a"}]}] * 2, "annotations"),
        ([{"tools": [{"index": 0, "arguments": a}]} for a in ('{"a":', '{"a":1}')], "tools.arguments"),
        ([{"vendor": {"a": 1}}, {"vendor": "x"}], "vendor"),
        ([chunk({"content": "a"}), chunk({}, "stop"), chunk({}, "length")], "finish_reason"),
        ([{**HEAD, "choices": [{"index": 0, "message": {"content": "a"}}]}], "message"),
        ([with_message("a", "a"), with_message("b", "ab"), with_message("c", "c")], "message"),
        ([chunk({"content": "a"}, citations=["a"]), chunk({}, citations=["b"])], "citations"),
        ([chunk({"content": "a"}, verdict="good"), chunk({}, verdict="bad")], "verdict"),
    ],
)  # fmt: skip
def test_ambiguous_deltas_are_not_stored(deltas: list[JsonObject], field: str) -> None:
    with pytest.raises(UnstorableResponse) as found:
        chat(*deltas)
    assert str(found.value.not_stored) == f"unmergeable field {field}"


def test_unknown_events_are_not_stored() -> None:
    progress = encode_event({**HEAD, "tool": "x", "choices": []}, "vendor.progress")
    typed = encode_event({"type": "vendor.progress"})
    for event, name in ((progress, "event vendor.progress"), (typed, "event")):
        with pytest.raises(UnstorableResponse, match=f"unmergeable field {name}"):
            assemble("chat", chunk({"content": "a"}), event, chunk({}, "stop"))
    for api in ("messages", "responses"):
        with pytest.raises(UnstorableResponse, match="unmergeable field event vendor"):
            assemble(api, {"type": "vendor.progress"})  # type: ignore[arg-type]


def test_fields_of_all_chunks_and_choices_are_kept_in_their_places() -> None:
    empty = {"id": "", "object": "", "created": 0, "model": "", "choices": [], "prompt_filter_results": [{"index": 0}]}
    first, last = chunk({"content": "a"}), chunk({}, "stop", citations=["u"], x_groq={"id": "q"})
    first["choices"][0] |= {"content_filter_results": {}, "token_ids": [5], "stop_reason": None}  # type: ignore[index, operator]
    last["choices"][0] |= {"content_filter_results": {"hate": {"severity": "safe"}}, "token_ids": [5], "stop_reason": 7}  # type: ignore[index, operator]
    whole = assemble("chat", empty, first, last, encode_event(DONE))
    served = as_object(loads(response_for_client(dumps(whole))))
    assert STREAM_FIELD not in served
    assert {name: served[name] for name in served if name != "choices"} == {
        **HEAD, "object": "chat.completion", "prompt_filter_results": [{"index": 0}], "citations": ["u"], "x_groq": {"id": "q"}
    }  # fmt: skip
    choice = as_object(served["choices"][0])  # type: ignore[index, call-overload]
    assert choice["content_filter_results"] == {"hate": {"severity": "safe"}}
    assert (choice["token_ids"], choice["stop_reason"]) == ([5, 5], 7)
    chunks = replayed("chat", whole)
    assert [("citations" in each, "prompt_filter_results" in each) for each in (chunks[0], chunks[-1])] == [
        (False, True),
        (True, False),
    ]
    assert all(each["id"] == "c" and each["model"] == "m" for each in chunks)
    assert ("stop_reason" in chunks[0]["choices"][0], chunks[-1]["choices"][0]["stop_reason"]) == (False, 7)


START: JsonObject = {"type": "message_start", "message": {"id": "m", "type": "message", "role": "assistant", "model": "m",
    "content": [], "stop_reason": None, "usage": {"input_tokens": 25, "output_tokens": 1}}}  # fmt: skip
BLOCK: JsonObject = {"type": "content_block_start", "index": 0, "content_block": {"type": "text", "text": ""}}
TEXT: JsonObject = {"type": "content_block_delta", "index": 0, "delta": {"type": "text_delta", "text": "hi"}}
STOP: JsonObject = {"type": "message_stop"}


def ended(usage: Any, reason: str | None = "end_turn", **fields: Any) -> JsonObject:
    return {"type": "message_delta", "delta": {"stop_reason": reason}, "usage": usage, **fields}


def test_both_usages_of_a_message_are_replayed_as_received() -> None:
    edits: JsonObject = {"context_management": {"applied_edits": [1]}}
    final = {"input_tokens": 40, "output_tokens": 9, "fallback_credit": {"status": "redeemed"}}
    usage_only = ended({"output_tokens": 9}, None)
    whole = assemble("messages", START, BLOCK, TEXT, ended(final, **edits), usage_only, STOP, b"event: message_stop")
    served = as_object(loads(response_for_client(dumps(whole))))
    assert (served["usage"], served["stop_reason"], served["context_management"]) == (
        final, "end_turn", {"applied_edits": [1]}
    )  # fmt: skip
    events = replayed("messages", whole)
    assert events[0]["message"]["usage"] == {"input_tokens": 25, "output_tokens": 1}
    assert "context_management" not in events[0]["message"]
    assert events[-2] == {"type": "message_delta", "delta": {"stop_reason": "end_turn"}, "usage": final, **edits}


def test_a_compaction_is_replayed_as_received() -> None:
    empty: JsonObject = {"type": "compaction", "content": None, "encrypted_content": None, "tool_changes": []}
    start: JsonObject = {"type": "content_block_start", "index": 0, "content_block": empty}
    summary: JsonObject = {"type": "compaction_delta", "content": "We counted.", "encrypted_content": "E"}
    delta: JsonObject = {"type": "content_block_delta", "index": 0, "delta": summary}
    stop: JsonObject = {"type": "content_block_stop", "index": 0}
    later: list[JsonObject] = [{**each, "index": 1} for each in (BLOCK, TEXT, stop)]
    events = [START, start, delta, stop, *later, ended({"output_tokens": 9}, input_transformations=[1]), STOP]
    whole: Any = assemble("messages", *events)
    assert whole["content"][0] == {**empty, "content": "We counted.", "encrypted_content": "E"}
    assert whole["input_transformations"] == [1]
    assert replayed("messages", whole) == events


def test_message_blocks_that_contradict_themselves_are_not_stored() -> None:
    tool = {"type": "content_block_start", "index": 0, "content_block": {"type": "tool_use", "input": {"a": 1}}}
    other = {"type": "content_block_delta", "index": 0, "delta": {"type": "input_json_delta", "partial_json": "{}"}}
    signed = [{**TEXT, "delta": {"type": "signature_delta", "signature": each}} for each in "AB"]
    reasons = (ended({}), ended({}, "tool_use"))
    for events, field in (
        ((tool, other), "input"), ((BLOCK, *signed), "signature"), ((BLOCK, TEXT, *reasons), "delta.stop_reason")
    ):  # fmt: skip
        with pytest.raises(UnstorableResponse, match=f"unmergeable field {field}"):
            assemble("messages", START, *events, STOP)
    # The start has the input already, and the delta is empty.
    blank = {**other, "delta": {"type": "input_json_delta", "partial_json": ""}}
    whole: Any = assemble("messages", START, tool, blank, ended({}, "tool_use"), STOP)
    assert whole["content"][0]["input"] == {"a": 1}


ITEMS: list[JsonObject] = [
    {"id": "rs", "type": "reasoning", "summary": [], "encrypted_content": "A"},
    {"id": "msg", "type": "message", "role": "assistant", "content": [{"type": "output_text", "text": "4", "annotations": []}]},
]  # fmt: skip
DELTA: JsonObject = {"type": "response.output_text.delta", "output_index": 1, "content_index": 0, "delta": "4"}


def finished(output: Any) -> JsonObject:
    response = {"id": "r", "object": "response", "status": "completed", "output": output}
    return {"type": "response.completed", "response": response}


def done(index: int, item: JsonObject | None = None) -> JsonObject:
    return {"type": "response.output_item.done", "output_index": index, "item": item or ITEMS[index]}


@pytest.mark.parametrize(
    "listed",
    [ITEMS, ITEMS[:1], [], None, [{**ITEMS[0], "status": None}, ITEMS[1]]],
)
def test_a_response_consists_of_its_finished_items(listed: Any) -> None:
    assert assemble("responses", done(1), DELTA, done(0), finished(listed))["output"] == ITEMS


def test_a_response_may_list_its_items_only_at_the_end() -> None:
    assert assemble("responses", DELTA, finished(ITEMS))["output"] == ITEMS


def test_the_final_event_completes_the_items() -> None:
    """OpenAI encrypts each event again, and Copilot changes the ids; SDKs read both in the final event.

    OpenAI leaves out the end of hosted tools, and bridges leave out indices.
    """
    later: Any = [{**ITEMS[0], "id": "other", "encrypted_content": "B"}, {**ITEMS[1], "id": "next"}]
    assert assemble("responses", done(0), DELTA, done(1), finished(later))["output"] == later
    assert assemble("responses", done(0), finished([{**ITEMS[0], "encrypted_content": None}]))["output"] == ITEMS[:1]
    added = {"type": "response.output_item.added", "output_index": 0, "item": ITEMS[0]}
    assert assemble("responses", added, DELTA, done(1), finished(ITEMS))["output"] == ITEMS
    far = {**DELTA, "output_index": 5}
    assert assemble("responses", done(0), far, {**done(1), "output_index": 5}, finished(ITEMS))["output"] == ITEMS


@pytest.mark.parametrize(("second", "form"), [(".", "delta"), ("Blue.", "whole")])
def test_messages_beside_deltas_are_repeated_in_their_form(second: str, form: str) -> None:
    """Writer repeats each delta, and Perplexity repeats all deltas and ends with another object."""
    last = with_message(".", second)
    last["choices"][0]["finish_reason"] = "stop"  # type: ignore[index, call-overload]
    whole = assemble("chat", with_message("Blue", "Blue"), {**last, "object": "chat.completion.done"})
    assert message_of(whole)["content"] == "Blue."
    chunks = replayed("chat", whole)
    assert {each["object"] for each in chunks[:-1]} == {"chat.completion.chunk"}
    assert chunks[-1]["object"] == "chat.completion.done"
    choices = [each["choices"][0] for each in chunks]
    expected = [each["delta"].get("content") for each in choices] if form == "delta" else ["", "Blue.", "Blue."]
    assert [each["message"].get("content") for each in choices] == expected


@pytest.mark.parametrize(
    ("events", "field"),
    [
        ((done(0), finished(ITEMS)), "output"),
        ((done(0), DELTA, finished(ITEMS[:1])), "output"),
        ((DELTA, finished(ITEMS[:1])), "output"),
        ((done(0), done(1), finished([{**ITEMS[1], "content": []}])), "output"),
        ((done(0), DELTA, DELTA, done(1), finished(ITEMS)), r"output\[1\].text"),
    ],
)
def test_contradictory_responses_are_not_stored(events: tuple[JsonObject, ...], field: str) -> None:
    with pytest.raises(UnstorableResponse, match=f"unmergeable field {field}"):
        assemble("responses", *events)


@pytest.mark.parametrize("depth", [100, 500])
@pytest.mark.parametrize("api", ["chat", "messages", "responses"])
def test_large_integers_and_deep_nesting_are_replayed(api: ApiName, depth: int) -> None:
    nested = loads(b'{"a":' * depth + b"100000000000000000000" + b"}" * depth)
    whole: JsonObject = {
        "chat": {"object": "chat.completion", "choices": [{"message": {"content": "a", "x": nested}, "finish_reason": "stop"}]},
        "messages": {"type": "message", "content": [{"type": "tool_use", "input": nested}], "stop_reason": "tool_use"},
        "responses": {"object": "response", "status": "completed", "output": [{"type": "mcp_call", "x": nested}]},
    }[api]  # type: ignore[assignment]  # fmt: skip
    stream = b"".join(APIS[api].replay(as_object(loads(dumps(whole))), {}))
    assert b"100000000000000000000" in stream


def test_too_deep_nesting_is_refused() -> None:
    nested: list[object] = []
    # Python 3.14 writes thousands of levels.
    for _ in range(200_000):
        nested = [nested]
    with pytest.raises(ValueError, match="nested too deeply"):
        dumps(nested)
