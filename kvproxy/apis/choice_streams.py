"""Assembles the streams of chat completions and completions."""

from kvproxy.apis.api import STREAM_FIELD, Assembler
from kvproxy.apis.json import Json, JsonMap, JsonObject, as_index, as_list, as_object, as_text, field, objects
from kvproxy.apis.not_stored import Cause, Unmergeable, UnstorableResponse
from kvproxy.apis.sse import DONE, Event
from kvproxy.apis.stream_merge import append_lists, merge_delta, merge_whole_values

# OpenAI and Mistral pad chunks with a text of random length: `obfuscation` and `p`.
_OUTSIDE_HEAD = ("choices", "usage", "error", "obfuscation", "p")
# Fields with the same value in every chunk. Of a value that changes, the first one counts.
_HEAD_FIELDS = ("id", "object", "created", "model")
REPEATED_FIELDS = (*_HEAD_FIELDS, "system_fingerprint", "service_tier")
OUTSIDE_CHOICE = ("index", "delta", "message", "text", "finish_reason", "logprobs")


_OUTPUT_FIELDS = ("content", "tool_calls", "function_call", "reasoning_content", "reasoning")
_NO_VALUES: tuple[Json, ...] = (None, "", [], {})


class FieldPlaces:
    """Whether fields of chunks arrived only in the first chunk, or only later. Other fields arrived in both."""

    def __init__(self, places: JsonMap | None = None) -> None:
        given = places or {}
        self.early: set[Json] = set(as_list(given.get("early") or []))
        self.late: set[Json] = set(as_list(given.get("late") or []))

    def add(self, chunk: JsonMap, seen: JsonMap, *, is_first: bool) -> None:
        for name in (name for name, value in chunk.items() if value not in _NO_VALUES):
            if is_first:
                self.early.add(name)
            else:
                self.early.discard(name)
                if seen.get(name) in _NO_VALUES:
                    self.late.add(name)

    def facts(self) -> JsonObject:
        places: JsonObject = {
            "early": list[Json](sorted(map(str, self.early))),
            "late": list[Json](sorted(map(str, self.late))),
        }
        return {name: fields for name, fields in places.items() if fields}

    def select(self, fields: JsonMap, place: str) -> JsonObject:
        """Return the fields of the first chunk (`early`) or of the last chunk (`late`)."""
        excluded = self.late if place == "early" else self.early
        return {name: value for name, value in fields.items() if name not in excluded}


