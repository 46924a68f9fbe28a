"""OpenAI's Responses."""

from collections.abc import Iterator
from itertools import chain
from typing import Any

from kvproxy.errors import InvalidRequest, KvproxyError
from kvproxy.proxy.dialects.dialect import Question, ask, counts, shown, text_of
from kvproxy.proxy.dialects.fields import check_common
from kvproxy.proxy.documents import loads
from kvproxy.proxy.sse import DONE, event, pieces

# A request with any of these is answered from an equal one only, never from a similar one.
_EXACT_ONLY = ("tools", "tool_choice", "include", "top_logprobs", "prompt", "reasoning")
_LAST = ("response.completed", "response.incomplete")


class Responses:
    """`/v1/responses`."""

    name = "responses"
    path = "/v1/responses"
    irrelevant = frozenset("stream stream_options user safety_identifier prompt_cache_key".split())

    def check(self, body: dict[str, Any]) -> None:
        check_common(body)
        given = body.get("input")
        if not isinstance(given, str | list) or not given:
            raise InvalidRequest("input is required: a text, or a list of items", param="input")
        if isinstance(given, list) and not all(isinstance(item, dict) for item in given):
            raise InvalidRequest("input is a text, or a list of objects", param="input")

    def cacheable(self, body: dict[str, Any]) -> bool:
        # A conversation changes with every request in it; a background job is asked for again by its id.
        return not (body.get("conversation") or body.get("background"))

    def question(self, body: dict[str, Any]) -> Question | None:
        given = body.get("input")
        similar = not any(body.get(name) for name in _EXACT_ONLY) and _plain(body.get("text"))
        if isinstance(given, str):
            return Question(given, body | {"input": None}, similar) if given.strip() else None
        if not isinstance(given, list) or not given or not all(isinstance(item, dict) for item in given):
            return None
        texts = [_item_text(item) for item in given]
        return ask(body, "input", given[-1], texts[-1], similar and None not in texts)

    def shown(self, body: dict[str, Any]) -> str:
        given = body.get("input")
        last = given[-1] if isinstance(given, list) and given else given
        return shown(last.get("content", last) if isinstance(last, dict) else last)

    def complete(self, whole: dict[str, Any]) -> bool:
        if whole.get("object") != "response" or whole.get("error") or not isinstance(whole.get("output"), list):
            return False
        reason = (whole.get("incomplete_details") or {}).get("reason")
        return whole.get("status") == "completed" or (
            whole.get("status") == "incomplete" and reason == "max_output_tokens"
        )

    def said(self, whole: dict[str, Any]) -> str | None:
        (item,) = whole["output"]
        return text_of(item["content"], "output_text")

    def usage(self, whole: dict[str, Any]) -> tuple[int, int]:
        return counts(whole, "input_tokens", "output_tokens")

    def assembler(self) -> "_Assembler":
        return _Assembler()

    def replay(self, whole: dict[str, Any], body: dict[str, Any]) -> Iterator[bytes]:
        last = "response.completed" if whole.get("status") == "completed" else "response.incomplete"
        begun = whole | {"status": "in_progress", "output": [], "usage": None, "incomplete_details": None}
        first = [{"type": f"response.{name}", "response": begun} for name in ("created", "in_progress")]
        parts: Iterator[dict[str, Any]] = chain(first, _items(whole["output"]), [{"type": last, "response": whole}])
        for number, part in enumerate(parts):
            yield event(part | {"sequence_number": number}, part["type"])

    def error(self, error: KvproxyError) -> dict[str, Any]:
        return error.body()


def _plain(text: Any) -> bool:
    """Whether a request's `text` setting asks for plain text."""
    if text is None:
        return True
    kind = text.get("format") if isinstance(text, dict) else text
    return kind is None or (isinstance(kind, dict) and kind.get("type") == "text")


def _item_text(item: dict[str, Any]) -> str | None:
    if item.get("type", "message") != "message":
        return None
    return text_of(item.get("content"), "output_text" if item.get("role") == "assistant" else "input_text")


def _items(output: list[dict[str, Any]]) -> Iterator[dict[str, Any]]:
    """The events that build up the items of an answer, without their numbers."""
    for index, item in enumerate(output):
        begun = item | {"status": "in_progress"} if "status" in item else item
        yield {"type": "response.output_item.added", "output_index": index, "item": begun | _emptied(item)}
        at = {"item_id": item.get("id"), "output_index": index}
        if item.get("type") == "message":
            for place, part in enumerate(item["content"]):
                yield from _content(at | {"content_index": place}, part)
        elif item.get("type") == "function_call":
            written = {"arguments": item["arguments"]}
            yield {"type": "response.function_call_arguments.delta", **at, "delta": item["arguments"]}
            named = {"name": item["name"]} if "name" in item else {}
            yield {"type": "response.function_call_arguments.done", **at, **named, **written}
        yield {"type": "response.output_item.done", "output_index": index, "item": item}


def _emptied(item: dict[str, Any]) -> dict[str, Any]:
    match item.get("type"):
        case "message":
            return {"content": []}
        case "function_call":
            return {"arguments": ""}
    return {}


def _content(at: dict[str, Any], part: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """The events of one part of a message: its text, or its refusal."""
    kind, field = ("output_text", "text") if part.get("type") == "output_text" else ("refusal", "refusal")
    text = part.get(field) or ""
    logprobs: dict[str, Any] = {"logprobs": part.get("logprobs") or []} if kind == "output_text" else {}
    emptied = part | {field: ""} | ({"annotations": []} if "annotations" in part else {})
    yield {"type": "response.content_part.added", **at, "part": emptied}
    for piece in pieces(text):
        yield {"type": f"response.{kind}.delta", **at, "delta": piece} | ({"logprobs": []} if logprobs else {})
    for number, annotation in enumerate(part.get("annotations") or ()):
        extra = {"annotation_index": number, "annotation": annotation}
        yield {"type": "response.output_text.annotation.added", **at, **extra}
    yield {"type": f"response.{kind}.done", **at, field: text, **logprobs}
    yield {"type": "response.content_part.done", **at, "part": part}


class _Assembler:
    """See `Assembler`. The last event carries the whole object, so nothing needs to be put together."""

    def __init__(self) -> None:
        self._whole: dict[str, Any] | None = None
        self.done = False

    def push(self, data: bytes) -> None:
        if data == DONE:
            return
        part = loads(data)
        if part["type"] == "error":
            raise ValueError("the stream ended in an error")
        if part["type"] in _LAST:
            self._whole = dict(part["response"])
            self.done = True

    def result(self, usage: dict[str, Any] | None = None) -> dict[str, Any] | None:
        return self._whole if self._whole is not None and Responses().complete(self._whole) else None
