"""Parses JSON with exact large integers, and checks the types of values."""

import json
import re
from collections.abc import Iterable, Mapping
from dataclasses import fields, is_dataclass
from typing import TypeAlias

import orjson

Json: TypeAlias = "bool | int | float | str | list[Json] | dict[str, Json] | None"
JsonObject: TypeAlias = dict[str, "Json"]
JsonMap: TypeAlias = Mapping[str, "Json"]
"""A read-only JSON object."""

MAX_TOKENS = 2**25
"""Largest credible number of tokens of any request; `possible_tokens` is the limit of a given one."""
# An integer that may exceed 64 bits, except digits of a fraction.
_LONG = re.compile(rb"(?<![.\d])\d{19,}(?![.\deE])")
# Searching 19 equal digits is much faster than the expression.
_EQUAL_DIGITS = bytes.maketrans(b"123456789", b"0" * 9)
_LEAST_LONG = (b"0" * 19,)


def loads(data: bytes) -> Json:
    """Parse JSON; integers may exceed 64 bits. Raises ValueError for invalid or too deeply nested JSON."""
    value: Json = orjson.loads(data)
    if not contains_any(data.translate(_EQUAL_DIGITS), _LEAST_LONG) or not _LONG.search(data):
        return value
    try:
        exact: Json = json.loads(data)
    except RecursionError:
        raise ValueError("nested too deeply") from None
    return exact


def contains_any(data: bytes, words: Iterable[bytes]) -> bool:
    """Return whether JSON contains one of the words. `word in data` would raise and catch a TypeError first, in C."""
    for word in words:  # noqa: SIM110
        if data.find(word) >= 0:
            return True
    return False


def dumps(value: object, *, sort_keys: bool = False) -> bytes:
    """Serialise a value, which may contain dataclasses; integers may exceed 64 bits.

    Raises ValueError for too deep nesting and lone surrogates.
    """
    try:
        # orjson's result has a buffer of at least 4 KiB, which a copy does not keep in memory.
        return bytes(memoryview(orjson.dumps(value, option=orjson.OPT_SORT_KEYS if sort_keys else None)))
    except TypeError:
        # Integers beyond 64 bits, or more than 254 levels.
        try:
            return json.dumps(
                value, ensure_ascii=False, separators=(",", ":"), sort_keys=sort_keys, default=_fields_of
            ).encode()
        except RecursionError:
            raise ValueError("nested too deeply") from None


def _fields_of(value: object) -> dict[str, object]:
    if not is_dataclass(value):
        raise TypeError(f"{type(value).__name__} is no JSON")
    return {field.name: getattr(value, field.name) for field in fields(value)}


def as_object(value: Json) -> JsonObject:
    if not isinstance(value, dict):
        raise ValueError(f"expected an object, not {type(value).__name__}")
    return value


def as_list(value: Json) -> list[Json]:
    if not isinstance(value, list):
        raise ValueError(f"expected a list, not {type(value).__name__}")
    return value


def as_text(value: Json) -> str:
    if not isinstance(value, str):
        raise ValueError(f"expected a text, not {type(value).__name__}")
    return value


def as_index(value: Json) -> int:
    if not isinstance(value, int) or isinstance(value, bool) or value < 0:
        raise ValueError(f"expected an index, not {value!r}")
    return value


def as_token_count(value: Json) -> int | None:
    """Return the value if it is an integer from 0 to `MAX_TOKENS`, or else None."""
    return value if isinstance(value, int) and not isinstance(value, bool) and 0 <= value <= MAX_TOKENS else None


def objects(value: Json) -> list[JsonObject]:
    """Return the objects in a list, without other items; empty if the value is not a list."""
    return [item for item in value if isinstance(item, dict)] if isinstance(value, list) else []


def field(value: Json, name: str) -> Json:
    """Return a field of an object; None if the object or the field is missing."""
    return value.get(name) if isinstance(value, dict) else None


def text_of(content: Json, kind: str = "text") -> str | None:
    """Return the text of a message's content: a string, or a list of parts that all have type `kind`; else None."""
    if isinstance(content, str):
        return content
    if not isinstance(content, list):
        return None
    texts = [field(part, "text") for part in content if field(part, "type") == kind]
    parts = [text for text in texts if isinstance(text, str)]
    return "".join(parts) if len(parts) == len(content) else None


def to_text(value: Json) -> str:
    """Return a value as text: a text unchanged, other JSON as its text, and nothing for null."""
    if value is None:
        return ""
    return value if isinstance(value, str) else dumps(value).decode("utf-8", "replace")
