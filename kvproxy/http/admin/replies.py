"""What admin routes have in common: dataclasses as JSON, and numbers in a query."""

import json
import math

import orjson
from starlette.responses import Response

from kvproxy.blocks.rows import BlockContent, BlockLocation, BlockRow, ChainRow
from kvproxy.errors import InvalidRequest
from kvproxy.journal.record import Record

Row = BlockRow | ChainRow | BlockLocation | Record
_MOST = 2.0**31


def reply(value: object, headers: dict[str, str] | None = None) -> Response:
    """Dataclasses, or lists and dicts of them, as JSON."""
    try:
        written = orjson.dumps(value)
    except TypeError:
        # An integer beyond 64 bits, as a stored request may hold.
        written = json.dumps(value).encode()
    return Response(written, media_type="application/json", headers=headers)


def named(row: Row) -> dict[str, object]:
    """A row's fields by their names. What they hold is not copied: of tens of thousands of rows that would take a second."""
    return {name: getattr(row, name) for name in row.__dataclass_fields__}


def flat(row: BlockRow | ChainRow) -> dict[str, object]:
    """A row with the fields of its place beside its own, where it has one."""
    found = named(row)
    del found["place"]
    return found if row.place is None else found | named(row.place)


def flat_content(content: BlockContent) -> dict[str, object]:
    """A block with what it holds beside its own fields."""
    return {**flat(content.block), "tokens": content.tokens, "text": content.text}


def number(text: str, name: str) -> float:
    """A number of a query, from 0 to 2**31.

    Raises:
        InvalidRequest: it is none.
    """
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not 0 <= value <= _MOST:
        raise InvalidRequest(f"{name} must be a number of at least 0, not {text[:40]!r}", param=name)
    return value
