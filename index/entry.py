"""A stored response with its request."""

import hashlib
import json
import math
import uuid
from dataclasses import MISSING, dataclass, fields
from operator import attrgetter
from typing import Any, Literal

Stale = Literal["stale-while-revalidate", "stale-if-error"]
"""Reason to serve an expired response (RFC 5861)."""
Freshness = Literal["fresh", "stale-while-revalidate", "stale-if-error", "expired"]
"""State of an entry by its age, with the stale periods of RFC 5861. An `expired` entry is never served."""

CLOCK_SKEW = 60.0
"""Seconds by which the clocks of proxies with one store may differ."""
LIBRARY_ENDPOINT = "library"
"""Endpoint of answers that a program stored with the library; a proxy with the same store does not serve them."""
PROVIDER_ID_TAG = "provider-id:"
"""Beginning of tags that name objects of the provider, such as a stored response. Statistics omit these tags."""
_PASSAGES = "."


def namespace_with_passages(namespace: str, passages: str) -> str:
    """Return the namespace of questions about passages, or other texts beside them, which have a digest."""
    return f"{namespace}{_PASSAGES}{passages}"


def library_digest(*parts: str) -> str:
    """Return the namespace of answers of the library (one part), or the key of a question in it."""
    return hashlib.sha256(json.dumps([LIBRARY_ENDPOINT, *parts]).encode()).hexdigest()


def learning_namespace(namespace: str) -> str:
    """Return the namespace in which the policy `learned` learns: the same for all passages beside a question."""
    return namespace.partition(_PASSAGES)[0]


@dataclass(frozen=True, slots=True)
class Entry:
    """A complete, successful response with its request.

    Attributes:
        key: digest of everything in the request that can change the response.
        namespace: digest of the same parts, except the prompt, and that of the passages beside the question, if any. Semantic
            hits require an equal namespace.
        endpoint: name of the API, for instance `chat`, or `LIBRARY_ENDPOINT`.
        prompt: text of the last user turn, or of all user turns if `cache.conversations` is set.
        semantic: the entry may have semantic hits.
        request, response: JSON bodies; the response is one object, not chunks of a stream, or the answer of a program.
        prompt_tokens, completion_tokens: None if the response does not report them.
        created, expires, last_hit: seconds since the epoch.
        stale_while_revalidate, stale_if_error: seconds after `expires` (RFC 5861).
    """

    id: str
    key: str
    namespace: str
    tenant: str
    model: str
    endpoint: str
    prompt: str
    semantic: bool
    request: bytes
    response: bytes
    created: float
    expires: float
    hits: int = 0
    last_hit: float | None = None
    prompt_tokens: int | None = None
    completion_tokens: int | None = None
    tags: tuple[str, ...] = ()
    backend: str = ""
    request_id: str = ""
    stale_while_revalidate: float = 0.0
    stale_if_error: float = 0.0

    def freshness(self, now: float) -> Freshness:
        if self.created > now + CLOCK_SKEW:
            # It would outlive its lifetime after the clock was set back.
            return "expired"
        if self.expires > now:
            return "fresh"
        if self.expires + self.stale_while_revalidate > now:
            return "stale-while-revalidate"
        return "stale-if-error" if self.expires + self.stale_if_error > now else "expired"

    @property
    def namespace_name(self) -> str | None:
        """The name of the namespace in the library; None for a proxy's response, and if it was redacted."""
        if self.endpoint != LIBRARY_ENDPOINT:
            return None
        name: str | None = json.loads(self.request).get("namespace")
        return name

    def row(self) -> dict[str, Any]:
        values: dict[str, Any] = dict(zip(_NAMES, _values(self), strict=True))
        for name in _TOKENS:
            values[name] = _UNKNOWN if values[name] is None else values[name]
        values["semantic"] = int(self.semantic)
        values["tags"] = json.dumps(list(self.tags), ensure_ascii=False) if self.tags else _NO_TAGS
        return values

    def summary(self) -> dict[str, Any]:
        return {name: getattr(self, name) for name in _SUMMARY} | {"tags": list(self.tags)}

    def document(self) -> dict[str, Any]:
        return self.summary() | {
            "key": self.key,
            "request": json.loads(self.request),
            "response": json.loads(self.response),
        }

    def export_line(self, *marks: str) -> bytes:
        """Return the entry as a line of JSON, in which the fields `marks` are true.

        The bodies are not parsed, because parsing could change them.
        """
        head = json.dumps(self.summary() | {"key": self.key} | dict.fromkeys(marks, True)).removesuffix("}").encode()
        # JSON strings contain no unescaped line breaks.
        request, response = (body.replace(b"\r", b" ").replace(b"\n", b" ") for body in (self.request, self.response))
        return b'%s, "request": %s, "response": %s}\n' % (head, request, response)

    @classmethod
    def from_row(cls, row: dict[str, Any]) -> "Entry":
        values = {name: row[name] for name in _NAMES}
        for name in _TOKENS:
            values[name] = None if values[name] < 0 else values[name]
        values["semantic"], tags = bool(values["semantic"]), values["tags"]
        values["tags"] = () if tags == _NO_TAGS else tuple(json.loads(tags))
        return cls(**values)

    @classmethod
    def from_document(cls, document: dict[str, Any]) -> "Entry":
        """Create an entry from a parsed line of an export. Raises a KeyError for a missing field, or a ValueError.

        Times, durations, and counts beyond 2^40, and negative counts, are replaced by the closest possible number.
        """
        values = {
            column.name: document[column.name]
            for column in fields(cls)
            if column.default is MISSING or column.name in document
        }
        values["tags"] = tuple(str(tag) for tag in values.get("tags", ()))
        of_program = document["endpoint"] == LIBRARY_ENDPOINT
        for name, expected in (("request", dict), ("response", str if of_program else dict)):
            if not isinstance(document[name], expected):
                raise ValueError(f"{name} is no {'text' if expected is str else 'object'}")
            values[name] = json.dumps(document[name], allow_nan=False).encode()
        for name, value in values.items():
            _check_field(name, value)
            if name in _COUNTS and value is not None:
                values[name] = max(0, min(value, _MAX_NUMBER))
            elif name in _NUMBERS and value is not None:
                values[name] = max(-_MAX_NUMBER, min(value, _MAX_NUMBER))
        return cls(**values)


