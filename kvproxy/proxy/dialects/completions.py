"""OpenAI's completions of a raw prompt."""

from collections.abc import Iterator
from typing import Any

from kvproxy.errors import InvalidRequest, KvproxyError
from kvproxy.proxy.dialects.chat import Chat, includes_usage
from kvproxy.proxy.dialects.choices import ChoiceAssembler, can_be_replayed, choices_complete, replay_choices
from kvproxy.proxy.dialects.dialect import Question, counts, shown, text_of
from kvproxy.proxy.dialects.fields import check_common
from kvproxy.proxy.sse import pieces


class Completions:
    """`/v1/completions`. A raw prompt has no last user turn, so only equal requests are answered alike."""

    name = "completions"
    path = "/v1/completions"
    irrelevant = Chat.irrelevant

    def check(self, body: dict[str, Any]) -> None:
        check_common(body, least_tokens=0)
        if not isinstance(body.get("prompt"), str | list) or not body["prompt"]:
            raise InvalidRequest("prompt is required: a text, or a list of token ids", param="prompt")

    def cacheable(self, body: dict[str, Any]) -> bool:
        return can_be_replayed(body)

    def question(self, body: dict[str, Any]) -> Question | None:
        return None

    def shown(self, body: dict[str, Any]) -> str:
        return shown(body.get("prompt"))

    def complete(self, whole: dict[str, Any]) -> bool:
        return choices_complete(whole)

    def said(self, whole: dict[str, Any]) -> str | None:
        (choice,) = whole["choices"]
        return text_of(choice["text"])

    def usage(self, whole: dict[str, Any]) -> tuple[int, int]:
        return counts(whole, "prompt_tokens", "completion_tokens")

    def assembler(self) -> ChoiceAssembler:
        return ChoiceAssembler()

    def replay(self, whole: dict[str, Any], body: dict[str, Any]) -> Iterator[bytes]:
        return replay_choices(whole, _parts, include_usage=includes_usage(body))

    def error(self, error: KvproxyError) -> dict[str, Any]:
        return error.body()


def _parts(choice: dict[str, Any]) -> Iterator[dict[str, Any]]:
    texts = pieces(choice.get("text") or "") or [""]
    for number, piece in enumerate(texts):
        yield {
            "index": choice["index"],
            "text": piece,
            "logprobs": choice.get("logprobs") if number == 0 else None,
            "finish_reason": choice.get("finish_reason") if number == len(texts) - 1 else None,
        }
