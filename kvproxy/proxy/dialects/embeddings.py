"""OpenAI's embeddings: one input or a batch of them, answered from an equal request only."""

from collections.abc import Iterator
from typing import Any

from kvproxy.errors import InvalidRequest, KvproxyError
from kvproxy.proxy.dialects.choices import ChoiceAssembler
from kvproxy.proxy.dialects.dialect import Question, counts, shown


class Embeddings:
    """`/v1/embeddings`, which knows no streams."""

    name = "embeddings"
    path = "/v1/embeddings"
    irrelevant = frozenset({"user"})

    def check(self, body: dict[str, Any]) -> None:
        if not isinstance(body.get("input"), str | list) or not body["input"]:
            raise InvalidRequest("input is required: a text, or a list of texts", param="input")

    def cacheable(self, body: dict[str, Any]) -> bool:
        return not body.get("stream")

    def question(self, body: dict[str, Any]) -> Question | None:
        return None

    def shown(self, body: dict[str, Any]) -> str:
        return shown(body.get("input"))

    def complete(self, whole: dict[str, Any]) -> bool:
        data = whole.get("data")
        return (
            isinstance(data, list)
            and bool(data)
            and "error" not in whole
            and all(isinstance(item, dict) and item.get("embedding") for item in data)
        )

    def said(self, whole: dict[str, Any]) -> str | None:
        return None

    def usage(self, whole: dict[str, Any]) -> tuple[int, int]:
        return counts(whole, "prompt_tokens", "completion_tokens")

    def assembler(self) -> ChoiceAssembler:
        # Should a server stream after all, no stream of embeddings is ever complete.
        return ChoiceAssembler()

    def replay(self, whole: dict[str, Any], body: dict[str, Any]) -> Iterator[bytes]:
        raise NotImplementedError("embeddings are not streamed")

    def error(self, error: KvproxyError) -> dict[str, Any]:
        return error.body()
