"""OpenAI's streams of Responses."""

from kvproxy.apis.json import JsonObject, as_object, loads
from kvproxy.apis.sse import DONE, Event

_LAST = ("response.completed", "response.incomplete")


class ResponseAssembler:
    """See `Assembler`. The last event carries the whole object, so nothing needs to be put together."""

    def __init__(self) -> None:
        self._whole: JsonObject | None = None
        self.done = False

    def push(self, event: Event) -> None:
        if event.data == DONE:
            return
        part = as_object(loads(event.data))
        if event.name == b"error" or part["type"] == "error":
            raise ValueError("the stream ended in an error")
        if self.done:
            raise ValueError("an event after the end of the stream")
        if part["type"] in _LAST:
            self._whole = dict(as_object(part["response"]))
            self.done = True

    def result(self) -> JsonObject | None:
        return self._whole
