"""The engine's pieces as chunks of OpenAI's chat completions and completions."""

import time
from collections.abc import AsyncIterator
from typing import Any

from kvproxy.engine.request import Delta, TokenLogprob
from kvproxy.proxy.backend import Call, Reply
from kvproxy.proxy.dialects.chat import includes_usage


class ChunkWriter:
    """Writes one request's pieces as OpenAI chunks.

    Args:
        call: the request.
        model: its name for the client.
    """

    def __init__(self, call: Call, model: str) -> None:
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
        delta: Delta | None = first
        while delta is not None:
            generated[delta.index] = delta.usage.completion_tokens
            for choice in self._choices(delta):
                yield self._head | {"choices": [choice]}
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

    def _choices(self, delta: Delta) -> list[dict[str, Any]]:
        if not self._chat:
            logprobs = self._text_logprobs(delta) if delta.logprobs else None
            if not delta.text and not delta.finish_reason and not logprobs:
                return []
            reason = delta.finish_reason
            return [{"index": delta.index, "text": delta.text, "logprobs": logprobs, "finish_reason": reason}]
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

    def _text_logprobs(self, delta: Delta) -> dict[str, Any]:
        offsets = []
        for item in delta.logprobs:
            offset = self._offset.get(delta.index, 0)
            offsets.append(offset)
            self._offset[delta.index] = offset + len(item.text)
        return {
            "tokens": [item.text for item in delta.logprobs],
            "token_logprobs": [item.logprob for item in delta.logprobs],
            "top_logprobs": [{text: value for _, text, value in item.top} for item in delta.logprobs],
            "text_offset": offsets,
        }


def _chat_choice(index: int, delta: dict[str, Any], finish_reason: str | None = None) -> dict[str, Any]:
    return {"index": index, "delta": delta, "logprobs": None, "finish_reason": finish_reason}


def _logprob(item: TokenLogprob) -> dict[str, Any]:
    top = [{"token": text, "logprob": value, "bytes": list(text.encode())} for _, text, value in item.top]
    return {"token": item.text, "logprob": item.logprob, "bytes": list(item.text.encode()), "top_logprobs": top}
