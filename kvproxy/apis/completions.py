from collections.abc import Iterator

from kvproxy.apis.api import ApiName
from kvproxy.apis.choices import ChoicesApi, only_choice
from kvproxy.apis.field_checks import check_common, check_object
from kvproxy.apis.json import JsonMap, JsonObject, field, text_of, to_text
from kvproxy.apis.sse import split_words
from kvproxy.errors import InvalidRequest


class Completions(ChoicesApi):
    """`/v1/completions`. A raw prompt has no last user turn, so only equal requests match."""

    name: ApiName = "completions"
    path = "/v1/completions"

    def check(self, body: JsonMap) -> None:
        check_common(body, least_tokens=0)
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
