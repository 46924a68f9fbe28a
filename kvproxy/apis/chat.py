from collections.abc import Iterator
from typing import ClassVar

from kvproxy.apis.api import ApiName, Question, content_text, last_turn_question
from kvproxy.apis.choices import ChoicesApi, only_choice
from kvproxy.apis.field_checks import allows_semantic, check_common, check_integer, check_object, check_objects
from kvproxy.apis.json import Json, JsonMap, JsonObject, as_list, as_object, field, text_of
from kvproxy.apis.sse import split_words
from kvproxy.errors import InvalidRequest

_OUTPUT_FIELDS = ("content", "tool_calls", "function_call", "refusal", "audio", "reasoning_content", "reasoning")


class Chat(ChoicesApi):
    name: ApiName = "chat"
    path = "/v1/chat/completions"
    chunk_fields: ClassVar[JsonObject] = {"object": "chat.completion.chunk"}

    def check(self, body: JsonMap) -> None:
        check_common(body)
        _check_messages(body.get("messages"))
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
        return any(field(choice.get("message"), name) for name in _OUTPUT_FIELDS)

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


def _check_messages(messages: Json) -> None:
    if not isinstance(messages, list) or not messages:
        raise InvalidRequest("messages is required: a list with at least one message", param="messages")
    for number, message in enumerate(messages):
        if not isinstance(message, dict) or not isinstance(message.get("role"), str):
            raise InvalidRequest(f"messages[{number}] must be an object with a role", param=f"messages[{number}]")
        if not isinstance(message.get("content"), str | list | None):
            raise InvalidRequest(
                f"messages[{number}].content must be a text or a list", param=f"messages[{number}].content"
            )
