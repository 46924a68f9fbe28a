"""What a stream says that its server reused of the prompt, read while it passes, whatever API it belongs to.

OpenAI's streams tell it in a last chunk with `usage` (where `stream_options.include_usage` asks for it), Responses in
`response.completed`, Anthropic in `message_start` and again in `message_delta`, llama.cpp in the `timings` of its last chunk.
"""

from kvproxy.apis.assemblers.reported import reported_reuse
from kvproxy.apis.json import Json, JsonObject, field, loads
from kvproxy.apis.sse import Event

_MARKS = (b'"usage"', b'"timings"')


class ReuseReader:
    """Takes a stream's events, and parses only those that may tell.

    Attributes:
        told: tokens of the prompt, and how many of them were reused; None until the stream tells.
    """

    def __init__(self) -> None:
        self.told: tuple[int, int] | None = None
        self._usage: JsonObject = {}
        self._timings: JsonObject = {}

    def take(self, event: Event) -> None:
        """Take one event; what cannot be read is passed over."""
        if not any(mark in event.data for mark in _MARKS):
            return
        try:
            part = loads(event.data)
        except ValueError:
            return
        for holder in (part, field(part, "message"), field(part, "response")):
            self._usage |= _given(field(holder, "usage"))
            self._timings |= _given(field(holder, "timings"))
        self.told = reported_reuse({"usage": self._usage, "timings": self._timings}) or self.told


def _given(value: Json) -> JsonObject:
    """The fields of an object that say something: a later event leaves out what an earlier one told."""
    return {name: each for name, each in value.items() if each is not None} if isinstance(value, dict) else {}
