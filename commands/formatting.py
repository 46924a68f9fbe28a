"""Formats values: rounded and with units for people, and raw for programs."""

import json
import math
import os
import sys
import time
from dataclasses import is_dataclass
from datetime import datetime, timedelta
from typing import Any, TextIO

from kvproxy.operations.operation import fields_of
from kvproxy.telemetry.printable_text import escape_controls, escape_json_controls
from kvproxy.units import FIRST_DATE, format_bytes, format_seconds

_RAW_DIGITS = 9
_SMALL_DIGITS = 12  # Of numbers below 1, such as the price of a token.
_FORCED = {"FORCE_COLOR", "TTY_COMPATIBLE"}
_SUM_ERROR = 1e-13  # Relative rounding error of a sum, such as 0.30000000000000004.


class Formatted(str):
    """A text for people, with the value that programs receive instead; None is unknown."""

    value: int | float | str | None

    def __new__(cls, text: str, value: int | float | str | None) -> "Formatted":
        made = super().__new__(cls, text)
        made.value = value
        return made


def format_duration(seconds: float) -> Formatted:
    """Format a duration, such as 2.3m; programs receive seconds."""
    return Formatted(format_seconds(seconds), seconds)


def quoted(text: str | None) -> str:
    """Quote a text; `unknown` without quotes if it is None."""
    return "unknown" if text is None else repr(text)


def format_age(created: float) -> Formatted:
    return format_duration(round(time.time() - created))


def format_size(count: float) -> Formatted:
    """Format a number of bytes, such as 2GiB; programs receive bytes."""
    return Formatted(format_bytes(count), count)


def may_be_terminal(file: TextIO) -> bool:
    """Whether a file is a terminal, or a pipe that rich treats as one."""
    return file.isatty() or not _FORCED.isdisjoint(os.environ)


def local_time(seconds: float) -> str:
    """Format seconds since the epoch as local time; if stdout is no terminal, as ISO 8601. An invalid time stays a number."""
    try:
        time = datetime.fromtimestamp(seconds).astimezone()
    except (ValueError, OverflowError, OSError):
        return f"{seconds:g}"
    if not may_be_terminal(sys.stdout):
        return time.isoformat(timespec="seconds")
    return time.replace(tzinfo=None).isoformat(" ", "seconds")


def table_time(seconds: float) -> str:
    """Format seconds since the epoch like `local_time`, but shorter at a terminal."""
    text = local_time(seconds)
    day, _, time_of_day = text.partition(" ")
    if not time_of_day:
        return text
    today = local_time(time.time())
    if day == today[:10]:
        return time_of_day
    return f"{day[5:]} {time_of_day[:5]}" if day[:5] == today[:5] else day


def logged_time(seconds: float) -> str:
    """Format a time of a log like `table_time`, or as +H:MM:SS if it is relative to the log's start."""
    return f"+{timedelta(seconds=round(seconds))}" if 0 <= seconds < FIRST_DATE else table_time(seconds)


def percent(share: float) -> Formatted:
    """Format a share as a percentage; programs receive the share, from 0 to 1."""
    return Formatted(f"{100 * share:.1f}%", share)


def money(amount: float | None, *, is_bound: bool = False, leaves_out_models: bool = False) -> Formatted | None:
    """Format money, which may be an upper bound, and leave out models without a price."""
    if amount is None:
        return None
    text = f"{'at most ' if is_bound else ''}{amount_text(amount)}{' (priced)' if leaves_out_models else ''}"
    return Formatted(text, amount)


def amount_text(amount: float) -> str:
    """Format money with four decimals, or with two significant digits if it is small."""
    digits = 4 if not 1e-9 < abs(amount) < 0.001 else 1 - math.floor(math.log10(abs(amount)))
    # Two sums of the same prices, in another order, round alike.
    return f"{float(f'{amount:.12g}'):,.{digits}f}"


def milliseconds(value: float | None) -> Formatted:
    return Formatted("-" if value is None else f"{value:,.0f}" if value >= 1_000 else f"{value:,.1f}", value)


def decimal(value: float, digits: int = 2) -> Formatted:
    return Formatted(f"{value:,.{digits}f}", value)


def one_line(value: object) -> str:
    """Format a value on one line: an integer with thousands separators, None and "" as `-`."""
    if value is None or value == "":
        return "-"
    if isinstance(value, int) and not isinstance(value, bool):
        return f"{value:,}"
    return escape_controls(" ".join(str(value).split()))


def raw_text(value: object) -> str:
    """Format a value for programs: numbers without separators, times as ISO 8601, and None as an empty text."""
    if isinstance(value, Formatted):
        value = value.value
    if value is None or value == "":
        return ""
    if isinstance(value, float):
        # Adding 0 turns -0.0 into 0.0.
        return f"{round(value, _RAW_DIGITS) + 0.0:.{_RAW_DIGITS}f}".rstrip("0").rstrip(".")
    if isinstance(value, bool):
        return "true" if value else "false"
    return str(value) if isinstance(value, int) else one_line(value)


def json_text(value: Any, *, indent: int | None = 2) -> str:
    """Format JSON, which may contain dataclasses, without the rounding errors of sums."""
    return escape_json_controls(json.dumps(_rounded(value), indent=indent, ensure_ascii=False, default=fields_of))


def _rounded(value: Any) -> Any:
    match value:
        case float():
            rounded = round(value, _RAW_DIGITS if abs(value) >= 1 else _SMALL_DIGITS)
            return rounded if abs(rounded - value) <= _SUM_ERROR * abs(value) else value
        case dict():
            return {name: _rounded(inner) for name, inner in value.items()}
        case list() | tuple():
            return [_rounded(inner) for inner in value]
        case _ if is_dataclass(value):
            return _rounded(fields_of(value))
        case _:
            return value


def json_fields(record: Any) -> dict[str, Any]:
    """Return the fields of a record, which is a dataclass or an object of JSON."""
    return record if isinstance(record, dict) else fields_of(record)
