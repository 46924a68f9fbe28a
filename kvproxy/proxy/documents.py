"""Reads JSON without changing what it says."""

import json
import re
from typing import Any

import orjson

# An integer that may not fit into 64 bits; digits of a fraction are none.
_LONG = re.compile(rb"(?<![.\d])\d{19,}(?![.\deE])")


def loads(data: bytes | str) -> Any:
    """A JSON value. orjson makes the nearest float of an integer beyond 64 bits; here it stays what it is.

    Raises:
        ValueError: it is no JSON, or too deep.
    """
    value = orjson.loads(data)
    if not _LONG.search(data if isinstance(data, bytes) else data.encode()):
        return value
    try:
        return json.loads(data)
    except RecursionError:
        raise ValueError("nested too deeply") from None
