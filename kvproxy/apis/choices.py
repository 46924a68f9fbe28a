from collections.abc import Iterator
from typing import ClassVar

from kvproxy.apis.api import Api
from kvproxy.apis.json import Json, JsonMap, JsonObject, as_index, as_list, as_object, as_text, field, loads
from kvproxy.apis.sse import DONE, Event, encode_event

# Finish reasons of complete responses in all supported servers.
_COMPLETE = frozenset("stop tool_calls function_call eos eos_token stop_sequence end_turn".split())
_LIMITS = ("max_tokens", "max_completion_tokens")


class ChoiceAssembler:
    def __init__(self) -> None:
        self._head: JsonObject = {}
        self._choices: dict[int, JsonObject] = {}
        self._usage: Json = None
        self.done = False

    def push(self, event: Event) -> None:
        if event.data == DONE:
            self.done = True
            return
        if self.done:
            raise ValueError("an event after the end of the stream")
        chunk = as_object(loads(event.data))
        if event.name == b"error" or chunk.get("error") is not None:
            raise ValueError("the stream ended in an error")
        if not self._head:
            self._head = {name: value for name, value in chunk.items() if name not in ("choices", "usage", "error")}
        self._usage = chunk.get("usage") or self._usage
        for choice in as_list(chunk.get("choices") or []):
            self._merge(as_object(choice))

    def _merge(self, choice: JsonObject) -> None:
        index = as_index(choice.get("index", 0))
        merged = self._choices.setdefault(index, {"index": index, "finish_reason": None})
        before, reason = merged["finish_reason"], choice.get("finish_reason")
        if before and (_has_content(choice) or reason not in (None, before)):
            raise ValueError("a choice continues after its finish_reason")
        merged["finish_reason"] = reason or before
        if "text" in choice:
            merged["text"] = as_text(merged.get("text", "")) + as_text(choice["text"] or "")
        if "delta" in choice:
            _merge_delta(as_object(merged.setdefault("message", {})), as_object(choice["delta"] or {}))
        if choice.get("logprobs"):
            merge_logprobs(as_object(merged.setdefault("logprobs", {})), as_object(choice["logprobs"]))
        if choice.get("prompt_logprobs"):
            merged["prompt_logprobs"] = choice["prompt_logprobs"]

    def result(self) -> JsonObject | None:
        if not self.done:
            return None
        kind = str(self._head.get("object", "")).removesuffix(".chunk")
        choices: list[Json] = [self._choices[index] for index in sorted(self._choices)]
        response: JsonObject = {**self._head, "object": kind, "choices": choices}
        return {**response, "usage": self._usage} if self._usage else response


class ChoicesApi(Api):
    assembler = ChoiceAssembler
    chunk_fields: ClassVar[JsonObject] = {}
    """Fields whose values in a chunk differ from their values in a complete response, such as `object`."""

    ignored_fields = frozenset(
        "stream stream_options user metadata store service_tier safety_identifier prompt_cache_key"
        " prompt_cache_options prompt_cache_retention cache_control diagnostics".split()
    )

    def is_cacheable(self, body: JsonMap) -> bool:
        # Streams have no log-probabilities of the prompt.
        return body.get("prompt_logprobs") is None or not body.get("stream")

    def has_output(self, choice: JsonObject) -> bool:
        raise NotImplementedError

    def chunk_choices(self, index: int, choice: JsonObject) -> Iterator[JsonObject]:
        """Yield the parts of a choice that are sent in separate chunks."""
        raise NotImplementedError

    def is_storable(self, response: JsonObject, body: JsonMap) -> bool:
        choices = response.get("choices")
        if not isinstance(choices, list) or not choices or response.get("error") is not None:
            return False
        if not isinstance(response.get("usage"), dict | None):
            return False
        has_limit = any(body.get(name) is not None for name in _LIMITS)
        for choice in choices:
            if not isinstance(choice, dict) or not self.has_output(choice):
                return False
            reason = choice.get("finish_reason")
            if not (reason in _COMPLETE or (reason == "length" and has_limit)):
                return False
        return True

    def replay(self, response: JsonObject, body: JsonMap) -> Iterator[bytes]:
        head: JsonObject = {name: value for name, value in response.items() if name not in ("choices", "usage")}
        head |= self.chunk_fields
        has_usage = includes_usage(body)
        extra: JsonObject = {"usage": None} if has_usage else {}
        for place, each in enumerate(as_list(response["choices"])):
            choice = as_object(each)
            index = choice.get("index")
            for part in self.chunk_choices(index if isinstance(index, int) else place, choice):
                yield encode_event({**head, "choices": [part], **extra})
        if has_usage and response.get("usage"):
            yield encode_event({**head, "choices": [], "usage": response["usage"]})
        yield encode_event(DONE)


def _has_content(choice: JsonObject) -> bool:
    return bool(choice.get("text") or any(field(choice.get("delta"), name) for name in ("content", "tool_calls")))


def _merge_delta(message: JsonObject, delta: JsonObject) -> None:
    for name, value in delta.items():
        before = message.get(name)
        if name == "tool_calls" and value:
            calls = as_list(message.setdefault("tool_calls", []))
            for part in as_list(value):
                _merge_tool_call(calls, as_object(part))
        elif isinstance(value, str) and isinstance(before, str) and name != "role":
            message[name] = before + value
        elif value is not None or name not in message:
            message[name] = value


def _merge_tool_call(calls: list[Json], part: JsonObject) -> None:
    index = as_index(part.get("index", 0))
    if index == len(calls):
        calls.append({"function": {"name": "", "arguments": ""}})
    if index >= len(calls):
        raise ValueError("tool calls are out of order")
    call = as_object(calls[index])
    if part.get("id") and call.get("id", part["id"]) != part["id"]:
        raise ValueError("two tool calls have the same index")
    call.update({name: value for name, value in part.items() if name not in ("index", "function") and value})
    function = as_object(call["function"])
    for name, value in as_object(part.get("function") or {}).items():
        function[name] = as_text(function.get(name, "")) + as_text(value or "")


def merge_logprobs(merged: JsonObject, logprobs: JsonObject) -> None:
    for name, values in logprobs.items():
        before = merged.get(name)
        if isinstance(values, list):
            merged[name] = [*(before if isinstance(before, list) else []), *values]
        else:
            merged.setdefault(name, values)


def includes_usage(body: JsonMap) -> bool:
    return bool(field(body.get("stream_options"), "include_usage"))


def only_choice(response: JsonMap) -> Json:
    choices = response.get("choices")
    return choices[0] if isinstance(choices, list) and len(choices) == 1 else None
