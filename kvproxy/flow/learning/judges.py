"""Whether a fresh answer and a cached one say the same: by equality, by embedding, or asked of the model itself."""

import re
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Protocol

from kvproxy.apis import APIS, by_name
from kvproxy.apis.json import Json, JsonObject, dumps, loads
from kvproxy.apis.request import ApiRequest
from kvproxy.backends.protocol import Backend
from kvproxy.errors import KvproxyError
from kvproxy.flow.flight.source import ask

_NOISE = re.compile(r"[\W_]+")
_INSTRUCTION = (
    "You compare two answers to the same question. Reply with one word: SAME if a reader learns the same from both,"
    " DIFFERENT if one says something else, is wrong where the other is right, or leaves out what matters."
)
# Who asks, and which version of an API answers.
_PASSED = ("authorization", "api-key", "x-api-key", "openai-organization", "openai-project", "anthropic-version")
_MOST_TOKENS = 200
_LARGEST = 2**20


@dataclass(frozen=True, slots=True)
class Cached:
    """A stored answer: the id of its entry, and what it says."""

    entry: str
    text: str


class Judge(Protocol):
    """Compares answers, off the request path."""

    async def same(self, request: ApiRequest, question: str, cached: Cached, fresh: str) -> bool | None:
        """Whether the cached answer would have served the request; None where that cannot be told."""


class EqualityJudge:
    """Equal but for case, spaces and punctuation."""

    async def same(self, request: ApiRequest, question: str, cached: Cached, fresh: str) -> bool | None:
        return normalise(cached.text) == normalise(fresh)


class SimilarityJudge:
    """Equal, or close as embeddings.

    Args:
        similarity: cosine of a stored answer and a fresh one.
        least: from which on they count as the same.
    """

    def __init__(self, similarity: Callable[[Cached, str], Awaitable[float]], least: float) -> None:
        self._similarity = similarity
        self._least = least

    async def same(self, request: ApiRequest, question: str, cached: Cached, fresh: str) -> bool | None:
        return normalise(cached.text) == normalise(fresh) or await self._similarity(cached, fresh) >= self._least


class ModelJudge:
    """Equal, or the same in the eyes of the model that answered; each comparison is one more request to the backend."""

    def __init__(self, backend: Backend) -> None:
        self._backend = backend

    async def same(self, request: ApiRequest, question: str, cached: Cached, fresh: str) -> bool | None:
        if normalise(cached.text) == normalise(fresh):
            return True
        asked = (
            f"Question:\n{question}\n\nFirst answer:\n{cached.text}\n\nSecond answer:\n{fresh}\n\nSAME or DIFFERENT?"
        )
        try:
            whole = await ask(self._backend, _judging(request, asked), _LARGEST)
        except KvproxyError:
            return None
        said = (answer_text(dumps(whole), request.api.name) if whole is not None else None) or ""
        words = re.findall(r"\b(SAME|DIFFERENT)\b", said.upper())
        # A model that thinks aloud decides last.
        return words[-1] == "SAME" if words else None


def _judging(request: ApiRequest, asked: str) -> ApiRequest:
    """The request that asks for a verdict, through the API that the request itself came by, so that its key is the right one."""
    body: JsonObject = {"model": request.model, "temperature": 0}
    turn: list[Json] = [{"role": "user", "content": asked}]
    match request.api.name:
        case "messages":
            body |= {"system": _INSTRUCTION, "messages": turn, "max_tokens": _MOST_TOKENS}
        case "responses":
            body |= {"instructions": _INSTRUCTION, "input": asked, "max_output_tokens": _MOST_TOKENS}
        case _:
            body |= {"messages": [{"role": "system", "content": _INSTRUCTION}, *turn], "max_tokens": _MOST_TOKENS}
    headers = {name: request.headers[name] for name in _PASSED if name in request.headers}
    headers["content-type"] = "application/json"
    api = request.api if request.api.name in ("messages", "responses") else APIS["chat"]
    return ApiRequest(api, body, dumps(body), headers, request.tenant, f"{request.request_id}-judge")


def normalise(text: str) -> str:
    """A text without case, punctuation and extra space."""
    return _NOISE.sub(" ", text.casefold()).strip()


def answer_text(response: bytes, endpoint: str = "chat") -> str | None:
    """What a stored answer of an API says; None where that is no text, or more than one."""
    api = by_name(endpoint)
    try:
        whole = loads(response)
    except ValueError:
        return None
    text = api.said(whole) if api is not None and isinstance(whole, dict) else None
    return text if text and text.strip() else None
