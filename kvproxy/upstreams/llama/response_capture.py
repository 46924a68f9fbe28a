"""Captures a response as it passes, to read its text and its prefix reuse afterwards."""

from collections.abc import AsyncIterator
from dataclasses import dataclass

from kvproxy.apis.api import Api
from kvproxy.apis.json import Json, JsonMap, as_object, field, loads
from kvproxy.apis.reported_usage import ReportedReuse, ReuseReader, reported_reuse
from kvproxy.apis.sse import EventReader

_MAX_BYTES = 4 * 2**20
"""Longer responses are not captured, so only the prompt of their slot is known."""


@dataclass(frozen=True, slots=True)
class CapturedResponse:
    """Contents of a response; `text` is None if the response has anything else."""

    text: str | None = None
    reuse: ReportedReuse | None = None


class ResponseCapture:
    """Captures the bytes of one response."""

    def __init__(self, api: Api, streams: bool) -> None:
        self._api = api
        self._streams = streams
        self._chunks: list[bytes] = []
        self._size = 0

    async def capture(self, chunks: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
        """Pass the chunks unchanged."""
        async for chunk in chunks:
            self._size += len(chunk)
            if self._size <= _MAX_BYTES:
                self._chunks.append(chunk)
            yield chunk

    def read(self) -> CapturedResponse:
        """Parse the captured bytes; slow for a long response."""
        if self._size > _MAX_BYTES:
            return CapturedResponse()
        try:
            body = b"".join(self._chunks)
            return self._read_stream(body) if self._streams else self._read_object(as_object(loads(body)))
        except (ValueError, KeyError, TypeError):
            return CapturedResponse()

    def _read_object(self, response: JsonMap) -> CapturedResponse:
        text = None if _has_more_than_text(response) else self._api.output_text(response)
        return CapturedResponse(text, reported_reuse(response))

    def _read_stream(self, body: bytes) -> CapturedResponse:
        assembler, reader = self._api.assembler(), ReuseReader()
        for event in EventReader().push(body):
            assembler.push(event)
            reader.push(event)
        # A cancelled stream has no end, but its slot still holds the generated tokens.
        assembler.done = True
        response = assembler.result()
        if response is None:
            return CapturedResponse(reuse=reader.reuse)
        captured = self._read_object(response)
        return CapturedResponse(captured.text, captured.reuse or reader.reuse)


def _has_more_than_text(response: JsonMap) -> bool:
    """Whether there are tool calls or reasoning, whose exact tokens are unknown."""
    choices = response.get("choices")
    message: Json = field(choices[0], "message") if isinstance(choices, list) and choices else None
    return any(field(message, name) for name in ("tool_calls", "reasoning_content", "reasoning"))
