"""An answer that passes, kept to be read when it is over: what the model said, and what the server says it reused."""

from collections.abc import AsyncIterator
from dataclasses import dataclass

from kvproxy.apis.api import Api
from kvproxy.apis.json import Json, JsonMap, as_object, field, loads
from kvproxy.apis.reported_usage import reported_reuse
from kvproxy.apis.sse import DONE, EventReader

_MOST_BYTES = 4 * 2**20
"""An answer that is longer is passed on and not kept; of its slot, only the prompt is known then."""


@dataclass(frozen=True, slots=True)
class Told:
    """What an answer tells.

    Attributes:
        text: what the model said, where it is one text and nothing else; else None.
        prompt: tokens of the prompt, and how many of them were reused; None where it does not tell.
    """

    text: str | None = None
    prompt: tuple[int, int] | None = None


class Heard:
    """Keeps an answer's bytes while they pass.

    Args:
        api: the API of the request.
        streams: whether they are server-sent events.
    """

    def __init__(self, api: Api, streams: bool) -> None:
        self._api = api
        self._streams = streams
        self._parts: list[bytes] = []
        self._size = 0

    async def listen(self, chunks: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
        """The same chunks."""
        async for chunk in chunks:
            self._size += len(chunk)
            if self._size <= _MOST_BYTES:
                self._parts.append(chunk)
            yield chunk

    def told(self) -> Told:
        """What was said so far; it takes time where that is long."""
        if self._size > _MOST_BYTES:
            return Told()
        try:
            body = b"".join(self._parts)
            return self._streamed(body) if self._streams else self._whole(as_object(loads(body)))
        except (ValueError, KeyError, TypeError):
            # Whatever a server sends is the client's to judge.
            return Told()

    def _whole(self, whole: JsonMap) -> Told:
        text = None if _says_more(whole) else self._api.said(whole)
        return Told(text, reported_reuse(whole) or _from_timings(whole))

    def _streamed(self, body: bytes) -> Told:
        assembler = self._api.assembler()
        reported = None
        for event in EventReader().push(body):
            assembler.push(event)
            if b'"timings"' in event.data and event.data != DONE:
                reported = _from_timings(as_object(loads(event.data))) or reported
        # A stream that was left has no proper end, and still its slot holds what was said.
        assembler.done = True
        whole = assembler.result()
        if whole is None:
            return Told(prompt=reported)
        told = self._whole(whole)
        return Told(told.text, told.prompt or reported)


def _from_timings(whole: JsonMap) -> tuple[int, int] | None:
    """llama-server's own account: tokens of the prompt that it computed, and those that it had."""
    computed, had = (field(whole.get("timings"), name) for name in ("prompt_n", "cache_n"))
    return (computed + had, had) if isinstance(computed, int) and isinstance(had, int) else None


def _says_more(whole: JsonMap) -> bool:
    """Whether there is more than a text: calls of tools, or thoughts, whose own tokens are not told."""
    choices = whole.get("choices")
    message: Json = field(choices[0], "message") if isinstance(choices, list) and choices else None
    return any(field(message, name) for name in ("tool_calls", "reasoning_content", "reasoning"))
