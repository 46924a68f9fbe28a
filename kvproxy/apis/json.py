"""JSON of other people's making: its type, how it is read without changing what it says, and how its parts are taken out."""

import json
import re
from collections.abc import Mapping
from typing import TypeAlias

import orjson

Json: TypeAlias = "bool | int | float | str | list[Json] | dict[str, Json] | None"
JsonObject: TypeAlias = dict[str, "Json"]
JsonMap: TypeAlias = Mapping[str, "Json"]
"""An object that is only read."""

# An integer that may not fit into 64 bits; digits of a fraction are none.
_LONG = re.compile(rb"(?<![.\d])\d{19,}(?![.\deE])")
# Finding a run of digits this way takes a tenth of the pattern's time, in which no other request would be served.
_DIGITS = bytes(ord("0") if chr(byte).isdigit() and byte < 128 else ord(" ") for byte in range(256))
_RUN = b"0" * 19


def loads(data: bytes) -> Json:
    """A JSON value. orjson turns an integer beyond 64 bits into the nearest float; here it stays an integer.

    Raises:
        ValueError: the bytes are no JSON, are nested too deeply, or hold a number of thousands of digits.
    """
    value: Json = orjson.loads(data)
    if _RUN not in data.translate(_DIGITS) or not _LONG.search(data):
        return value
    try:
        exact: Json = json.loads(data)
    except RecursionError:
        raise ValueError("nested too deeply") from None
    return exact


def dumps(value: Json) -> bytes:
    """A JSON value as bytes, integers beyond 64 bits included."""
    try:
        return orjson.dumps(value)
    except TypeError:
        return json.dumps(value, ensure_ascii=False, separators=(",", ":")).encode()


def as_object(value: Json) -> JsonObject:
    """An object; raises ValueError where the value is something else."""
    if not isinstance(value, dict):
        raise ValueError(f"expected an object, not {type(value).__name__}")
    return value


def as_list(value: Json) -> list[Json]:
    """A list; raises ValueError where the value is something else."""
    if not isinstance(value, list):
        raise ValueError(f"expected a list, not {type(value).__name__}")
    return value


def as_text(value: Json) -> str:
    """A text; raises ValueError where the value is something else."""
    if not isinstance(value, str):
        raise ValueError(f"expected a text, not {type(value).__name__}")
    return value


def as_index(value: Json) -> int:
    """A place in a list; raises ValueError where the value is something else."""
    if not isinstance(value, int) or isinstance(value, bool) or value < 0:
        raise ValueError(f"expected an index, not {value!r}")
    return value


def objects(value: Json) -> list[JsonObject]:
    """The objects of a list; nothing where the value is no list."""
    return [item for item in value if isinstance(item, dict)] if isinstance(value, list) else []


def field(value: Json, name: str) -> Json:
    """A field of an object; None where there is no such field, or no object."""
    return value.get(name) if isinstance(value, dict) else None


def text_of(content: Json, kind: str = "text") -> str | None:
    """The text of a message's content: a text, or a list of text parts; None where there is anything else in it."""
    if isinstance(content, str):
        return content
    if not isinstance(content, list):
        return None
    parts: list[str] = []
    for part in content:
        if not isinstance(part, dict) or part.get("type") != kind:
            return None
        parts.append(str(part.get("text", "")))
    return "".join(parts)


def shown(value: Json) -> str:
    """A text as it is, anything else as JSON: what a listing shows for a request."""
    return value if isinstance(value, str) else dumps(value).decode("utf-8", "replace")
