"""OpenAI's Responses."""

from collections.abc import Iterator
from itertools import chain

from kvproxy.apis.api import ApiName, Question, ask, counts, openai_error
from kvproxy.apis.fields import check_common, check_object, check_objects, fits_similar_questions
from kvproxy.apis.json import (
    Json,
    JsonMap,
    JsonObject,
    as_list,
    as_object,
    as_text,
    field,
    loads,
    objects,
    shown,
    text_of,
)
from kvproxy.apis.sse import DONE, Event, event, pieces
from kvproxy.errors import InvalidRequest, KvproxyError

_LAST = ("response.completed", "response.incomplete")


class ResponseAssembler:
    """See `Assembler`. The last event carries the whole object, so nothing needs to be put together."""

    def __init__(self) -> None:
        self._whole: JsonObject | None = None
        self.done = False

    def push(self, event: Event) -> None:
        if event.data == DONE:
            return
        part = as_object(loads(event.data))
        if event.name == b"error" or part["type"] == "error":
            raise ValueError("the stream ended in an error")
        if self.done:
            raise ValueError("an event after the end of the stream")
        if part["type"] in _LAST:
            self._whole = dict(as_object(part["response"]))
            self.done = True

    def result(self) -> JsonObject | None:
        return self._whole


class Responses:
    """`/v1/responses`."""

    name: ApiName = "responses"
    path = "/v1/responses"
    irrelevant = frozenset(
        "stream stream_options user safety_identifier prompt_cache_key prompt_cache_options prompt_cache_retention"
        " cache_control diagnostics".split()
    )

    def check(self, body: JsonMap) -> None:
        check_common(body)
        given = body.get("input")
        if not isinstance(given, str | list) or not given:
            raise InvalidRequest("input is required: a text, or a list of items", param="input")
        if isinstance(given, list) and len(objects(given)) < len(given):
            raise InvalidRequest("input is a text, or a list of objects", param="input")
        check_objects(body, "tools")
        for name in ("text", "reasoning", "metadata", "stream_options"):
            check_object(body, name)

    def cacheable(self, body: JsonMap) -> bool:
        # A conversation changes with every request in it; a background job is asked for again by its id.
        return not (body.get("conversation") or body.get("background"))

    def question(self, body: JsonObject) -> Question | None:
        given = body.get("input")
        rest = {name: value for name, value in body.items() if name != "text"}
        similar = fits_similar_questions(rest) and plain_text(body)
        if isinstance(given, str):
            return Question(given, {**body, "input": None}, similar) if given.strip() else None
        items = objects(given)
        if not isinstance(given, list) or not items or len(items) < len(given):
            return None
        texts = [_item_text(item) for item in items]
        return ask(body, "input", items[-1], texts[-1], similar and None not in texts)

    def shown(self, body: JsonMap) -> str:
        given = body.get("input")
        last = given[-1] if isinstance(given, list) and given else given
        return shown(last.get("content", last) if isinstance(last, dict) else last)

    def keeps(self, whole: JsonObject, body: JsonMap) -> bool:
        output = whole.get("output")
        if whole.get("object") != "response" or whole.get("error") is not None:
            return False
        if not isinstance(output, list) or not output:
            return False
        if whole.get("status") == "completed":
            return True
        reason = field(whole.get("incomplete_details"), "reason")
        cut = whole.get("status") == "incomplete" and reason == "max_output_tokens"
        return cut and body.get("max_output_tokens") is not None

    def said(self, whole: JsonMap) -> str | None:
        output = whole.get("output")
        if not isinstance(output, list) or len(output) != 1:
            return None
        return text_of(field(output[0], "content"), "output_text")

    def usage(self, whole: JsonMap) -> tuple[int, int]:
        return counts(whole, "input_tokens", "output_tokens")

    def assembler(self) -> ResponseAssembler:
        return ResponseAssembler()

    def replay(self, whole: JsonObject, body: JsonMap) -> Iterator[bytes]:
        last = "response.completed" if whole.get("status") == "completed" else "response.incomplete"
        begun: JsonObject = {**whole, "status": "in_progress", "output": [], "usage": None, "incomplete_details": None}
        first: list[JsonObject] = [
            {"type": f"response.{name}", "response": begun} for name in ("created", "in_progress")
        ]
        end: list[JsonObject] = [{"type": last, "response": whole}]
        for number, part in enumerate(chain(first, _items(as_list(whole["output"])), end)):
            yield event({**part, "sequence_number": number}, as_text(part["type"]))

    def error(self, error: KvproxyError) -> JsonObject:
        return openai_error(error)


def plain_text(body: JsonMap) -> bool:
    """Whether a request asks for plain text, and for no structured output."""
    text = body.get("text")
    if text is None:
        return True
    kind = text.get("format") if isinstance(text, dict) else text
    return kind is None or field(kind, "type") == "text"


def _item_text(item: JsonObject) -> str | None:
    if item.get("type", "message") != "message":
        return None
    return text_of(item.get("content"), "output_text" if item.get("role") == "assistant" else "input_text")


def _items(output: list[Json]) -> Iterator[JsonObject]:
    """The events that build up the items of an answer, without their numbers."""
    for index, given in enumerate(output):
        item = as_object(given)
        begun: JsonObject = {**item, "status": "in_progress"} if "status" in item else item
        yield {"type": "response.output_item.added", "output_index": index, "item": {**begun, **_emptied(item)}}
        at: JsonObject = {"item_id": item.get("id"), "output_index": index}
        if item.get("type") == "message":
            for place, part in enumerate(as_list(item["content"])):
                yield from _content({**at, "content_index": place}, as_object(part))
        elif item.get("type") == "function_call":
            written: JsonObject = {"arguments": item["arguments"]}
            yield {"type": "response.function_call_arguments.delta", **at, "delta": item["arguments"]}
            named: JsonObject = {"name": item["name"]} if "name" in item else {}
            yield {"type": "response.function_call_arguments.done", **at, **named, **written}
        yield {"type": "response.output_item.done", "output_index": index, "item": item}


def _emptied(item: JsonObject) -> JsonObject:
    match item.get("type"):
        case "message":
            return {"content": []}
        case "function_call":
            return {"arguments": ""}
    return {}


def _content(at: JsonObject, part: JsonObject) -> Iterator[JsonObject]:
    """The events of one part of a message: its text, or its refusal."""
    kind, name = ("output_text", "text") if part.get("type") == "output_text" else ("refusal", "refusal")
    text = part.get(name) or ""
    scored: JsonObject = {"logprobs": part.get("logprobs") or []} if kind == "output_text" else {}
    emptied: JsonObject = {**part, name: "", **({"annotations": []} if "annotations" in part else {})}
    yield {"type": "response.content_part.added", **at, "part": emptied}
    for piece in pieces(as_text(text)):
        yield {"type": f"response.{kind}.delta", **at, "delta": piece, **({"logprobs": []} if scored else {})}
    for number, annotation in enumerate(as_list(part.get("annotations") or [])):
        extra: JsonObject = {"annotation_index": number, "annotation": annotation}
        yield {"type": "response.output_text.annotation.added", **at, **extra}
    yield {"type": f"response.{kind}.done", **at, name: text, **scored}
    yield {"type": "response.content_part.done", **at, "part": part}
