"""Redacts entries before they are stored."""

import json
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from kvproxy.index.entry import Entry


class RedactionFailed(Exception):
    """A text cannot be redacted, so it must not be stored. The message contains no part of the text."""


Redactor = Callable[[str], str]
"""Returns a text without secrets and private data; raises RedactionFailed. Thread-safe."""


def redact_entry(entry: Entry, redact: Redactor) -> Entry | None:
    """Return the redacted entry; None if its response contains private text, because responses are served unchanged.

    An entry with a redacted question has exact hits only, because redaction can make different questions equal.
    """
    prompt = redact(entry.prompt)
    answer = _parse_json(entry.response)
    if _map_leaves(answer, lambda leaf: redact(leaf) if isinstance(leaf, str) else leaf) != answer:
        return None
    return replace(
        entry,
        prompt=prompt,
        semantic=entry.semantic and prompt == entry.prompt,
        # Bytes with a repeated name contain a value that was not redacted, because parsing keeps only the last.
        request=redact_json(entry.request, redact),
        response=_to_json(answer),
    )


def redact_json(body: bytes, redact: Redactor) -> bytes:
    return _to_json(_map_leaves(_parse_json(body), lambda leaf: _redact_leaf(leaf, redact)))


def _redact_leaf(leaf: Any, redact: Redactor) -> Any:
    if leaf is None or isinstance(leaf, bool):
        return leaf
    # A number may be a credit card number.
    text = leaf if isinstance(leaf, str) else json.dumps(leaf)
    redacted = redact(text)
    return leaf if redacted == text else redacted


def _map_leaves(value: Any, change: Callable[[Any], Any]) -> Any:
    if isinstance(value, dict):
        return {change(name): _map_leaves(item, change) for name, item in value.items()}
    if isinstance(value, list):
        return [_map_leaves(item, change) for item in value]
    return change(value)


def _parse_json(body: bytes) -> Any:
    try:
        return json.loads(body)
    except (ValueError, RecursionError):
        raise RedactionFailed("a request or an answer is not JSON and cannot be redacted: it is not stored") from None


def _to_json(value: Any) -> bytes:
    return json.dumps(value, ensure_ascii=False, separators=(",", ":")).encode("utf-8", "surrogatepass")
