"""OpenAI's Responses API."""

from collections.abc import Iterator

from kvproxy.apis.api import Api, ApiName, Question, TokenCounts, last_turn_question, last_user_text, token_counts
from kvproxy.apis.field_checks import allows_semantic, check_common_fields, check_object, check_objects
from kvproxy.apis.json import JsonMap, JsonObject, as_list, as_object, as_text, field, objects, text_of
from kvproxy.apis.key_fields import RESPONSES
from kvproxy.apis.not_stored import Cause, NotStored
from kvproxy.apis.response_streams import ResponseAssembler
from kvproxy.apis.sse import encode_event, split_words
from kvproxy.errors import InvalidRequest

# Fields with the parts of an output item, by the item's type.
_PART_LISTS = {"message": ("content",), "reasoning": ("summary", "content")}
# Names in events, by the type of the part; other parts are refusals.
_PART_EVENTS = {name: name for name in ("output_text", "reasoning_text")} | {"summary_text": "reasoning_summary_text"}
# Names in events, and streamed fields, by the type of the tool call.
_CALL_EVENTS = {
    "function_call": ("function_call_arguments", "arguments"),
    "custom_tool_call": ("custom_tool_call_input", "input"),
    "mcp_call": ("mcp_call_arguments", "arguments"),
    "code_interpreter_call": ("code_interpreter_call_code", "code"),
}
# Events of hosted tools between `in_progress` and `completed`, by the type of the item.
_STATES = {
    "web_search_call": "searching",
    "file_search_call": "searching",
    "image_generation_call": "generating",
    "code_interpreter_call": "interpreting",
    "mcp_call": None,
    "mcp_list_tools": None,
}


class Responses(Api):
    name: ApiName = "responses"
    path = "/v1/responses"
    assembler = ResponseAssembler
    fields = RESPONSES

    def check(self, body: JsonMap) -> None:
        check_common_fields(body)
        source = body.get("input")
        if not isinstance(source, str | list) or not source:
            raise InvalidRequest("input is required: a text, or a list of items", param="input")
        if isinstance(source, list) and len(objects(source)) < len(source):
            raise InvalidRequest("input must be a text, or a list of objects", param="input")
        check_objects(body, "tools")
        for name in ("text", "reasoning", "metadata", "stream_options"):
            check_object(body, name)

    def is_cacheable(self, body: JsonMap) -> bool:
        # A container keeps files between requests.
        return super().is_cacheable(body) and not any(map(_container_of, objects(body.get("tools"))))

    def question(self, body: JsonObject) -> Question | None:
        source = body.get("input")
        rest = {name: value for name, value in body.items() if name != "text"}
        semantic = allows_semantic(rest) and is_plain_text(body)
        if isinstance(source, str):
            return Question(source, {**body, "input": None}, semantic) if source.strip() else None
        return last_turn_question(body, "input", _item_text, allows_semantic=semantic)

    def display_text(self, body: JsonMap) -> str:
        return last_user_text(body, "input")

    def why_not_stored(self, response: JsonObject, body: JsonMap) -> NotStored | None:
        output, status = response.get("output"), response.get("status")
        if response.get("error") is not None:
            return NotStored(Cause.ERROR)
        if response.get("object") != "response" or not isinstance(output, list):
            return NotStored(Cause.INVALID)
        # A container expires, and the client retrieves files from it.
        if any(map(_container_of, objects(output))):
            return NotStored(Cause.STATE, "container")
        reason = field(response.get("incomplete_details"), "reason")
        is_limited = reason == "max_output_tokens" and body.get("max_output_tokens") is not None
        if status != "completed" and not (status == "incomplete" and is_limited):
            return NotStored(Cause.INCOMPLETE, str(reason or status or ""))
        return None if output else NotStored(Cause.EMPTY)

    def output_text(self, response: JsonMap) -> str | None:
        output = [item for item in objects(response.get("output")) if item.get("type") != "reasoning"]
        return text_of(output[0].get("content"), "output_text") if len(output) == 1 else None

    def prompt_and_completion_tokens(self, response: JsonMap) -> TokenCounts:
        return token_counts(response, "input_tokens", "output_tokens")

    def replay(self, response: JsonObject, body: JsonMap) -> Iterator[bytes]:
        last = "response.completed" if response.get("status") == "completed" else "response.incomplete"
        unset: JsonObject = {"status": "in_progress", "output": [], "usage": None, "incomplete_details": None}
        events: list[JsonObject] = [
            {"type": f"response.{name}", "response": {**response, **unset}} for name in ("created", "in_progress")
        ]
        for index, item in enumerate(as_list(response["output"])):
            events += item_events(index, as_object(item))
        events.append({"type": last, "response": response})
        for number, event in enumerate(events):
            yield encode_event({**event, "sequence_number": number}, as_text(event["type"]))


