"""Chat completions, completions, and embeddings, whose formats share fields."""

from collections.abc import Iterable, Iterator, Sequence
from typing import ClassVar

from kvproxy.apis.api import STREAM_FIELD, Api, ApiName, Question, TokenCounts, content_text, last_turn_question
from kvproxy.apis.choice_streams import OUTSIDE_CHOICE, REPEATED_FIELDS, ChoiceAssembler, FieldPlaces
from kvproxy.apis.embeddings import convert_embeddings, in_other_format, is_single_input, separate_inputs
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
    as_list,
    as_object,
    field,
    text_of,
    to_text,
)
from kvproxy.apis.key_fields import CHAT, COMPLETIONS, EMBEDDINGS
from kvproxy.apis.not_stored import Cause, NotStored
from kvproxy.apis.sse import DONE, encode_event, split_words
from kvproxy.errors import InvalidRequest

# Finish reasons of complete responses in all supported servers.
_COMPLETE = frozenset("stop tool_calls function_call eos eos_token stop_sequence end_turn".split())
_CHAT_OUTPUT_FIELDS = (
    *("content", "tool_calls", "function_call", "refusal", "audio", "images"),
    *("reasoning_content", "reasoning", "reasoning_details", "thinking_blocks"),
)
_NOT_EXTRA = ("choices", "usage", STREAM_FIELD, *REPEATED_FIELDS)
_LIMITS = ("max_tokens", "max_completion_tokens")


class ChoicesApi(Api):
    assembler = ChoiceAssembler
    has_stream_options = True
    chunk_fields: ClassVar[JsonObject] = {}
    """Fields whose values in a chunk differ from their values in a complete response, such as `object`."""

    def is_cacheable(self, body: JsonMap) -> bool:
        # Streams have no log-probabilities of the prompt.
        has_scores = body.get("prompt_logprobs") is None or not body.get("stream")
        return has_scores and super().is_cacheable(body)

    def has_output(self, choice: JsonObject) -> bool:
        raise NotImplementedError

    def chunk_choices(self, choice: JsonObject, facts: JsonMap) -> Iterator[JsonObject]:
        """Yield the parts of a choice, each for one chunk of a stream. There is at least one part.

        Args:
            facts: how the first stream sent the choice.
        """
        raise NotImplementedError

    def why_not_stored(self, response: JsonObject, body: JsonMap) -> NotStored | None:
        choices = response.get("choices")
        if response.get("error") is not None:
            return NotStored(Cause.ERROR)
        if not isinstance(choices, list) or not isinstance(response.get("usage"), dict | None):
            return NotStored(Cause.INVALID)
        has_limit = any(body.get(name) is not None for name in _LIMITS)
        for choice in choices:
            if not isinstance(choice, dict):
                return NotStored(Cause.INVALID)
            reason = choice.get("finish_reason")
            if not (reason in _COMPLETE or (reason == "length" and has_limit)):
                return NotStored(Cause.INCOMPLETE, str(reason or "no finish reason"))
            if not self.has_output(choice):
                return NotStored(Cause.EMPTY)
        return None if choices else NotStored(Cause.EMPTY)

    def replay(self, response: JsonObject, body: JsonMap) -> Iterator[bytes]:
        facts = as_object(response.get(STREAM_FIELD) or {})
        head: JsonObject = {name: response[name] for name in REPEATED_FIELDS if name in response} | self.chunk_fields
        extra: JsonObject = {name: value for name, value in response.items() if name not in _NOT_EXTRA}
        usage, asks_usage = response.get("usage"), includes_usage(body)
        no_usage: JsonObject = {"usage": None} if asks_usage else {}
        parts = [part for choice in self._numbered(response) for part in self._placed_parts(choice, facts)]
        places = FieldPlaces(facts)
        for number, part in enumerate(parts):
            chunk: JsonObject = {**head, **(places.select(extra, "early") if number == 0 else {}), "choices": [part]}
            if number == len(parts) - 1:
                chunk["object"] = facts.get("last_object", chunk.get("object"))
                chunk |= places.select(extra, "late")
                if usage and not asks_usage and facts.get("usage_beside_choices"):
                    chunk["usage"] = usage
            yield encode_event({**chunk, **no_usage})
        if asks_usage and usage:
            yield encode_event({**head, "choices": [], "usage": usage})
        yield encode_event(DONE)

    def _numbered(self, response: JsonObject) -> Iterator[JsonObject]:
        for place, raw_choice in enumerate(as_list(response["choices"])):
            choice = as_object(raw_choice)
            index = choice.get("index")
            yield {**choice, "index": index if isinstance(index, int) else place}

    def _placed_parts(self, choice: JsonObject, facts: JsonObject) -> list[JsonObject]:
        choice_facts = as_object(field(facts.get("choices"), str(choice["index"])) or {})
        places = FieldPlaces(choice_facts)
        extra: JsonObject = {name: value for name, value in choice.items() if name not in OUTSIDE_CHOICE}
        index = choice["index"]
        parts: list[JsonObject] = [{"index": index, **part} for part in self.chunk_choices(choice, choice_facts)]
        if "message" in choice and "text" in choice:
            # Together sends each content twice.
            parts[0]["text"] = choice["text"]
        parts[0] |= places.select(extra, "early")
        parts[-1] |= places.select(extra, "late")
        return parts


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

    def chunk_choices(self, choice: JsonObject, facts: JsonMap) -> Iterator[JsonObject]:
        message = as_object(choice["message"])
        content = message.get("content")
        first: JsonObject = {name: value for name, value in message.items() if name not in ("content", "tool_calls")}
        first["content"] = None if content is None else ""
        deltas: list[JsonObject] = [first]
        deltas += [{"content": part} for part in _content_parts(content, as_parts=bool(facts.get("text_parts")))]
        if calls := message.get("tool_calls"):
            numbered: list[Json] = [{"index": place, **as_object(call)} for place, call in enumerate(as_list(calls))]
            deltas.append({"tool_calls": numbered})
        deltas.append({})
        form = facts.get("message")
        messages = _whole_messages(deltas) if form == "whole" else iter(deltas if form == "delta" else ())
        for number, delta in enumerate(deltas):
            repeated = next(messages, None)
            yield {
                "delta": delta,
                **({} if repeated is None else {"message": repeated}),
                # OpenAI's SDK counts those of a choice's first chunk twice.
                "logprobs": choice.get("logprobs") if number == 1 else None,
                "finish_reason": choice.get("finish_reason") if number == len(deltas) - 1 else None,
            }


