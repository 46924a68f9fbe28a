"""Chat completions, completions, and embeddings, whose formats share fields, and the assembler of their streams."""

from collections.abc import Iterator
from typing import ClassVar

from kvproxy.apis.api import Api, ApiName, Assembler, Question, content_text, last_turn_question
from kvproxy.apis.field_checks import (
    allows_semantic,
    check_common_fields,
    check_integer,
    check_messages,
    check_object,
    check_objects,
)
from kvproxy.apis.json import (
    Json,
    JsonMap,
    JsonObject,
    as_index,
    as_list,
    as_object,
    as_text,
    field,
    text_of,
    to_text,
)
from kvproxy.apis.key_fields import CHAT, COMPLETIONS, EMBEDDINGS
from kvproxy.apis.sse import DONE, Event, encode_event, split_words
from kvproxy.errors import InvalidRequest

# Finish reasons of complete responses in all supported servers.
_COMPLETE = frozenset("stop tool_calls function_call eos eos_token stop_sequence end_turn".split())
_CHAT_OUTPUT_FIELDS = ("content", "tool_calls", "function_call", "refusal", "audio", "reasoning_content", "reasoning")
_LIMITS = ("max_tokens", "max_completion_tokens")


class ChoiceAssembler(Assembler):
    def __init__(self) -> None:
        self._head: JsonObject = {}
        self._choices: dict[int, JsonObject] = {}
        self._usage: Json = None

    def push(self, event: Event) -> None:
        if event.data == DONE:
            self.done = True
        else:
            super().push(event)

    def add(self, chunk: JsonObject) -> None:
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

    def is_cacheable(self, body: JsonMap) -> bool:
        # Streams have no log-probabilities of the prompt.
        has_scores = body.get("prompt_logprobs") is None or not body.get("stream")
        return has_scores and super().is_cacheable(body)

    def has_output(self, choice: JsonObject) -> bool:
        raise NotImplementedError

    def chunk_choices(self, index: int, choice: JsonObject) -> Iterator[JsonObject]:
        """Yield the parts of a choice, each for one chunk of a stream."""
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


class Chat(ChoicesApi):
    name: ApiName = "chat"
    path = "/v1/chat/completions"
    fields = CHAT
    chunk_fields: ClassVar[JsonObject] = {"object": "chat.completion.chunk"}

    def check(self, body: JsonMap) -> None:
        check_common_fields(body)
        check_messages(body)
        check_integer(body, "top_logprobs", least=0, most=20)
        check_objects(body, "tools")
        check_object(body, "stream_options")

    def question(self, body: JsonObject) -> Question | None:
        # `prompt_logprobs: 0` requests the scores of this prompt too.
        semantic = body.get("prompt_logprobs") is None and allows_semantic(body)
        return last_turn_question(body, "messages", content_text, allows_semantic=semantic)

    def output_text(self, response: JsonMap) -> str | None:
        return text_of(field(field(only_choice(response), "message"), "content"))

    def has_output(self, choice: JsonObject) -> bool:
        return any(field(choice.get("message"), name) for name in _CHAT_OUTPUT_FIELDS)

    def chunk_choices(self, index: int, choice: JsonObject) -> Iterator[JsonObject]:
        message = as_object(choice["message"])
        content = message.get("content")
        first: JsonObject = {name: value for name, value in message.items() if name not in ("content", "tool_calls")}
        first["content"] = "" if isinstance(content, str) else content
        yield {"index": index, "delta": first, "logprobs": choice.get("logprobs"), "finish_reason": None}
        for word in split_words(content) if isinstance(content, str) else ():
            yield {"index": index, "delta": {"content": word}, "logprobs": None, "finish_reason": None}
        calls = message.get("tool_calls")
        if calls:
            numbered: list[Json] = [{"index": place, **as_object(call)} for place, call in enumerate(as_list(calls))]
            yield {"index": index, "delta": {"tool_calls": numbered}, "logprobs": None, "finish_reason": None}
        yield {"index": index, "delta": {}, "logprobs": None, "finish_reason": choice.get("finish_reason")}


class Completions(ChoicesApi):
    name: ApiName = "completions"
    path = "/v1/completions"
    fields = COMPLETIONS

    def check(self, body: JsonMap) -> None:
        check_common_fields(body, least_tokens=0)
        check_object(body, "stream_options")
        if not isinstance(body.get("prompt"), str | list) or not body["prompt"]:
            raise InvalidRequest("prompt is required: a text, or a list of token ids", param="prompt")

    def display_text(self, body: JsonMap) -> str:
        return to_text(body.get("prompt"))

    def output_text(self, response: JsonMap) -> str | None:
        return text_of(field(only_choice(response), "text"))

    def has_output(self, choice: JsonObject) -> bool:
        return bool(choice.get("text"))

    def chunk_choices(self, index: int, choice: JsonObject) -> Iterator[JsonObject]:
        words = split_words(str(choice.get("text") or "")) or [""]
        for number, word in enumerate(words):
            yield {
                "index": index,
                "text": word,
                "logprobs": choice.get("logprobs") if number == 0 else None,
                "finish_reason": choice.get("finish_reason") if number == len(words) - 1 else None,
            }


class Embeddings(Api):
    name: ApiName = "embeddings"
    path = "/v1/embeddings"
    fields = EMBEDDINGS
    assembler = ChoiceAssembler

    def check(self, body: JsonMap) -> None:
        if not isinstance(body.get("input"), str | list) or not body["input"]:
            raise InvalidRequest("input is required: a text, or a list of texts", param="input")

    def is_cacheable(self, body: JsonMap) -> bool:
        return not body.get("stream") and super().is_cacheable(body)

    def display_text(self, body: JsonMap) -> str:
        return to_text(body.get("input"))

    def is_storable(self, response: JsonObject, body: JsonMap) -> bool:
        data = response.get("data")
        if not isinstance(data, list) or not data or response.get("error") is not None:
            return False
        return all(bool(field(item, "embedding")) for item in data)
