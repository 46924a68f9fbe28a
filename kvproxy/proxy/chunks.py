"""The engine's pieces as chunks of OpenAI's chat completions and completions."""

import time
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass
from typing import Any

from kvproxy.generation import Delta, TokenLogprob
from kvproxy.proxy.backend import Call, Reply
from kvproxy.proxy.dialects.chat import includes_usage


@dataclass(frozen=True, slots=True)
class Echo:
    """A prompt that its completion begins with: its text, and the text of its first token, which has no probability."""

    text: str
    first_token: str


class ChunkWriter:
    """Writes one request's pieces as OpenAI chunks.

    Args:
        call: the request.
        model: its name for the client.
        echo: what each completion begins with.
    """

    def __init__(self, call: Call, model: str, echo: Echo | None = None) -> None:
        self._echo = echo
        self._logprobs: int | None = call.body.get("logprobs")
        self._prompt_logprobs: int | None = call.body.get("prompt_logprobs")
        self._echoed_logprobs: dict[str, Any] | None = None
        self._chat = call.endpoint == "chat"
        self._usage_asked = call.stream and includes_usage(call.body)
        prefix, kind = ("chatcmpl", "chat.completion.chunk") if self._chat else ("cmpl", "text_completion")
        self._head = {
            "id": f"{prefix}-{call.request_id}",
            "object": kind,
            "created": int(time.time()),
            "model": model,
        } | ({"usage": None} if self._usage_asked else {})
        self._begun: set[int] = set()
        self._offset: dict[int, int] = {}

    async def chunks(self, first: Delta, pieces: AsyncIterator[Delta], reply: Reply) -> AsyncIterator[dict[str, Any]]:
        """Chunks up to the last; leaves the token counts in the reply."""
        generated: dict[int, int] = {}
        # vLLM has them beside the choices of a chat, and in each choice of a completion.
        scored = self._scored(first)
        beside, inside = (scored, {}) if self._chat else ({}, scored)
        delta: Delta | None = first
        while delta is not None:
            generated[delta.index] = delta.usage.completion_tokens
            for choice in self._choices(delta):
                yield self._head | beside | {"choices": [choice | (inside if choice["finish_reason"] else {})]}
                beside = {}
            delta = await anext(pieces, None)
        usage = first.usage
        total = sum(generated.values())
        reply.usage = {
            "prompt_tokens": usage.prompt_tokens,
            "completion_tokens": total,
            "total_tokens": usage.prompt_tokens + total,
            "prompt_tokens_details": {"cached_tokens": usage.cached_tokens},
        }
        if self._usage_asked:
            yield self._head | {"choices": [], "usage": reply.usage}

    def _scored(self, first: Delta) -> dict[str, Any]:
        count = self._prompt_logprobs
        if count is None:
            return {}
        return {"prompt_logprobs": [None, *(_scores(item, count) for item in first.prompt_logprobs)]}

    def _choices(self, delta: Delta) -> list[dict[str, Any]]:
        if not self._chat:
            return self._text_choices(delta)
        choices: list[dict[str, Any]] = []
        if delta.index not in self._begun:
            self._begun.add(delta.index)
            choices.append(_chat_choice(delta.index, {"role": "assistant", "content": ""}))
        if delta.text or delta.logprobs:
            choice = _chat_choice(delta.index, {"content": delta.text})
            if delta.logprobs:
                choice["logprobs"] = {"content": [_logprob(item) for item in delta.logprobs]}
            choices.append(choice)
        if delta.finish_reason:
            choices.append(_chat_choice(delta.index, {}, delta.finish_reason))
        return choices

    def _text_choices(self, delta: Delta) -> list[dict[str, Any]]:
        choices = []
        if self._echo is not None and delta.index not in self._begun:
            self._begun.add(delta.index)
            choices.append(self._echoed(self._echo, delta))
        logprobs = self._text_logprobs(delta.index, delta.logprobs) if delta.logprobs else None
        if delta.text or delta.finish_reason or logprobs:
            choices.append(_text_choice(delta.index, delta.text, logprobs, delta.finish_reason))
        return choices

    def _echoed(self, echo: Echo, delta: Delta) -> dict[str, Any]:
        """The prompt as the first part of a completion; its log-probabilities come with the first answer's first piece."""
        if self._logprobs is not None and self._echoed_logprobs is None:
            rest = self._text_logprobs(0, delta.prompt_logprobs, len(echo.first_token))
            first = {"tokens": echo.first_token, "token_logprobs": None, "top_logprobs": None, "text_offset": 0}
            self._echoed_logprobs = {name: [first[name], *values] for name, values in rest.items()}
        self._offset[delta.index] = len(echo.text)
        return _text_choice(delta.index, echo.text, self._echoed_logprobs, None)

    def _text_logprobs(self, index: int, logprobs: Sequence[TokenLogprob], offset: int | None = None) -> dict[str, Any]:
        at = self._offset.get(index, 0) if offset is None else offset
        offsets = []
        for item in logprobs:
            offsets.append(at)
            at += len(item.text)
        self._offset[index] = at
        return {
            "tokens": [item.text for item in logprobs],
            "token_logprobs": [item.logprob for item in logprobs],
            "top_logprobs": [{text: value for _, text, value in item.top[: self._logprobs]} for item in logprobs],
            "text_offset": offsets,
        }


def _text_choice(index: int, text: str, logprobs: dict[str, Any] | None, finish_reason: str | None) -> dict[str, Any]:
    return {"index": index, "text": text, "logprobs": logprobs, "finish_reason": finish_reason}


def _chat_choice(index: int, delta: dict[str, Any], finish_reason: str | None = None) -> dict[str, Any]:
    return {"index": index, "delta": delta, "logprobs": None, "finish_reason": finish_reason}


def _scores(item: TokenLogprob, count: int) -> dict[str, Any]:
    """A token of the prompt as vLLM reports it: by id, with its `count` likeliest alternatives."""
    found = {str(item.token): {"logprob": item.logprob, "rank": item.rank, "decoded_token": item.text}}
    for rank, (token, text, value) in enumerate(item.top[:count], 1):
        found.setdefault(str(token), {"logprob": value, "rank": rank, "decoded_token": text})
    return found


def _logprob(item: TokenLogprob) -> dict[str, Any]:
    top = [{"token": text, "logprob": value, "bytes": list(text.encode())} for _, text, value in item.top]
    return {"token": item.text, "logprob": item.logprob, "bytes": list(item.text.encode()), "top_logprobs": top}
