"""The journal's records as rows that can be sorted and filtered."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Any

from kvproxy.commands.table import one_line
from kvproxy.commands.units import moment

if TYPE_CHECKING:
    from kvproxy.journal.record import Record


@dataclass(frozen=True, slots=True)
class Row:
    """A record, with what it asked and the similar question that was judged, where these are known."""

    record: "Record"
    question: str
    near_question: str = ""


def read_row(row: dict[str, Any]) -> Row:
    """A row of `/admin/log`."""
    from kvproxy.journal.record import Record

    known: dict[str, Any] = {field.name: row.get(field.name) for field in fields(Record)}
    return Row(Record(**known), row["question"] or "", row["near_question"] or "")


@dataclass(frozen=True, slots=True)
class Field:
    """A column of the list.

    Attributes:
        name: its header.
        width: cells that it takes; 0 takes what is left.
        text: what it shows of a row.
        order: what rows are sorted by; a value that is not known is less than all others.
        from_width: cells that the terminal needs for it to be shown.
        right: whether it is aligned to the right.
    """

    name: str
    width: int
    text: Callable[[Row], str]
    order: Callable[[Row], tuple[bool, float | str]]
    from_width: int = 0
    right: bool = False


def _number(value: float | None) -> tuple[bool, float | str]:
    return (value is not None, value or 0)


def _tokens(row: Row) -> int | None:
    record = row.record
    return None if record.prompt_tokens is None else record.prompt_tokens + (record.completion_tokens or 0)


def _short(value: float | None) -> str:
    """A count in at most six cells."""
    if value is None:
        return "-"
    return f"{value:,.0f}" if value < 99_999.5 else f"{value / 1000:,.0f}k"


def _milliseconds(row: Row) -> str:
    taken = row.record.total_ms
    if taken is None:
        return "-"
    return f"{taken:,.1f}" if taken < 99_999.9 else f"{taken / 1000:,.0f} s"


def _who(row: Row) -> str:
    return row.record.client or row.record.tenant


FIELDS = (
    Field(
        "time", 8, lambda row: moment(row.record.time).rpartition(" ")[2], lambda row: _number(float(row.record.number))
    ),
    Field("layer", 8, lambda row: row.record.layer, lambda row: (True, row.record.layer)),
    Field("reason", 15, lambda row: row.record.reason, lambda row: (True, row.record.reason)),
    Field("model", 20, lambda row: row.record.model, lambda row: (True, row.record.model), from_width=120),
    Field("tenant", 16, _who, lambda row: (True, _who(row)), from_width=120),
    Field("tokens", 6, lambda row: _short(_tokens(row)), lambda row: _number(_tokens(row)), right=True),
    Field(
        "reused",
        6,
        lambda row: _short(row.record.reused_tokens),
        lambda row: _number(row.record.reused_tokens),
        from_width=100,
        right=True,
    ),
    Field("ms", 8, _milliseconds, lambda row: _number(row.record.total_ms), right=True),
    Field("request", 8, lambda row: row.record.request_id[:8], lambda row: (True, row.record.request_id), 120),
    Field("question", 0, lambda row: row.question or "-", lambda row: (True, row.question)),
)
ORDERS = tuple(field.name for field in FIELDS)


def shown_fields(width: int) -> list[Field]:
    """The columns that a terminal of so many cells has room for."""
    return [field for field in FIELDS if width >= field.from_width]


def arranged(rows: Iterable[Row], words: str, order: str, *, ascending: bool) -> list[Row]:
    """The rows that hold all of some words, in an order.

    Args:
        words: each must be a part of what the row's columns, its id or its status say; upper and lower case are the same.
        order: one of `ORDERS`.
        ascending: the smallest first.
    """
    sought = words.lower().split()
    found = [row for row in rows if all(word in _searched(row) for word in sought)]
    (field,) = (each for each in FIELDS if each.name == order)
    return sorted(found, key=field.order, reverse=not ascending)


def _searched(row: Row) -> str:
    record = row.record
    return " ".join(
        (*(field.text(row) for field in FIELDS), record.request_id, record.upstream or "", str(record.status))
    ).lower()


def cells(row: Row, fields: Sequence[Field]) -> list[str]:
    """What the columns show of a row, each one line without control characters."""
    return [one_line(field.text(row)) for field in fields]
