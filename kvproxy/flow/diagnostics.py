"""Cache diagnostics of the embedded engine: `diagnostics` in Messages, `prompt_cache_diagnostics` in Responses.

Both compare a request with an earlier one by digests of its parts, and name the first part that differs. The response of an
upstream stays unchanged.
"""

import asyncio
import hashlib
from collections import OrderedDict
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass

from kvproxy.apis.json import Json, JsonMap, JsonObject, as_object, dumps, field, loads
from kvproxy.apis.request import ApiRequest
from kvproxy.apis.sse import EventReader, event

_MAX_PROMPTS = 10_000
Part = tuple[bytes, int]
"""Digest of a part of a request, and its size in bytes."""
# Causes and the paths of their fields. The first one that differs is reported.
_CAUSES: dict[str, tuple[tuple[str, tuple[str, ...]], ...]] = {
    "messages": (("model_changed", ("model",)), ("tools_changed", ("tools",)), ("system_changed", ("system",))),
    "responses": (
        ("model_changed", ("model",)),
        ("prompt_cache_key_changed", ("prompt_cache_key",)),
        ("service_tier_changed", ("service_tier",)),
        ("tools_changed", ("tools",)),
        ("text_format_changed", ("text", "format")),
        ("reasoning_effort_changed", ("reasoning", "effort")),
        ("verbosity_changed", ("text", "verbosity")),
        ("input_changed", ("instructions",)),
    ),
}
_TURNS = {"messages": ("messages", "messages_changed"), "responses": ("input", "input_changed")}
# Anthropic: a difference in one of these makes the comparison impossible.
_INCOMPARABLE = ("tool_choice", "thinking", "context_management", "output_config", "output_format")


@dataclass(frozen=True, slots=True)
class PromptDigests:
    """Digests of the parts of a prompt.

    Attributes:
        causes: parts by their cause, in order.
        turns: the messages, or the items of the input.
        incomparable: settings that make a comparison impossible if they differ.
    """

    causes: tuple[tuple[str, Part], ...]
    turns: tuple[Part, ...]
    incomparable: bytes


class Diagnostics:
    """Adds diagnostics to responses. Keeps digests of the last 10,000 prompts by tenant and response id."""

    def __init__(self) -> None:
        self._prompts: OrderedDict[tuple[str, str], PromptDigests] = OrderedDict()

    def applies(self, request: ApiRequest) -> bool:
        """Whether a request asks for diagnostics, or a later one may refer to it. Responses does not announce this."""
        if request.api.name == "messages":
            return isinstance(request.body.get("diagnostics"), dict)
        return request.api.name == "responses"

    async def add(self, request: ApiRequest, body: bytes | AsyncIterator[bytes]) -> bytes | AsyncIterator[bytes]:
        """A response body with its diagnostics."""
        if not isinstance(body, bytes):
            return self._stream(request, body)
        return await asyncio.to_thread(self._complete_stream if request.stream else self._complete, request, body)

    def _complete(self, request: ApiRequest, body: bytes) -> bytes:
        answer = loads(body)
        if not isinstance(answer, dict) or not isinstance(answer.get("id"), str):
            return body
        return dumps(self._diagnosed(request, _prompt(request), answer))

    async def _stream(self, request: ApiRequest, chunks: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
        reader, prompt = EventReader(), _prompt(request)
        try:
            async for chunk in chunks:
                yield b"".join(self._events(request, prompt, reader, chunk))
        finally:
            close = getattr(chunks, "aclose", None)
            if close is not None:
                await close()

    def _complete_stream(self, request: ApiRequest, body: bytes) -> bytes:
        return b"".join(self._events(request, _prompt(request), EventReader(), body))

    def _events(self, request: ApiRequest, prompt: PromptDigests, reader: EventReader, chunk: bytes) -> Iterator[bytes]:
        for each in reader.push(chunk):
            name, data = each.name.decode() or None, each.data
            holder = "message" if name == "message_start" else "response"
            if name in ("message_start", "response.completed", "response.incomplete"):
                payload = as_object(loads(data))
                data = dumps({**payload, holder: self._diagnosed(request, prompt, as_object(payload[holder]))})
            yield event(data, name)

    def _diagnosed(self, request: ApiRequest, prompt: PromptDigests, answer: JsonObject) -> JsonObject:
        tokens = request.api.usage(answer)[0]
        if request.api.name == "messages":
            asked = field(request.body.get("diagnostics"), "previous_message_id")
            diagnosis: JsonObject = {"diagnostics": self._messages(request, prompt, asked, tokens)}
        else:
            asked = field(request.body.get("prompt_cache_options"), "comparison_response_id")
            diagnosis = {"prompt_cache_diagnostics": self._responses(request, prompt, asked, tokens)} if asked else {}
        # A cached response has the id of the first one.
        self._prompts.setdefault((request.tenant, str(answer.get("id"))), prompt)
        if len(self._prompts) > _MAX_PROMPTS:
            self._prompts.popitem(last=False)
        return {**answer, **diagnosis}

    def _messages(self, request: ApiRequest, prompt: PromptDigests, asked: Json, tokens: int) -> Json:
        if not isinstance(asked, str):
            return None
        earlier = self._prompts.get((request.tenant, asked))
        if earlier is None:
            return {"cache_miss_reason": {"type": "previous_message_not_found"}}
        found = _divergence(earlier, prompt, "messages")
        if found is not None:
            return {"cache_miss_reason": {"type": found[0], "cache_missed_input_tokens": round(tokens * found[1])}}
        return None if earlier.incomparable == prompt.incomparable else {"cache_miss_reason": {"type": "unavailable"}}

    def _responses(self, request: ApiRequest, prompt: PromptDigests, asked: Json, tokens: int) -> Json:
        earlier = self._prompts.get((request.tenant, asked)) if isinstance(asked, str) else None
        if earlier is None:
            return {"type": "comparison_response_not_found"}
        found = _divergence(earlier, prompt, "responses")
        if found is None:
            return {"type": "cache_hit"}
        return {"type": "cache_miss", "reason": found[0], "cache_missed_tokens": round(tokens * found[1])}


def _divergence(earlier: PromptDigests, now: PromptDigests, api: str) -> tuple[str, float] | None:
    """The first part that differs, and the share of the prompt's bytes after it; None if the earlier prompt is a prefix."""
    passed, whole = 0, sum(size for _, (_, size) in now.causes) + sum(size for _, size in now.turns)
    for (cause, before), (_, after) in zip(earlier.causes, now.causes, strict=True):
        if before[0] != after[0]:
            return cause, 1 - passed / max(1, whole)
        passed += after[1]
    for before, after in zip(earlier.turns, now.turns, strict=False):
        if before[0] != after[0]:
            return _TURNS[api][1], 1 - passed / max(1, whole)
        passed += after[1]
    return None


def _prompt(request: ApiRequest) -> PromptDigests:
    body, api = request.body, request.api.name
    turns = body.get(_TURNS[api][0])
    return PromptDigests(
        tuple((cause, _part(_at(body, path))) for cause, path in _CAUSES[api]),
        tuple(_part(turn) for turn in (turns if isinstance(turns, list) else [turns])),
        _part([body.get(name) for name in _INCOMPARABLE])[0],
    )


def _at(body: JsonMap, path: tuple[str, ...]) -> Json:
    value: Json = body.get(path[0])
    for name in path[1:]:
        value = field(value, name)
    return value


def _part(value: Json) -> Part:
    written = dumps(value)
    return hashlib.blake2b(written, digest_size=16).digest(), len(written)
