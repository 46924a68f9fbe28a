"""OpenAI's completions of a raw prompt."""

from collections.abc import Iterator

from kvproxy.apis.api import ApiName, Question, counts, openai_error
from kvproxy.apis.chat import Chat
from kvproxy.apis.choices import ChoiceAssembler, can_be_replayed, includes_usage, keeps_choices, replay_choices
from kvproxy.apis.fields import check_common, check_object
from kvproxy.apis.json import JsonMap, JsonObject, field, shown, text_of
from kvproxy.apis.sse import pieces
from kvproxy.errors import InvalidRequest, KvproxyError


class Completions:
    """`/v1/completions`. A raw prompt has no last user turn, so only equal requests are answered alike."""

    name: ApiName = "completions"
    path = "/v1/completions"
    irrelevant = Chat.irrelevant

    def check(self, body: JsonMap) -> None:
        check_common(body, least_tokens=0)
        check_object(body, "stream_options")
        if not isinstance(body.get("prompt"), str | list) or not body["prompt"]:
            raise InvalidRequest("prompt is required: a text, or a list of token ids", param="prompt")

    def cacheable(self, body: JsonMap) -> bool:
        return can_be_replayed(body)

    def question(self, body: JsonObject) -> Question | None:
        return None

    def shown(self, body: JsonMap) -> str:
        return shown(body.get("prompt"))

    def keeps(self, whole: JsonObject, body: JsonMap) -> bool:
        return keeps_choices(whole, body, lambda choice: bool(choice.get("text")))

    def said(self, whole: JsonMap) -> str | None:
        choices = whole.get("choices")
        if not isinstance(choices, list) or len(choices) != 1:
            return None
        return text_of(field(choices[0], "text"))

    def usage(self, whole: JsonMap) -> tuple[int, int]:
        return counts(whole, "prompt_tokens", "completion_tokens")

    def assembler(self) -> ChoiceAssembler:
        return ChoiceAssembler()

    def replay(self, whole: JsonObject, body: JsonMap) -> Iterator[bytes]:
        return replay_choices(whole, _parts, include_usage=includes_usage(body))

    def error(self, error: KvproxyError) -> JsonObject:
        return openai_error(error)


def _parts(index: int, choice: JsonObject) -> Iterator[JsonObject]:
    texts = pieces(str(choice.get("text") or "")) or [""]
    for number, piece in enumerate(texts):
        yield {
            "index": index,
            "text": piece,
            "logprobs": choice.get("logprobs") if number == 0 else None,
            "finish_reason": choice.get("finish_reason") if number == len(texts) - 1 else None,
        }