class ChoiceAssembler(Assembler):
    def __init__(self) -> None:
        self._head: JsonObject = {}
        self._choices: dict[int, JsonObject] = {}
        self._usage: JsonObject = {}
        self._num_chunks = 0
        self._places = FieldPlaces()
        self._choice_places: dict[int, FieldPlaces] = {}
        self._unfinished: set[int] = set()
        self._text_parts: set[int] = set()
        self._messages: dict[int, set[Json]] = {}
        self._last_object: Json = None
        self._has_usage_beside_choices = False

    def push(self, event: Event) -> None:
        if event.data == DONE:
            self.done = True
        else:
            super().push(event)

    def add(self, part: JsonObject, name: bytes) -> None:
        if name not in (b"", b"message") or not part.keys() & {"choices", "usage", "object"}:
            raise Unmergeable(f"event {name.decode('utf-8', 'replace')}".rstrip())
        self._add_head({name: value for name, value in part.items() if name not in _OUTSIDE_HEAD})
        choices = as_list(part.get("choices") or [])
        if usage := part.get("usage"):
            merge_whole_values(self._usage, as_object(usage), "usage")
            self._has_usage_beside_choices = bool(choices)
        for choice in choices:
            self._merge(as_object(choice))

    def _add_head(self, fields: JsonObject) -> None:
        extra = {name: value for name, value in fields.items() if name not in REPEATED_FIELDS}
        self._places.add(extra, self._head, is_first=self._num_chunks == 0)
        self._num_chunks += 1
        self._last_object = fields.get("object") or self._last_object
        for name in _HEAD_FIELDS:
            # Azure's first chunk has an empty head.
            if name in fields:
                self._head[name] = self._head.get(name) or fields.pop(name)
                fields.pop(name, None)
        merge_whole_values(self._head, fields)

    def _merge(self, choice: JsonObject) -> None:
        index = as_index(choice.get("index", 0))
        is_first = index not in self._choices
        merged = self._choices.setdefault(index, {"index": index, "finish_reason": None})
        before, reason = merged["finish_reason"], choice.get("finish_reason")
        if _has_content(choice):
            self._unfinished.add(index)
        if reason:
            if before not in (None, reason):
                raise Unmergeable("finish_reason")
            merged["finish_reason"] = reason
            self._unfinished.discard(index)
        if "text" in choice:
            merged["text"] = as_text(merged.get("text", "")) + as_text(choice["text"] or "")
        if "delta" in choice:
            self._merge_delta(index, as_object(merged.setdefault("message", {})), as_object(choice["delta"] or {}))
        if "message" in choice:
            self._check_message(index, choice, merged)
        if choice.get("logprobs"):
            append_lists(as_object(merged.setdefault("logprobs", {})), as_object(choice["logprobs"]), "logprobs")
        rest = {name: value for name, value in choice.items() if name not in OUTSIDE_CHOICE}
        self._choice_places.setdefault(index, FieldPlaces()).add(rest, merged, is_first=is_first)
        merge_whole_values(merged, rest)

    def _merge_delta(self, index: int, message: JsonObject, delta: JsonObject) -> None:
        before, content = message.get("content"), delta.get("content")
        if isinstance(content, list) and any(field(part, "type") == "text" for part in content):
            self._text_parts.add(index)
        # Mistral and Databricks send thoughts as parts, and the answer as text.
        if before and isinstance(before, str) and isinstance(content, list):
            message["content"] = text_parts(before)
        elif content and isinstance(content, str) and isinstance(before, list):
            delta = {**delta, "content": text_parts(content)}
        elif content == "" and isinstance(before, list):
            delta = {name: value for name, value in delta.items() if name != "content"}
        merge_delta(message, delta)

    def _check_message(self, index: int, choice: JsonObject, merged: JsonObject) -> None:
        """Check that the message of a chunk repeats its delta, as Writer sends it, or all deltas, as Perplexity does."""
        message = _filled(choice["message"])
        forms = {"delta": _filled(choice.get("delta")), "whole": _filled(merged.get("message"))}
        fitting = {name for name, form in forms.items() if form == message}
        self._messages[index] = self._messages.get(index, {*forms}) & fitting
        if not self._messages[index]:
            raise Unmergeable("message")

    def result(self) -> JsonObject:
        finished = bool(self._choices) and all(choice["finish_reason"] for choice in self._choices.values())
        if not self.done and not finished:
            raise UnstorableResponse(Cause.NO_DONE)
        if finished and self._unfinished:
            raise UnstorableResponse(Cause.INCOMPLETE, "output after the finish reason")
        kind = str(self._head.get("object", "")).removesuffix(".chunk")
        choices: list[Json] = [_complete_choice(self._choices[index]) for index in sorted(self._choices)]
        response: JsonObject = {**self._head, "object": kind, "choices": choices}
        if self._usage:
            response["usage"] = self._usage
        return {**response, STREAM_FIELD: facts} if (facts := self._facts()) else response

    def _facts(self) -> JsonObject:
        choices: JsonObject = {
            str(index): choice_facts
            for index, places in self._choice_places.items()
            if (choice_facts := {**places.facts(), **self._message_facts(index)})
        }
        facts: JsonObject = {**self._places.facts(), "choices": choices}
        if self._last_object != self._head.get("object"):
            facts["last_object"] = self._last_object
        if self._has_usage_beside_choices:
            facts["usage_beside_choices"] = True
        return {name: value for name, value in facts.items() if value}

    def _message_facts(self, index: int) -> JsonObject:
        facts: JsonObject = {"text_parts": True} if index in self._text_parts else {}
        return {**facts, "message": max(map(str, forms))} if (forms := self._messages.get(index)) else facts


def text_parts(text: str) -> list[Json]:
    return [{"type": "text", "text": text}]


def _filled(message: Json) -> JsonObject:
    return {name: value for name, value in as_object(message or {}).items() if value not in _NO_VALUES}


def _complete_choice(choice: JsonObject) -> JsonObject:
    message = choice.get("message")
    if not isinstance(message, dict):
        return choice
    whole: JsonObject = {"role": "assistant", "content": None, **message}
    if isinstance(calls := message.get("tool_calls"), list):
        whole["tool_calls"] = [_complete_call(call) for call in objects(calls)]
    return {**choice, "message": whole}


def _complete_call(call: JsonObject) -> JsonObject:
    whole: JsonObject = {name: value for name, value in call.items() if name != "index"}
    if isinstance(function := call.get("function"), dict):
        given = {name: value for name, value in function.items() if value is not None}
        whole["function"] = {"name": "", "arguments": "", **given}
    return whole


def _has_content(choice: JsonObject) -> bool:
    return bool(choice.get("text") or any(field(choice.get("delta"), name) for name in _OUTPUT_FIELDS))