def _whole_messages(deltas: Iterable[JsonObject]) -> Iterator[JsonObject]:
    """Yield the message until each delta."""
    sent, text = JsonObject(), ""
    for delta in deltas:
        text += str(delta.get("content") or "")
        sent = {**sent, **delta, "content": text}
        yield sent


def _content_parts(content: Json, *, as_parts: bool) -> Iterator[Json]:
    """Yield the values of `content` in the chunks of a stream: words, and parts with thoughts."""
    for part in as_list(content) if isinstance(content, list) else [content]:
        is_text = not as_parts and field(part, "type") == "text"
        text = field(part, "text") if is_text else part
        if isinstance(text, str):
            yield from split_words(text)
        elif part is not None:
            yield [part]


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

    def chunk_choices(self, choice: JsonObject, facts: JsonMap) -> Iterator[JsonObject]:
        words = split_words(str(choice.get("text") or "")) or [""]
        for number, word in enumerate(words):
            yield {
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

    def separate_inputs(self, body: JsonMap) -> Sequence[Json]:
        return separate_inputs(body)

    def in_other_format(self, body: JsonMap) -> JsonObject | None:
        return in_other_format(body)

    def convert(self, response: JsonMap, body: JsonMap) -> JsonObject | None:
        return convert_embeddings(response, body)

    def display_text(self, body: JsonMap) -> str:
        return to_text(body.get("input"))

    def prompt_and_completion_tokens(self, response: JsonMap) -> TokenCounts:
        prompt, _ = super().prompt_and_completion_tokens(response)
        return prompt, None if prompt is None else 0

    def why_not_stored(self, response: JsonObject, body: JsonMap) -> NotStored | None:
        data = response.get("data")
        if response.get("error") is not None:
            return NotStored(Cause.ERROR)
        if not isinstance(data, list) or (is_single_input(body) and len(data) > 1):
            return NotStored(Cause.INVALID)
        return None if data and all(field(item, "embedding") for item in data) else NotStored(Cause.EMPTY)
