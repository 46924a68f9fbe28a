"""What clients may ask of a prompt's reuse: `diagnostics` in Anthropic's Messages, `prompt_cache_diagnostics` in Responses.

Both compare a request with an earlier one by digests of its parts, and name the first part that differs. The embedded engine's
answers are told here; an upstream's answers stay as they are, and its own diagnostics with them.
"""

import asyncio
import hashlib
from collections import OrderedDict
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass, replace

from kvproxy.apis.json import Json, JsonMap, JsonObject, as_object, dumps, field, loads
from kvproxy.apis.request import ApiRequest
from kvproxy.apis.sse import EventReader, event
from kvproxy.flow.outcome import Answer

_MOST = 10_000
Part = tuple[bytes, int]
"""The digest of a part of a request, and its bytes."""
# Where each cause lies: a field, or a field of a field. The first one that differs is named.
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
# Of these Anthropic says that a difference makes the comparison impossible.
_OTHERS = ("tool_choice", "thinking", "context_management", "output_config", "output_format")


@dataclass(frozen=True, slots=True)
class Prompt:
    """Digests of what a prompt is made of.

    Attributes:
        causes: each part that may differ, by its cause, in order.
        turns: the messages, or the items of the input.
        others: the settings of which a difference makes a comparison impossible.
    """

    causes: tuple[tuple[str, Part], ...]
    turns: tuple[Part, ...]
    others: bytes


class Diagnostics:
    """Remembers the prompts of those who may ask, by tenant and response id: digests alone, the last ten thousand."""

    def __init__(self) -> None:
        self._known: OrderedDict[tuple[str, str], Prompt] = OrderedDict()

    def wants(self, request: ApiRequest) -> bool:
        """Whether a request asks, or may be asked about. OpenAI's clients do not say so beforehand."""
        if request.api.name == "messages":
            return isinstance(request.body.get("diagnostics"), dict)
        return request.api.name == "responses"

    def whole(self, request: ApiRequest, body: bytes) -> bytes:
        """An answer with what was asked; as it is where it is none."""
        answer = loads(body)
        if not isinstance(answer, dict) or not isinstance(answer.get("id"), str):
            return body
        return dumps(self._told(request, _prompt(request), answer))

    async def stream(self, request: ApiRequest, chunks: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
        """The same of a stream."""
        reader, prompt = EventReader(), _prompt(request)
        try:
            async for chunk in chunks:
                yield b"".join(self._events(request, prompt, reader, chunk))
        finally:
            close = getattr(chunks, "aclose", None)
            if close is not None:
                await close()

    def replayed(self, request: ApiRequest, body: bytes) -> bytes:
        """The same of a stream that is all there."""
        return b"".join(self._events(request, _prompt(request), EventReader(), body))

    def _events(self, request: ApiRequest, prompt: Prompt, reader: EventReader, chunk: bytes) -> Iterator[bytes]:
        for each in reader.push(chunk):
            name, data = each.name.decode() or None, each.data
            holder = "message" if name == "message_start" else "response"
            if name in ("message_start", "response.completed", "response.incomplete"):
                said = as_object(loads(data))
                data = dumps({**said, holder: self._told(request, prompt, as_object(said[holder]))})
            yield event(data, name)

    def _told(self, request: ApiRequest, prompt: Prompt, answer: JsonObject) -> JsonObject:
        tokens = request.api.usage(answer)[0]
        if request.api.name == "messages":
            asked = field(request.body.get("diagnostics"), "previous_message_id")
            told: JsonObject = {"diagnostics": self._messages(request, prompt, asked, tokens)}
        else:
            asked = field(request.body.get("prompt_cache_options"), "comparison_response_id")
            told = {"prompt_cache_diagnostics": self._responses(request, prompt, asked, tokens)} if asked else {}
        # A stored answer that is given again has the id of the first.
        self._known.setdefault((request.tenant, str(answer.get("id"))), prompt)
        if len(self._known) > _MOST:
            self._known.popitem(last=False)
        return {**answer, **told}

    def _messages(self, request: ApiRequest, prompt: Prompt, asked: Json, tokens: int) -> Json:
        if not isinstance(asked, str):
            return None
        earlier = self._known.get((request.tenant, asked))
        if earlier is None:
            return {"cache_miss_reason": {"type": "previous_message_not_found"}}
        found = _divergence(earlier, prompt, "messages")
        if found is not None:
            return {"cache_miss_reason": {"type": found[0], "cache_missed_input_tokens": round(tokens * found[1])}}
        return None if earlier.others == prompt.others else {"cache_miss_reason": {"type": "unavailable"}}

    def _responses(self, request: ApiRequest, prompt: Prompt, asked: Json, tokens: int) -> Json:
        earlier = self._known.get((request.tenant, asked)) if isinstance(asked, str) else None
        if earlier is None:
            return {"type": "comparison_response_not_found"}
        found = _divergence(earlier, prompt, "responses")
        if found is None:
            return {"type": "cache_hit"}
        return {"type": "cache_miss", "reason": found[0], "cache_missed_tokens": round(tokens * found[1])}


async def diagnosed(diagnostics: Diagnostics, request: ApiRequest, answer: Answer) -> Answer:
    """An answer with what its request asks of the reuse of its prompt."""
    if not isinstance(answer.body, bytes):
        return replace(answer, body=diagnostics.stream(request, answer.body))
    write = diagnostics.replayed if request.stream else diagnostics.whole
    return replace(answer, body=await asyncio.to_thread(write, request, answer.body))


def _divergence(earlier: Prompt, now: Prompt, api: str) -> tuple[str, float] | None:
    """The first part that differs, and the share of the prompt's bytes from there on; None where the earlier one is its start."""
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


def _prompt(request: ApiRequest) -> Prompt:
    body, api = request.body, request.api.name
    turns = body.get(_TURNS[api][0])
    return Prompt(
        tuple((cause, _part(_at(body, path))) for cause, path in _CAUSES[api]),
        tuple(_part(turn) for turn in (turns if isinstance(turns, list) else [turns])),
        _part([body.get(name) for name in _OTHERS])[0],
    )


def _at(body: JsonMap, path: tuple[str, ...]) -> Json:
    value: Json = body.get(path[0])
    for name in path[1:]:
        value = field(value, name)
    return value


def _part(value: Json) -> Part:
    written = dumps(value)
    return hashlib.blake2b(written, digest_size=16).digest(), len(written)
