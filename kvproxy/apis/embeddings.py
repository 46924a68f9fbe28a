"""OpenAI's embeddings: one input or a batch of them, answered from an equal request only."""

from collections.abc import Iterator

from kvproxy.apis.api import ApiName, Question, counts, openai_error
from kvproxy.apis.choices import ChoiceAssembler
from kvproxy.apis.json import JsonMap, JsonObject, field, shown
from kvproxy.errors import InvalidRequest, KvproxyError


class Embeddings:
    """`/v1/embeddings`, which knows no streams."""

    name: ApiName = "embeddings"
    path = "/v1/embeddings"
    irrelevant = frozenset({"user"})

    def check(self, body: JsonMap) -> None:
        if not isinstance(body.get("input"), str | list) or not body["input"]:
            raise InvalidRequest("input is required: a text, or a list of texts", param="input")

    def cacheable(self, body: JsonMap) -> bool:
        return not body.get("stream")

    def question(self, body: JsonObject) -> Question | None:
        return None

    def shown(self, body: JsonMap) -> str:
        return shown(body.get("input"))

    def keeps(self, whole: JsonObject, body: JsonMap) -> bool:
        data = whole.get("data")
        if not isinstance(data, list) or not data or whole.get("error") is not None:
            return False
        return all(bool(field(item, "embedding")) for item in data)

    def said(self, whole: JsonMap) -> str | None:
        return None

    def usage(self, whole: JsonMap) -> tuple[int, int]:
        return counts(whole, "prompt_tokens", "completion_tokens")

    def assembler(self) -> ChoiceAssembler:
        # Should a server stream after all: a stream of chunks has no `data`, so it is never kept.
        return ChoiceAssembler()

    def replay(self, whole: JsonObject, body: JsonMap) -> Iterator[bytes]:
        raise NotImplementedError("embeddings are not streamed")

    def error(self, error: KvproxyError) -> JsonObject:
        return openai_error(error)
