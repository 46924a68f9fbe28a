"""Entries without what must not be stored."""

import json
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from typing import Any, Protocol

from kvproxy.index.entry import Entry


class RedactionFailed(Exception):
    """A text could not be redacted, so nothing of it may be stored. The message holds nothing of the text."""


class Redactor(Protocol):
    """Takes out of a text what must not be stored. Any thread may call it."""

    def __call__(self, text: str) -> str:
        """What may be stored or logged of a text: the text itself where it holds nothing to hide.

        Raises:
            RedactionFailed: that cannot be told.
        """


_Leaf = Callable[[Any], Any]


def redacted(entry: Entry, redact: Redactor) -> Entry | None:
    """What may be stored of an entry; None where its answer holds what must not be stored.

    The answer is kept as it is or not at all: a changed one would be served as if the model had said it. An entry whose
    question was changed answers equal requests only, since two questions may differ in nothing but what was taken out.

    Raises:
        RedactionFailed: what may be stored cannot be told.
    """
    prompt = redact(entry.prompt)
    answer = _read(entry.response)
    if _walked(answer, lambda leaf: redact(leaf) if isinstance(leaf, str) else leaf) != answer:
        return None
    return replace(
        entry,
        prompt=prompt,
        semantic=entry.semantic and prompt == entry.prompt,
        # Written anew: a name that an object has twice is read once, and the other value would stay unseen.
        request=redacted_json(entry.request, redact),
        response=_written(answer),
    )


def redacted_json(body: bytes, redact: Redactor) -> bytes:
    """JSON without what must not be stored, in its texts, names and numbers; raises RedactionFailed."""
    return _written(_walked(_read(body), lambda leaf: _leaf(leaf, redact)))


def redacted_all(entries: Iterable[Entry], redact: Redactor | None) -> Iterator[Entry]:
    """What may be stored of entries, as far as they may be stored at all."""
    if redact is None:
        yield from entries
        return
    for entry in entries:
        kept = redacted(entry, redact)
        if kept is not None:
            yield kept


def _leaf(leaf: Any, redact: Redactor) -> Any:
    """A text or a number; a number may be one of a card."""
    if leaf is None or isinstance(leaf, bool):
        return leaf
    text = leaf if isinstance(leaf, str) else json.dumps(leaf)
    kept = redact(text)
    return leaf if kept == text else kept


def _walked(value: Any, change: _Leaf) -> Any:
    """JSON with every leaf and every name changed."""
    if isinstance(value, dict):
        return {change(name): _walked(item, change) for name, item in value.items()}
    if isinstance(value, list):
        return [_walked(item, change) for item in value]
    return change(value)


def _read(body: bytes) -> Any:
    try:
        return json.loads(body)
    except (ValueError, RecursionError):
        raise RedactionFailed("a request or an answer is no JSON that can be redacted: it is not stored") from None


def _written(value: Any) -> bytes:
    return json.dumps(value, ensure_ascii=False, separators=(",", ":")).encode("utf-8", "surrogatepass")