def _container_of(tool: JsonObject) -> str | None:
    """Return the id of the container that a tool or a tool call uses."""
    ids = tool.get("container"), tool.get("container_id"), field(tool.get("environment"), "container_id")
    return next((id for id in ids if isinstance(id, str) and id), None)


def is_plain_text(body: JsonMap) -> bool:
    text = body.get("text")
    if text is None:
        return True
    kind = text.get("format") if isinstance(text, dict) else text
    return kind is None or field(kind, "type") == "text"


def _item_text(item: JsonObject) -> str | None:
    if item.get("type", "message") != "message":
        return None
    return text_of(item.get("content"), "output_text" if item.get("role") == "assistant" else "input_text")


def item_events(index: int, item: JsonObject) -> Iterator[JsonObject]:
    kind = str(item.get("type"))
    call, field_name = _CALL_EVENTS.get(kind, ("", ""))
    lists = _PART_LISTS.get(kind, ())
    start: JsonObject = {**item, **{name: [] for name in lists if name in item}}
    streamed = item.get(field_name)
    if isinstance(streamed, str):
        start[field_name] = ""
    if "status" in item:
        start["status"] = "in_progress"
    yield {"type": "response.output_item.added", "output_index": index, "item": start}
    at: JsonObject = {"item_id": item.get("id"), "output_index": index}
    for name in lists:
        for place, part in enumerate(as_list(item.get(name) or [])):
            yield from _part_events({**at, f"{name}_index": place}, as_object(part))
    if kind in _STATES:
        yield {"type": f"response.{kind}.in_progress", **at}
    if isinstance(streamed, str):
        yield {"type": f"response.{call}.delta", **at, "delta": streamed}
        function: JsonObject = {"name": item["name"]} if kind == "function_call" and "name" in item else {}
        yield {"type": f"response.{call}.done", **at, **function, field_name: streamed}
    if kind in _STATES:
        failed = item.get("error") is not None or item.get("status") == "failed"
        end = "failed" if failed and kind.startswith("mcp_") else "completed"
        yield from ({"type": f"response.{kind}.{state}", **at} for state in (_STATES[kind], end) if state)
    yield {"type": "response.output_item.done", "output_index": index, "item": item}


def _part_events(position: JsonObject, part: JsonObject) -> Iterator[JsonObject]:
    kind = _PART_EVENTS.get(str(part.get("type")), "refusal")
    name = "refusal" if kind == "refusal" else "text"
    parts = "reasoning_summary_part" if kind == "reasoning_summary_text" else "content_part"
    text = part.get(name) or ""
    logprobs: JsonObject = {"logprobs": part.get("logprobs") or []} if kind == "output_text" else {}
    start: JsonObject = {**part, name: "", **({"annotations": []} if "annotations" in part else {})}
    yield {"type": f"response.{parts}.added", **position, "part": start}
    for word in split_words(as_text(text)):
        yield {"type": f"response.{kind}.delta", **position, "delta": word, **({"logprobs": []} if logprobs else {})}
    for number, annotation in enumerate(as_list(part.get("annotations") or [])):
        extra: JsonObject = {"annotation_index": number, "annotation": annotation}
        yield {"type": "response.output_text.annotation.added", **position, **extra}
    yield {"type": f"response.{kind}.done", **position, name: text, **logprobs}
    yield {"type": f"response.{parts}.done", **position, "part": part}