_TOKENS = ("prompt_tokens", "completion_tokens")
_NO_TAGS = "[]"
_UNKNOWN = -1  # Stores a number of tokens that is not reported, in a column without null.
_NAMES = tuple(column.name for column in fields(Entry))
_values = attrgetter(*_NAMES)
_SUMMARY = tuple(name for name in _NAMES if name not in ("key", "request", "response"))
_TEXTS = tuple(column.name for column in fields(Entry) if column.type is str)
_COUNTS = (*(column.name for column in fields(Entry) if column.type is int), *_TOKENS)
_NUMBERS = (*(column.name for column in fields(Entry) if column.type in (int, float)), *_TOKENS, "last_hit")
_MAX_NUMBER = 2**40
_MAX_ID = 512


def _check_field(name: str, value: Any) -> None:
    is_valid = True
    if name in _TEXTS:
        is_required = name in ("id", "key", "namespace")
        is_valid = isinstance(value, str) and (value != "" or not is_required) and _is_unicode(value)
        if is_valid and is_required:
            # They occur in URLs and in output.
            is_valid = value.isprintable() and len(value) <= _MAX_ID
    elif name in _NUMBERS:
        is_number = isinstance(value, int) or (isinstance(value, float) and math.isfinite(value))
        is_valid = is_number or (name in ("last_hit", *_TOKENS) and value is None)
    elif name == "semantic":
        is_valid = isinstance(value, bool)
    elif name == "tags":
        is_valid = all(map(_is_unicode, value))
    if not is_valid:
        raise ValueError(f"{name} is {value!r}")


def _is_unicode(value: str) -> bool:
    return not any("\ud800" <= letter <= "\udfff" for letter in value)


def new_id() -> str:
    return uuid.uuid4().hex
