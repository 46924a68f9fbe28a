"""OpenAI's chat completions."""

from collections.abc import Iterator
from typing import Any

from kvproxy.errors import InvalidRequest, KvproxyError
from kvproxy.proxy.dialects.choices import ChoiceAssembler, can_be_replayed, choices_complete, replay_choices
from kvproxy.proxy.dialects.dialect import Question, ask, counts, shown, text_of
from kvproxy.proxy.dialects.fields import check_common, check_integer
from kvproxy.proxy.sse import pieces

# A request with any of these is answered from an equal one only, never from a similar one.
_EXACT_ONLY = frozenset(
    "tools tool_choice functions function_call logprobs top_logprobs logit_bias modalities audio prediction"
    " return_token_ids".split()
)


class Chat:
    """`/v1/chat/completions`."""

    name = "chat"
    path = "/v1/chat/completions"
    irrelevant = frozenset(
        "stream stream_options user metadata store service_tier safety_identifier prompt_cache_key".split()
    )

    def check(self, body: dict[str, Any]) -> None:
        check_common(body)
        _check_messages(body.get("messages"))
        check_integer(body, "top_logprobs", least=0, most=20)

    def cacheable(self, body: dict[str, Any]) -> bool:
        return can_be_replayed(body)

    def question(self, body: dict[str, Any]) -> Question | None:
        messages = body.get("messages")
        if not isinstance(messages, list) or not messages or not all(isinstance(each, dict) for each in messages):
            return None
        return ask(body, "messages", messages[-1], text_of(messages[-1].get("content")), _may_match(body))

    def shown(self, body: dict[str, Any]) -> str:
        messages = body.get("messages")
        last = messages[-1] if isinstance(messages, list) and messages else messages
        return shown(last.get("content") if isinstance(last, dict) else last)

    def complete(self, whole: dict[str, Any]) -> bool:
        return choices_complete(whole)

    def said(self, whole: dict[str, Any]) -> str | None:
        (choice,) = whole["choices"]
        return text_of(choice["message"]["content"])

    def usage(self, whole: dict[str, Any]) -> tuple[int, int]:
        return counts(whole, "prompt_tokens", "completion_tokens")

    def assembler(self) -> ChoiceAssembler:
        return ChoiceAssembler()

    def replay(self, whole: dict[str, Any], body: dict[str, Any]) -> Iterator[bytes]:
        chunks = whole | {"object": "chat.completion.chunk"}
        return replay_choices(chunks, _parts, include_usage=includes_usage(body))

    def error(self, error: KvproxyError) -> dict[str, Any]:
        return error.body()


def includes_usage(body: dict[str, Any]) -> bool:
    """Whether a streaming request asked for token counts."""
    options = body.get("stream_options")
    return bool(options.get("include_usage")) if isinstance(options, dict) else False


def _may_match(body: dict[str, Any]) -> bool:
    if any(body.get(name) for name in _EXACT_ONLY) or body.get("n", 1) != 1:
        return False
    # None of its alternatives may be asked for (0), and still it speaks of this very prompt.
    if body.get("prompt_logprobs") is not None:
        return False
    kind = body.get("response_format")
    if kind is not None and (not isinstance(kind, dict) or kind.get("type") != "text"):
        return False
    return all(text_of(message.get("content")) is not None for message in body["messages"])


def _check_messages(messages: Any) -> None:
    if not isinstance(messages, list) or not messages:
        raise InvalidRequest("messages is required: a list with at least one message", param="messages")
    for number, message in enumerate(messages):
        if not isinstance(message, dict) or not isinstance(message.get("role"), str):
            raise InvalidRequest(f"messages[{number}] must be an object with a role", param=f"messages[{number}]")
        content = message.get("content")
        if not isinstance(content, str | list | None):
            raise InvalidRequest(f"messages[{number}].content is a text or a list", param=f"messages[{number}].content")


def _parts(choice: dict[str, Any]) -> Iterator[dict[str, Any]]:
    index, message = choice["index"], choice["message"]
    rest = {name: value for name, value in message.items() if name not in ("content", "tool_calls")}
    first = rest | ({"content": ""} if isinstance(message.get("content"), str) else {"content": message.get("content")})
    yield {"index": index, "delta": first, "logprobs": choice.get("logprobs"), "finish_reason": None}
    for piece in pieces(message.get("content") or ""):
        yield {"index": index, "delta": {"content": piece}, "logprobs": None, "finish_reason": None}
    calls = message.get("tool_calls")
    if calls:
        numbered = [{"index": number, **call} for number, call in enumerate(calls)]
        yield {"index": index, "delta": {"tool_calls": numbered}, "logprobs": None, "finish_reason": None}
    yield {"index": index, "delta": {}, "logprobs": None, "finish_reason": choice.get("finish_reason")}
