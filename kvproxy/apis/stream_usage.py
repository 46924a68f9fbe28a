"""Asks for the usage of streams whose clients did not, and removes the chunk with the usage from these streams."""

from kvproxy.apis.api_request import ApiRequest
from kvproxy.apis.json import contains_any, dumps, field, loads
from kvproxy.apis.sse import EventSplitter, parse_event

_FIELD = "stream_options"
_USAGE = (b'"usage"',)
_INCLUDED = b'{"stream_options":{"include_usage":true},'
_MAX_EVENT_BYTES = 2**20
"""Larger events pass unread."""


def lacks_usage(request: ApiRequest) -> bool:
    """Return whether the response is a stream that reports its usage only on request, and the request does not ask for it."""
    return request.stream and request.api.has_stream_options and not field(request.body.get(_FIELD), "include_usage")


def body_with_usage(request: ApiRequest) -> bytes:
    """Return the body of a request, with a request for the usage. Other bytes are unchanged if possible."""
    if _FIELD not in request.body:
        return _INCLUDED + request.raw.lstrip()[1:]
    options = request.body[_FIELD]
    return dumps({**request.body, _FIELD: {**(options if isinstance(options, dict) else {}), "include_usage": True}})


class UsageFilter:
    """Removes the chunk with the usage from a stream. Other bytes are unchanged; an event passes when it is complete."""

    def __init__(self) -> None:
        self._events = EventSplitter()

    def push(self, chunk: bytes) -> bytes:
        kept = [event for event in self._events.push(chunk) if not _has_only_usage(event)]
        if len(self._events) > _MAX_EVENT_BYTES:
            kept.append(self._events.take_rest())
        return b"".join(kept)

    def end(self) -> bytes:
        rest = self._events.take_rest()
        return b"" if _has_only_usage(rest) else rest


def _has_only_usage(event: bytes) -> bool:
    if not contains_any(event, _USAGE):
        return False
    try:
        chunk = loads(parse_event(event).data)
    except ValueError:
        return False
    return field(chunk, "choices") == [] and isinstance(field(chunk, "usage"), dict)
