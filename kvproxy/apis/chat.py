"""OpenAI's chat completions."""

from collections.abc import Iterator

from kvproxy.apis.api import ApiName, Question, ask, counts, openai_error
from kvproxy.apis.choices import ChoiceAssembler, can_be_replayed, includes_usage, keeps_choices, replay_choices
from kvproxy.apis.fields import check_common, check_integer, check_object, check_objects, fits_similar_questions
from kvproxy.apis.json import Json, JsonMap, JsonObject, as_list, as_object, field, objects, shown, text_of
from kvproxy.apis.sse import pieces
from kvproxy.errors import InvalidRequest, KvproxyError

# Any of these in a message makes it say something.
_SAYS = ("content", "tool_calls", "function_call", "refusal", "audio", "reasoning_content", "reasoning")


class Chat:
    """`/v1/chat/completions`."""

    name: ApiName = "chat"
    path = "/v1/chat/completions"
    irrelevant = frozenset(
        "stream stream_options user metadata store service_tier safety_identifier prompt_cache_key"
        " prompt_cache_options prompt_cache_retention cache_control diagnostics".split()
    )

    def check(self, body: JsonMap) -> None:
        check_common(body)
        _check_messages(body.get("messages"))
        check_integer(body, "top_logprobs", least=0, most=20)
        check_objects(body, "tools")
        check_object(body, "stream_options")

    def cacheable(self, body: JsonMap) -> bool:
        return can_be_replayed(body)

    def question(self, body: JsonObject) -> Question | None:
        messages = body.get("messages")
        turns = objects(messages)
        if not isinstance(messages, list) or not turns or len(turns) < len(messages):
            return None
        last = turns[-1]
        return ask(body, "messages", last, text_of(last.get("content")), _may_match(body, turns))

    def shown(self, body: JsonMap) -> str:
        messages = body.get("messages")
        last = messages[-1] if isinstance(messages, list) and messages else messages
        return shown(last.get("content") if isinstance(last, dict) else last)

    def keeps(self, whole: JsonObject, body: JsonMap) -> bool:
        return keeps_choices(whole, body, _says)

    def said(self, whole: JsonMap) -> str | None:
        choices = whole.get("choices")
        if not isinstance(choices, list) or len(choices) != 1:
            return None
        return text_of(field(field(choices[0], "message"), "content"))

    def usage(self, whole: JsonMap) -> tuple[int, int]:
        return counts(whole, "prompt_tokens", "completion_tokens")

    def assembler(self) -> ChoiceAssembler:
        return ChoiceAssembler()

    def replay(self, whole: JsonObject, body: JsonMap) -> Iterator[bytes]:
        chunks: JsonObject = {**whole, "object": "chat.completion.chunk"}
        return replay_choices(chunks, _parts, include_usage=includes_usage(body))

    def error(self, error: KvproxyError) -> JsonObject:
        return openai_error(error)


def _may_match(body: JsonMap, turns: list[JsonObject]) -> bool:
    # `prompt_logprobs: 0` asks for no alternatives, but still for the scores of this very prompt.
    if body.get("prompt_logprobs") is not None or not fits_similar_questions(body):
        return False
    return all(text_of(turn.get("content")) is not None for turn in turns)


def _check_messages(messages: Json) -> None:
    if not isinstance(messages, list) or not messages:
        raise InvalidRequest("messages is required: a list with at least one message", param="messages")
    for number, message in enumerate(messages):
        if not isinstance(message, dict) or not isinstance(message.get("role"), str):
            raise InvalidRequest(f"messages[{number}] must be an object with a role", param=f"messages[{number}]")
        if not isinstance(message.get("content"), str | list | None):
            raise InvalidRequest(f"messages[{number}].content is a text or a list", param=f"messages[{number}].content")


def _says(choice: JsonObject) -> bool:
    message = choice.get("message")
    return isinstance(message, dict) and any(message.get(name) for name in _SAYS)


def _parts(index: int, choice: JsonObject) -> Iterator[JsonObject]:
    message = as_object(choice["message"])
    content = message.get("content")
    first: JsonObject = {name: value for name, value in message.items() if name not in ("content", "tool_calls")}
    first["content"] = "" if isinstance(content, str) else content
    yield {"index": index, "delta": first, "logprobs": choice.get("logprobs"), "finish_reason": None}
    for piece in pieces(content) if isinstance(content, str) else ():
        yield {"index": index, "delta": {"content": piece}, "logprobs": None, "finish_reason": None}
    calls = message.get("tool_calls")
    if calls:
        numbered: list[Json] = [{"index": place, **as_object(call)} for place, call in enumerate(as_list(calls))]
        yield {"index": index, "delta": {"tool_calls": numbered}, "logprobs": None, "finish_reason": None}
    yield {"index": index, "delta": {}, "logprobs": None, "finish_reason": choice.get("finish_reason")}
