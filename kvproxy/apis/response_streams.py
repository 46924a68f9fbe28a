"""Assembles the streams of the Responses API."""

from kvproxy.apis.api import Assembler
from kvproxy.apis.json import Json, JsonObject, as_index, as_list, as_object, as_text, field
from kvproxy.apis.not_stored import Cause, Unmergeable, UnstorableResponse
from kvproxy.apis.sse import DONE, Event

_LAST = ("response.completed", "response.incomplete")
# Events that are not parts of items, and that repeat the response or nothing of it.
_WITHOUT_OUTPUT = (
    "response.created",
    "response.queued",
    "response.in_progress",
    "ping",
    "keepalive",
    "codex.rate_limits",
)
# List and field of an item with the text of a delta, by the type of the event. The list is empty for fields of the item.
_TEXTS = {
    "response.output_text.delta": ("content", "text"),
    "response.refusal.delta": ("content", "refusal"),
    "response.reasoning_text.delta": ("content", "text"),
    "response.reasoning_summary_text.delta": ("summary", "text"),
    "response.function_call_arguments.delta": ("", "arguments"),
    "response.mcp_call_arguments.delta": ("", "arguments"),
    "response.custom_tool_call_input.delta": ("", "input"),
    "response.code_interpreter_call_code.delta": ("", "code"),
}
_EMPTY: tuple[Json, ...] = (None, "", [], {})
# Servers encrypt a reasoning item anew for each event. SDKs return the item of the final event.
_RANDOM = ("encrypted_content", "fingerprint")


class ResponseAssembler(Assembler):
    """Assembles the response from its finished items. The final event may list fewer items, but no different ones."""

    def __init__(self) -> None:
        self._response: JsonObject = {}
        self._items: dict[int, JsonObject] = {}
        self._started: set[int] = set()
        self._texts: dict[tuple[int, str, int, str], str] = {}

    def push(self, event: Event) -> None:
        if event.data != DONE:
            super().push(event)

    def add(self, part: JsonObject, name: bytes) -> None:
        kind = as_text(part["type"])
        if kind in _LAST:
            self._response = dict(as_object(part["response"]))
            self.done = True
        elif kind == "response.failed":
            raise UnstorableResponse(Cause.ERROR, kind)
        elif "output_index" in part:
            self._add_part_of_item(kind, as_index(part["output_index"]), part)
        elif kind not in _WITHOUT_OUTPUT:
            raise Unmergeable(f"event {kind}")

    def _add_part_of_item(self, kind: str, index: int, part: JsonObject) -> None:
        self._started.add(index)
        if kind == "response.output_item.done":
            self._items[index] = as_object(part["item"])
        elif kind in _TEXTS:
            list_name, name = _TEXTS[kind]
            place = as_index(part[f"{list_name}_index"]) if list_name else 0
            key = (index, list_name, place, name)
            self._texts[key] = self._texts.get(key, "") + as_text(part["delta"])

    def result(self) -> JsonObject:
        if not self.done:
            raise UnstorableResponse(Cause.INCOMPLETE)
        items = self._output(as_list(self._response.get("output") or []))
        for (index, list_name, place, name), text in self._texts.items():
            holder = items[index]
            if list_name:
                holder = dict(enumerate(as_list(field(holder, list_name) or []))).get(place)
            if field(holder, name) != text:
                raise Unmergeable(f"output[{index}].{name}")
        return {**self._response, "output": [items[index] for index in sorted(items)]}

    def _output(self, listed: list[Json]) -> dict[int, Json]:
        """Return the items by their index in the events."""
        if not self._items:
            # A server without events for finished items lists all items at the end.
            if self._started and len(listed) <= max(self._started):
                raise Unmergeable("output")
            return dict(enumerate(listed))
        started = sorted(self._started)
        if len(listed) == len(started):
            # OpenAI lists items whose end it did not send. Other servers leave out indices.
            pairs = zip(started, listed, strict=True)
            return {index: _complete_item(self._items.get(index), item) for index, item in pairs}
        if len(listed) > len(started) or sorted(self._items) != list(range(len(started))):
            raise Unmergeable("output")
        output: dict[int, Json] = {index: self._items[index] for index in started}
        for item in listed:
            index = next((index for index in started if _is_same_item(item, self._items[index])), None)
            if index is None:
                raise Unmergeable("output")
            output[index] = _complete_item(self._items[index], item)
        return output


def _complete_item(finished: JsonObject | None, listed: Json) -> Json:
    """Return a finished item as the final event lists it, which may have another id, and fewer fields. Raises Unmergeable."""
    if finished is None:
        return listed
    item = as_object(listed)
    if not _is_same_item({**finished, "id": None}, {**item, "id": None}):
        raise Unmergeable("output")
    return {**finished, **{name: value for name, value in item.items() if value not in _EMPTY}}


def _is_same_item(item: Json, other: Json) -> bool:
    return _comparable(item) == _comparable(other)


def _comparable(value: Json) -> Json:
    """Return a value without empty fields, which one of two events may omit."""
    if isinstance(value, list):
        return [_comparable(inner) for inner in value]
    if not isinstance(value, dict):
        return value
    fields = {name: _comparable(inner) for name, inner in value.items() if name not in _RANDOM}
    return {name: inner for name, inner in fields.items() if inner not in _EMPTY}
