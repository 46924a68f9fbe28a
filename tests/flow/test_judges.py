"""Judges of two answers, and the request to the judging model with the client's key."""

from collections.abc import AsyncIterator, Mapping
from typing import Any

import pytest

from kvproxy.apis.api import ApiName
from kvproxy.apis.api_request import ApiRequest
from kvproxy.apis.json import JsonObject, dumps
from kvproxy.backends.protocol import RelayedResponse
from kvproxy.flow.compare_responses import ResponseComparer, judge_with_model
from kvproxy.settings.cache import CacheSettings
from tests.requests import api_request

ANSWERS: dict[str, JsonObject] = {
    "chat": {"choices": [{"message": {"content": "Hm. SAME? No: DIFFERENT."}, "finish_reason": "stop"}]},
    "messages": {"type": "message", "content": [{"type": "text", "text": "SAME"}], "stop_reason": "end_turn"},
    "responses": {"output": [{"type": "message", "content": [{"type": "output_text", "text": "SAME"}]}]},
}


class Model:
    """A backend that keeps what it is asked."""

    name = "model"
    forwarder = None

    def __init__(self) -> None:
        self.asked: list[ApiRequest] = []

    async def send(self, request: ApiRequest) -> RelayedResponse:
        self.asked.append(request)

        async def body() -> AsyncIterator[bytes]:
            yield dumps(ANSWERS[request.api.name])

        return RelayedResponse(200, [], body())


@pytest.mark.parametrize(
    ("name", "headers", "same"),
    [
        ("chat", {"authorization": "Bearer k", "openai-project": "p"}, False),
        ("messages", {"x-api-key": "k", "anthropic-version": "2023-06-01"}, True),
        ("responses", {"api-key": "k"}, True),
    ],
)
async def test_it_asks_as_the_client_would(name: ApiName, headers: Mapping[str, str], same: bool) -> None:
    model = Model()
    request = api_request({"model": "m", "messages": []}, name, {**headers, "cookie": "c", "accept": "x"})
    assert await judge_with_model(model, request, "Why?", "One.", "Two.") is same
    (asked,) = model.asked
    assert asked.api.name == name
    assert {key: value for key, value in asked.headers.items() if key != "content-type"} == headers
    asked.api.check(asked.body)
    assert all(text in asked.raw.decode() for text in ("Why?", "One.", "Two."))


class Similar:
    """A semantic cache that measures one similarity between any two texts."""

    def __init__(self, value: float) -> None:
        self.value = value

    async def similarity(self, one: str, other: str) -> float:
        return self.value


@pytest.mark.parametrize(
    ("judge", "similarity", "fresh", "same"),
    [
        ("equality", 0.0, "one TEXT", True),
        ("equality", 1.0, "Another text", False),
        ("similarity", 0.0, "one TEXT", True),
        ("similarity", 0.9, "Another text", True),
        ("similarity", 0.8, "Another text", False),
    ],
)
async def test_answers_are_compared_by_text_and_by_similarity(
    judge: Any, similarity: float, fresh: str, same: bool
) -> None:
    semantic: Any = Similar(similarity)
    model: Any = Model()
    comparer = ResponseComparer(semantic, model, CacheSettings(judge=judge, judge_similarity=0.9))
    assert (
        await comparer.have_same_meaning(api_request({"model": "m", "messages": []}), "Why?", "One text.", fresh)
        is same
    )
