"""A stored response, and its form in export files."""

import json
import uuid
from dataclasses import MISSING, dataclass, fields
from typing import Any, Literal

Freshness = Literal["fresh", "stale-while-revalidate", "stale-if-error", "over"]
"""Whether an entry may be served: within its time, past it while it is computed anew, past it where that fails, or not at all.

What may be served while it is computed anew may be served where that fails too.
"""


@dataclass(frozen=True, slots=True)
class Entry:
    """One complete, successful answer with what it answers.

    Attributes:
        id: random, 32 hex digits.
        key: exact key, a digest of everything that can change the answer.
        namespace: digest of all that, less the text of the last user turn.
        tenant: who the answer belongs to.
        model: name in the request.
        endpoint: `chat` or `completions`.
        prompt: text of the last user turn; embedded when `semantic`.
        semantic: whether similar questions may be answered with it.
        request, response: JSON as sent and as answered; the response is one object, never chunks.
        created, expires: seconds since the epoch.
        stale_while_revalidate, stale_if_error: seconds after `expires` in which it may still be served; see RFC 5861.
        hits, last_hit: how often and when it was served.
        prompt_tokens, completion_tokens: what a hit saves.
        tags: names given by the request, for invalidation.
        backend, request_id: what computed the answer, and for which request.
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
    prompt_tokens: int = 0
    completion_tokens: int = 0
    tags: tuple[str, ...] = ()
    backend: str = ""
    request_id: str = ""
    stale_while_revalidate: float = 0.0
    stale_if_error: float = 0.0

    def freshness(self, now: float) -> Freshness:
        """Whether it may be served at a moment."""
        if self.expires > now:
            return "fresh"
        if self.expires + self.stale_while_revalidate > now:
            return "stale-while-revalidate"
        return "stale-if-error" if self.expires + self.stale_if_error > now else "over"

    def row(self) -> dict[str, Any]:
        """Columns of the responses table."""
        values = {column.name: getattr(self, column.name) for column in fields(self)}
        return values | {"semantic": int(self.semantic), "tags": json.dumps(list(self.tags), ensure_ascii=False)}

    def summary(self) -> dict[str, Any]:
        """What a listing shows, JSON-able."""
        return {
            "id": self.id,
            "namespace": self.namespace,
            "model": self.model,
            "prompt": self.prompt,
            "created": self.created,
            "hits": self.hits,
            "last_hit": self.last_hit,
            "expires": self.expires,
            "endpoint": self.endpoint,
            "tenant": self.tenant,
            "semantic": bool(self.semantic),
            "prompt_tokens": self.prompt_tokens,
            "completion_tokens": self.completion_tokens,
            "tags": list(self.tags),
            "backend": self.backend,
            "request_id": self.request_id,
            "stale_while_revalidate": self.stale_while_revalidate,
            "stale_if_error": self.stale_if_error,
        }

    def document(self) -> dict[str, Any]:
        """Everything, JSON-able: what `show` prints."""
        return self.summary() | {
            "key": self.key,
            "request": json.loads(self.request),
            "response": json.loads(self.response),
        }

    def line(self) -> bytes:
        """Everything as one line of an export file, with its end.

        Request and response are put in as they are kept: what was read once must not fail, or change, in being read again.
        """
        head = json.dumps(self.summary() | {"key": self.key}).removesuffix("}").encode()
        # Between the tokens of JSON a line end is a blank; inside of a text it is written as \n.
        request, response = (body.replace(b"\r", b" ").replace(b"\n", b" ") for body in (self.request, self.response))
        return b'%s, "request": %s, "response": %s}\n' % (head, request, response)

    @classmethod
    def from_row(cls, row: dict[str, Any]) -> "Entry":
        """An entry from columns; columns that are not its own are passed over."""
        values = {name: row[name] for name in _NAMES}
        values["semantic"], tags = bool(values["semantic"]), values["tags"]
        values["tags"] = () if tags == "[]" else tuple(json.loads(tags))
        return cls(**values)

    @classmethod
    def from_document(cls, document: dict[str, Any]) -> "Entry":
        """An entry from a line of an export file.

        Raises:
            KeyError: a field is missing that every export had from the beginning.
            ValueError: a field is of another kind.
        """
        values = {
            column.name: document[column.name]
            for column in fields(cls)
            if column.default is MISSING or column.name in document
        }
        values["tags"] = tuple(str(tag) for tag in values.get("tags", ()))
        for name in ("request", "response"):
            if not isinstance(document[name], dict):
                raise ValueError(f"{name} is no object")
            values[name] = json.dumps(document[name], allow_nan=False).encode()
        for name, value in values.items():
            _check(name, value)
        return cls(**values)


_NAMES = tuple(column.name for column in fields(Entry))
_TEXTS = ("id", "key", "namespace", "tenant", "model", "endpoint", "prompt", "backend", "request_id")
_NUMBERS = (
    *("created", "expires", "last_hit", "hits", "prompt_tokens", "completion_tokens"),
    *("stale_while_revalidate", "stale_if_error"),
)
_MOST = 2**63 - 1
"""Databases hold no larger numbers."""


def _check(name: str, value: Any) -> None:
    """Databases compare what is no number with numbers too: an entry with such an age would never go."""
    if name in _TEXTS:
        fits = isinstance(value, str) and (bool(value) or name not in ("id", "key", "namespace")) and _is_unicode(value)
    elif name in _NUMBERS:
        number = isinstance(value, int | float) and -_MOST <= value <= _MOST
        fits = number or (name == "last_hit" and value is None)
    elif name == "tags":
        fits = all(map(_is_unicode, value))
    else:
        fits = True
    if not fits:
        raise ValueError(f"{name} is {value!r}")


def _is_unicode(value: str) -> bool:
    """Whether a text can be written as UTF-8: JSON can hold halves of characters."""
    return not any("\ud800" <= letter <= "\udfff" for letter in value)


def new_id() -> str:
    """A random entry id."""
    return uuid.uuid4().hex
