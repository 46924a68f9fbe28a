"""Whether a fresh answer and a cached one say the same: by normalised equality, by embedding, or asked of the model itself."""

import re
from collections.abc import Awaitable, Callable
from typing import Protocol

import orjson

from kvproxy.errors import KvproxyError
from kvproxy.proxy.backend import Backend, Call
from kvproxy.proxy.dialects import DIALECTS

_NOISE = re.compile(r"[\W_]+")
_INSTRUCTION = (
    "You compare two answers to the same question. Reply with one word: SAME if a reader learns the same from both,"
    " DIFFERENT if one says something else, is wrong where the other is right, or leaves out what matters."
)


class Judge(Protocol):
    """Compares answers, off the request path."""

    async def same(self, call: Call, question: str, cached: str, fresh: str) -> bool | None:
        """Whether the cached answer would have served the request; None where that cannot be told."""


class EqualityJudge:
    """Equal but for case, spaces and punctuation."""

    async def same(self, call: Call, question: str, cached: str, fresh: str) -> bool | None:
        return normalise(cached) == normalise(fresh)


class SimilarityJudge:
    """Equal, or close as embeddings.

    Args:
        similarity: cosine of two texts.
        least: from which on they count as the same.
    """

    def __init__(self, similarity: Callable[[str, str], Awaitable[float]], least: float) -> None:
        self._similarity = similarity
        self._least = least

    async def same(self, call: Call, question: str, cached: str, fresh: str) -> bool | None:
        return normalise(cached) == normalise(fresh) or await self._similarity(cached, fresh) >= self._least


class ModelJudge:
    """Equal, or the same in the eyes of the model that answered; each comparison is one more request to the backend."""

    def __init__(self, backend: Backend) -> None:
        self._backend = backend

    async def same(self, call: Call, question: str, cached: str, fresh: str) -> bool | None:
        if normalise(cached) == normalise(fresh):
            return True
        asked = f"Question:\n{question}\n\nFirst answer:\n{cached}\n\nSecond answer:\n{fresh}\n\nSAME or DIFFERENT?"
        messages = [{"role": "system", "content": _INSTRUCTION}, {"role": "user", "content": asked}]
        body = {"model": call.body["model"], "messages": messages, "temperature": 0, "max_tokens": 200}
        headers = {name: call.headers[name] for name in ("authorization", "api-key") if name in call.headers}
        headers["content-type"] = "application/json"
        request = Call("chat", body, orjson.dumps(body), headers, call.tenant, f"{call.request_id}-judge")
        try:
            reply = await self._backend.send(request)
            try:
                said = answer_text(b"".join([chunk async for chunk in reply.chunks])) if reply.status == 200 else None
            finally:
                await reply.close()
        except KvproxyError:
            return None
        words = re.findall(r"\b(SAME|DIFFERENT)\b", (said or "").upper())
        # A model that thinks aloud decides last.
        return words[-1] == "SAME" if words else None


def normalise(text: str) -> str:
    """A text without case, punctuation and extra space."""
    return _NOISE.sub(" ", text.casefold()).strip()


def answer_text(response: bytes, endpoint: str = "chat") -> str | None:
    """What an answer says; None where that is no text, or more than one."""
    try:
        text = DIALECTS[endpoint].said(orjson.loads(response))
    except (orjson.JSONDecodeError, KeyError, TypeError, ValueError):
        return None
    return text if text and text.strip() else None
